"""Prompts padded on the right are refused where ``generate`` begins, and only there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surgekit.errors import InputError

_METHOD = "generate"


class GenerationHook:
    """Stands before a model's ``generate`` while surgery is attached.

    So a batch padded on the right is refused in every mode of decoding, while in a plain forward,
    as in training or in scoring, it is as good as any.

    Args:
        model: a model with that method.
        correcting: tells whether anything is corrected now.
    """

    def __init__(self, model: nn.Module, correcting: Callable[[], bool]) -> None:
        self._model = model
        self._correcting = correcting
        self._own = vars(model).get(_METHOD)
        self._generate: Callable[..., Any] = getattr(model, _METHOD)
        self.__doc__ = self._generate.__doc__
        setattr(model, _METHOD, self)

    def remove(self) -> None:
        """Put back what was there, unless someone has put his own in front since."""
        self._correcting = _never
        if vars(self._model).get(_METHOD) is not self:
            return
        if self._own is None:
            delattr(self._model, _METHOD)
        else:
            setattr(self._model, _METHOD, self._own)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._generate)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model's own ``generate`` returns."""
        if self._correcting():
            given = inspect.signature(self._generate).bind_partial(*args, **kwargs)
            call = {**given.arguments, **given.arguments.get("kwargs", {})}
            mask = _prompt_mask(call, getattr(self._model, "generation_config", None))
            if mask is not None:
                refuse_right_padding(mask)
        return self._generate(*args, **kwargs)


def _never() -> bool:
    return False


def _prompt_mask(call: Mapping[str, Any], defaults: Any) -> Tensor | None:
    """The attention mask (B, T) of the prompts: given, or guessed as ``generate`` will guess it.

    transformers takes the padding token for padding where it is none of the tokens that end a
    text.
    """
    mask = call.get("attention_mask")
    if isinstance(mask, Tensor):
        return mask if mask.dim() == 2 else None
    ids = call.get("inputs")
    ids = call.get("input_ids") if ids is None else ids
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        return None
    pad = _setting("pad_token_id", call, defaults)
    ends = _setting("eos_token_id", call, defaults)
    if not isinstance(pad, int) or ends is None or pad in torch.as_tensor(ends).reshape(-1):
        return None
    return ids != pad


def _setting(name: str, call: Mapping[str, Any], defaults: Any) -> Any:
    for place in (call, vars(call.get("generation_config") or object), vars(defaults or object)):
        if place.get(name) is not None:
            return place[name]
    return None


def refuse_right_padding(mask: Tensor) -> None:
    """Raise InputError where a row of a prompt's mask (B, T) has padding after its last token.

    A row of padding alone passes: there is no token to count from the wrong place.
    """
    real = mask != 0
    bad = real.any(-1) & ~real[:, -1]
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0, 0])
        raise InputError(
            f"generate: row {row} of the prompts is padded on the right (its attention mask ends "
            "in 0), so new tokens would follow padding and be counted from the wrong place; pad "
            'on the left (tokenizer.padding_side = "left")'
        )
