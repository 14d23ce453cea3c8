"""Where tokens stand: positions read from the arguments that enter a decoder body."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surgekit.errors import InputError

_CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")
_REACHED = "_surgekit_reached"


def bound_arguments(
    body: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """A body call's arguments by name, whether they were passed by position or by name."""
    if not args:
        return dict(kwargs)
    names = list(inspect.signature(body.forward).parameters)
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def token_positions(call: Mapping[str, Any], *, required: bool = True) -> Tensor:
    """Position of every token of a body call among the real tokens of its own sequence.

    Taken from ``position_ids``; else counted over the attention mask, which tells padding from
    text; else counted from what the cache has seen. To be called before the body runs, for
    afterwards its cache has grown.

    Args:
        call: the body's arguments by name.
        required: False to get an empty tensor where the positions cannot be known.

    Returns:
        (B, T) or (1, T) int64; negative where the mask says padding.

    Raises:
        InputError: no tokens enter, or nothing tells how many came before them.
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
    mask, counted = call.get("attention_mask"), torch.arange(length, device=device)[None]
    past = _tokens_before(_cache_of(call), len(entering))
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= length:
        real = mask.to(device) != 0
        counted = (real.long().cumsum(-1) - 1).masked_fill(~real, -1)
        if isinstance(past, int):
            end = past + length
            # A mask over a static cache is longer than what has been seen.
            return counted[:, past:end] if counted.shape[1] >= end else counted[:, -length:]
        if counted.shape[1] > length:
            return counted[:, -length:]
    if past is None:
        if not required:
            return counted[:, :0]
        raise InputError(
            "the model goes on from a state that does not tell how many tokens it has seen, so "
            "the position of this step is unknown; pass position_ids, or an attention_mask over "
            "all tokens so far"
        )
    past = past[:, None].to(device) if isinstance(past, Tensor) else past
    return torch.where(counted < 0, counted, counted + past)


def remember_positions(output: Any, positions: Tensor) -> None:
    """Note on a state that cannot tell its length where its sequences (B, T) stand.

    The next call with it goes on counting from there. Rows keep their places in beam search: beams
    of a prompt have seen equally many tokens.
    """
    if isinstance(output, Mapping):
        cache = _cache_of(output)
    else:
        parts = output if isinstance(output, tuple) else ()
        cache = next((p for p in parts if hasattr(p, "get_seq_length")), None)
    if cache is None or positions.numel() == 0 or _has_length(cache):
        return
    reached, before = positions.amax(-1) + 1, getattr(_bearer(cache), _REACHED, None)
    if isinstance(before, Tensor) and before.shape == reached.shape:
        reached = torch.where(reached > 0, reached, before)  # a row of padding alone stays
    setattr(_bearer(cache), _REACHED, reached)


def _cache_of(call: Mapping[str, Any]) -> Any:
    return next((call[n] for n in _CACHE_NAMES if call.get(n) is not None), None)


def _tokens_before(cache: Any, rows: int) -> int | Tensor | None:
    """Tokens that a cache has seen: one number, (B,) or (1,) numbers, or None where unknown.

    A running state (Mamba, RWKV) holds no tokens to count; it bears a note.
    """
    if cache is None:
        return 0
    if _has_length(cache):
        return int(cache.get_seq_length())
    begun = getattr(cache, "has_previous_state", None)
    if callable(begun) and not begun():
        return 0
    reached = getattr(_bearer(cache), _REACHED, None)
    known = isinstance(reached, Tensor) and len(reached) in (1, rows)
    return reached if known else None


def _bearer(cache: Any) -> Any:
    """What a note can be put on: RWKV's state is a list of tensors, which are kept throughout."""
    return cache[0] if isinstance(cache, list | tuple) and cache else cache


def _has_length(cache: Any) -> bool:
    if not hasattr(cache, "get_seq_length"):
        return False
    try:
        cache.get_seq_length()
    except ValueError:  # it has layers of a running state only
        return False
    return True
