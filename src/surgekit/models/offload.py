"""Models that accelerate has offloaded: their parameters are empty shells until a module runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from surgekit.errors import InputError


def values_of(module: nn.Module, name: str) -> Tensor | None:
    """A module's own parameter with its values; None where it has no such parameter.

    Returns:
        The parameter itself, detached; a copy on the CPU where it is offloaded to disk or memory.

    Raises:
        InputError: the parameter has no values anywhere (a model made on the meta device).
    """
    parameter = getattr(module, name, None)
    if not isinstance(parameter, Tensor):
        return None
    if not parameter.is_meta:
        return parameter.detach()
    if not hasattr(module, "_hf_hook"):
        raise InputError(
            f"{type(module).__name__}.{name} has no values (it lies on the meta device); load the "
            "model's weights first"
        )
    from accelerate.utils import align_module_device

    with align_module_device(module, execution_device=torch.device("cpu")):
        held: Tensor = getattr(module, name)
        return held.detach().clone()


def run_device(module: nn.Module) -> torch.device:
    """Where a module's inputs must lie: its first parameter's device, or where accelerate runs it.

    Args:
        module: one that holds a parameter itself, such as the input embedding.
    """
    parameter = next(module.parameters())
    if not parameter.is_meta:
        return parameter.device
    hook: Any = getattr(module, "_hf_hook", None)
    for part in (hook, *getattr(hook, "hooks", ())):  # a SequentialHook holds several
        device = getattr(part, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")
