"""Where tokens stand: positions read from the arguments that enter a decoder body."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surgekit.errors import InputError

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")


def bound_arguments(
    body: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """A body call's arguments by name, whether they were passed by position or by name."""
    if not args:
        return dict(kwargs)
    names = list(inspect.signature(body.forward).parameters)
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def token_positions(call: Mapping[str, Any]) -> Tensor:
    """Position of every token of a body call among the real tokens of its own sequence.

    Taken from ``position_ids``; else counted over the attention mask, which tells padding from
    text; else counted from the length of the KV cache.

    Returns:
        (B, T) or (1, T) int64; negative where the mask says padding.

    Raises:
        InputError: no tokens enter.
    """
    entering = call.get("input_ids")
    if entering is None:
        entering = call.get("inputs_embeds")
    if entering is None:
        raise InputError("the model was called with neither input_ids nor inputs_embeds")
    length, device = entering.shape[1], entering.device
    given = call.get("position_ids")
    if isinstance(given, Tensor):
        # Multimodal rotary embeddings stack (axis, B, T); on text all axes agree.
        given = given[0] if given.dim() == 3 else given
        given = given[None] if given.dim() == 1 else given
        return given[:, -length:]
    past = _cached_tokens(call)
    mask = call.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= length:
        real = mask.to(device) != 0
        counted = (real.long().cumsum(-1) - 1).masked_fill(~real, -1)
        end = past + length
        # A mask over a static cache is longer than what has been seen.
        return counted[:, past:end] if counted.shape[1] >= end else counted[:, -length:]
    return torch.arange(past, past + length, device=device)[None]


def _cached_tokens(call: Mapping[str, Any]) -> int:
    for name in _CACHE_NAMES:
        count = getattr(call.get(name), "get_seq_length", None)
        if count is not None:
            return int(count())
    return 0
