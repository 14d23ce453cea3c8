"""States: the last hidden states of one model on one set of token sequences, packed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from surgekit.errors import InputError, MismatchError
from surgekit.files import expect_metadata, expect_tensor, read_tensors, write_tensors
from surgekit.states.prompts import TextPart, TokenizedPrompts

STATES_FORMAT = "1"
_METADATA = ("format", "model", "batch_size", "cut")
_TENSORS = ("hidden", "ids", "positions", "offsets", "response_starts", "entropies")


@dataclass(frozen=True)
class States:
    """Last hidden states (after the final norm, before the head), one row a token.

    Attributes:
        hidden: (N, d) in bfloat16 unless captured otherwise.
        tokens: the sequences they belong to, packed alike (N tokens).
        entropies: (N,) float32, entropy in nats of the model's own next-token distribution, or
            None where it was not asked for.
        model: fingerprint of the model, "" where unknown.
        batch_size: prompts a forward pass held; figures move a little with it.
    """

    hidden: Tensor
    tokens: TokenizedPrompts
    entropies: Tensor | None = None
    model: str = ""
    batch_size: int = 0

    def __post_init__(self) -> None:
        if self.hidden.dim() != 2 or len(self.hidden) != len(self.tokens.ids):
            raise MismatchError(
                f"states: {len(self.tokens.ids)} tokens need ({len(self.tokens.ids)}, d) hidden "
                f"states, found {tuple(self.hidden.shape)}"
            )
        if self.entropies is not None and self.entropies.shape != self.hidden.shape[:1]:
            raise MismatchError(
                f"states: expected {len(self.hidden)} entropies, found "
                f"{tuple(self.entropies.shape)}"
            )

    @property
    def hidden_size(self) -> int:
        """Width d of a hidden state."""
        return self.hidden.shape[1]

    def select(self, indices: list[int]) -> States:
        """The states of the sequences at ``indices``, in that order."""
        if indices == list(range(len(self.tokens))):
            return self
        rows = [
            torch.arange(int(self.tokens.offsets[i]), int(self.tokens.offsets[i + 1]))
            for i in indices
        ]
        index = torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)
        return replace(
            self,
            hidden=self.hidden[index],
            tokens=self.tokens.select(indices),
            entropies=None if self.entropies is None else self.entropies[index],
        )

    def mask(self, text: TextPart) -> Tensor:
        """(N,) bool, the tokens of a part of the text; see TokenizedPrompts.mask."""
        return self.tokens.mask(text)


def check_same_tokens(a: States, b: States, what: str) -> None:
    """Raise MismatchError unless both states are of the same tokens and of equal width."""
    if a.hidden_size != b.hidden_size:
        raise MismatchError(
            f"{what}: hidden sizes differ ({a.hidden_size} and {b.hidden_size}); surgery needs "
            "models of one width"
        )
    same = torch.equal(a.tokens.offsets, b.tokens.offsets) and torch.equal(
        a.tokens.ids, b.tokens.ids
    )
    if not same:
        raise MismatchError(
            f"{what}: the two states are not of the same tokens ({len(a.tokens)} prompts with "
            f"{len(a.hidden)} tokens, {len(b.tokens)} with {len(b.hidden)}); capture both with the "
            "same tokenizer and the same prompts"
        )


def save_states(states: States, path: Path) -> None:
    """Write states as one safetensors file with a checksum, whole or not at all."""
    tensors = {
        "hidden": states.hidden,
        "ids": states.tokens.ids.to(torch.int32),
        "positions": states.tokens.positions().to(torch.int32),
        "offsets": states.tokens.offsets,
        "response_starts": states.tokens.response_starts,
    }
    if states.entropies is not None:
        tensors["entropies"] = states.entropies
    metadata = {
        "format": STATES_FORMAT,
        "model": states.model,
        "batch_size": str(states.batch_size),
        "cut": str(states.tokens.cut),
    }
    write_tensors(path, tensors, metadata)


def load_states(path: Path) -> States:
    """Read states back.

    Raises:
        InputError: not a states file, truncated, changed since it was written, or its tensors
            contradict each other.
    """
    tensors, metadata = read_tensors(path, "states")
    if metadata.get("format") != STATES_FORMAT:
        raise InputError(
            f"{path}: expected states of format {STATES_FORMAT}, found "
            f"{metadata.get('format', 'none')}"
        )
    expect_metadata(metadata, _METADATA, path)
    surplus = sorted(tensors.keys() - set(_TENSORS))
    if surplus:
        raise InputError(f"{path}: unknown tensor {surplus[0]!r} in states; is it damaged?")
    offsets = expect_tensor(tensors, "offsets", torch.int64, 1, path)
    ids = expect_tensor(tensors, "ids", torch.int32, 1, path)
    starts = expect_tensor(tensors, "response_starts", torch.int64, 1, path)
    whole = (
        len(offsets) > 0
        and int(offsets[0]) == 0
        and int(offsets[-1]) == len(ids)
        and bool((offsets.diff() > 0).all())
        and len(starts) == len(offsets) - 1
        and bool(((starts >= 0) & (starts <= offsets.diff())).all())
    )
    if not whole:
        raise InputError(f"{path}: offsets do not fit the tokens; capture the states again")
    try:
        cut, batch_size = (int(metadata.get(key, "0")) for key in ("cut", "batch_size"))
    except ValueError as error:
        raise InputError(f"{path}: expected a number in its metadata ({error})") from error
    tokens = TokenizedPrompts(ids.long(), offsets, starts, cut)
    hidden = tensors.get("hidden")
    if hidden is None or not hidden.is_floating_point():
        raise InputError(f"{path}: expected floating-point 'hidden' states")
    entropies = tensors.get("entropies")
    if entropies is not None and not entropies.is_floating_point():
        raise InputError(f"{path}: expected floating-point 'entropies'")
    return States(
        hidden,
        tokens,
        entropies,
        metadata.get("model", ""),
        batch_size,
    )
