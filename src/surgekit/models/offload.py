"""Models that accelerate has offloaded: their parameters are empty shells until a module runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surgekit.errors import InputError


def values_of(module: nn.Module, name: str) -> Tensor | None:
    """A parameter with its values; None where there is no such parameter.

    Args:
        module: the model, or any part of it that holds the parameter.
        name: as ``module.named_parameters()`` gives it. accelerate may load a part of a model as
            one (``preload_module_classes``); what is inside is found only from above it.

    Returns:
        The parameter itself, detached; where it is offloaded, its values on the CPU.

    Raises:
        InputError: the parameter has no values anywhere (a model made on the meta device).
    """
    owner, _, attribute = name.rpartition(".")
    parameter = getattr(module.get_submodule(owner), attribute, None)
    if not isinstance(parameter, Tensor):
        return None
    if not parameter.is_meta:
        return parameter.detach()
    path = name.split(".")
    for depth in reversed(range(len(path))):  # the parameter's owner first, then what is around it
        inside = ".".join(path[depth:])
        for stored in _stores(module.get_submodule(".".join(path[:depth]))):
            try:
                return stored[inside].detach().to("cpu", parameter.dtype)
            except KeyError:
                continue
    raise InputError(
        f"{type(module).__name__}.{name} has no values (it lies on the meta device); load the "
        "model's weights first"
    )


def _hooks(module: nn.Module) -> list[Any]:
    """accelerate's hooks on a module itself."""
    hook: Any = getattr(module, "_hf_hook", None)
    return [] if hook is None else list(getattr(hook, "hooks", [hook]))  # a SequentialHook's


def _stores(module: nn.Module) -> list[Mapping[str, Tensor]]:
    """Where accelerate keeps the values of what is inside a module, by names from there."""
    found = (getattr(hook, "weights_map", None) for hook in _hooks(module))
    return [stored for stored in found if stored is not None]


def run_device(module: nn.Module) -> torch.device:
    """Where a module's inputs must lie: its first parameter's device, or where accelerate runs it.

    Args:
        module: one that holds a parameter itself, such as the input embedding.
    """
    parameter = next(module.parameters())
    if not parameter.is_meta:
        return parameter.device
    for hook in _hooks(module):
        device = getattr(hook, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")
