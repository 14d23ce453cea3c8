"""Devices by name: found to be none before any work is done for them."""

from __future__ import annotations

from surgekit.errors import InputError


def check_device(name: str) -> None:
    """Raise InputError unless ``name`` is ``auto`` or a device that is there."""
    import torch

    if name == "auto":
        return
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        if said.startswith("Expected one of"):  # and then all that torch has ever known
            said = "no such device"
        raise InputError(f"device {name!r}: expected cpu, cuda, cuda:N or auto ({said})") from error
    if name.split(":")[0] == "meta":
        raise InputError("device 'meta': expected cpu, cuda, cuda:N or auto (it holds no numbers)")
