"""Prompts padded on the right are refused where ``generate`` begins, and only there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from surgekit.errors import InputError

_METHOD = "prepare_inputs_for_generation"


class GenerationHook:
    """Stands before a model's ``prepare_inputs_for_generation`` while surgery is attached.

    ``generate`` calls that method once a step, a plain forward never. So a batch padded on the
    right is refused here at the prompt, while in training or in scoring it is as good as any.

    Args:
        model: a model with that method.
        correcting: tells whether anything is corrected now.
    """

    def __init__(self, model: nn.Module, correcting: Callable[[], bool]) -> None:
        self._model = model
        self._correcting = correcting
        self._own = vars(model).get(_METHOD)
        self._prepare: Callable[..., dict[str, Any]] = getattr(model, _METHOD)
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
        # generate reads from it which arguments the model takes.
        return inspect.signature(self._prepare)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The model's own inputs of one step of generation."""
        inputs = self._prepare(*args, **kwargs)
        mask = kwargs.get("attention_mask")
        entering = inputs.get("inputs_embeds")
        if entering is None:
            entering = inputs.get("input_ids")
        if isinstance(mask, Tensor) and mask.dim() == 2 and isinstance(entering, Tensor):
            length = min(entering.shape[1], mask.shape[1])
            # Where nothing else marks the first step, it is the one that all tokens enter.
            first = kwargs.get("is_first_iteration", mask.shape[1] == length)
            if length > 1 and first and self._correcting():
                refuse_right_padding(mask[:, -length:])
        return inputs


def _never() -> bool:
    return False


def refuse_right_padding(mask: Tensor) -> None:
    """Raise InputError where a row of a prompt's mask (B, T) has padding after its last token.

    A row of padding alone passes: the first chunk of a long prompt padded on the left is such.
    """
    real = mask != 0
    if bool((real.any(-1) & ~real[:, -1]).any()):
        raise InputError(
            "generate: a prompt is padded on the right (its attention mask ends in 0), so new "
            "tokens would follow padding and be counted from the wrong place; pad on the left "
            '(tokenizer.padding_side = "left")'
        )
