"""Representation bias: how far the merged model's states lie from an expert's, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surgekit.errors import InputError, MismatchError, NotFiniteError
from surgekit.states.prompts import TextPart
from surgekit.states.states import States, check_same_tokens
from surgekit.surgery.modules import SurgeryModule

MEASURES = ("l1", "relative", "cosine")
_CHUNK = 8192


@dataclass(frozen=True)
class TokenBias:
    """The gap between two states, per token, float32.

    Attributes:
        l1: (n,) ‖z − z^k‖₁ / d, the paper's bias.
        relative: (n,) ‖z − z^k‖₁ / ‖z^k‖₁.
        cosine: (n,) cosine similarity of z and z^k (1 where they point the same way).
    """

    l1: Tensor
    relative: Tensor
    cosine: Tensor


@dataclass(frozen=True)
class Bias:
    """Bias of one domain.

    Attributes:
        tokens: per-token values.
        positions: (n,) position of each token in its sequence.
    """

    tokens: TokenBias
    positions: Tensor

    def mean(self) -> dict[str, float]:
        """Mean over tokens of each measure."""
        return {name: float(getattr(self.tokens, name).mean()) for name in MEASURES}

    def by_position(self, width: int = 32) -> list[dict[str, Any]]:
        """Means in bins of ``width`` positions: [{start, stop, tokens, l1, relative, cosine}].

        Bins without tokens are left out.
        """
        if width < 1:
            raise InputError(f"bin width must be at least 1, found {width}")
        bins = self.positions // width
        rows: list[dict[str, Any]] = []
        for index in bins.unique().tolist():
            inside = bins == index
            row: dict[str, Any] = {
                "start": index * width,
                "stop": (index + 1) * width,
                "tokens": int(inside.sum()),
            }
            for name in MEASURES:
                row[name] = float(getattr(self.tokens, name)[inside].mean())
            rows.append(row)
        return rows


def token_bias(states: Tensor, reference: Tensor) -> TokenBias:
    """Compare two sets of hidden states, token by token, in float32.

    Args:
        states, reference: (n, d).
    """
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for z, y in _chunks(states, reference):
        gap = (z - y).abs()
        relative = gap.sum(-1) / y.abs().sum(-1).clamp_min(torch.finfo(y.dtype).tiny)
        parts.append((gap.mean(-1), relative, F.cosine_similarity(z, y, dim=-1)))
    if not parts:
        empty = torch.empty(0)
        return TokenBias(empty, empty, empty)
    return TokenBias(*(torch.cat(column) for column in zip(*parts, strict=True)))


def measure_bias(
    merged_states: States,
    expert_states: States,
    module: SurgeryModule | None = None,
    *,
    text: TextPart = "both",
    domain: str = "",
) -> Bias:
    """Bias of the merged model against one expert, before surgery or (with ``module``) after it.

    Args:
        merged_states, expert_states: of the same tokens.
        module: corrects the merged states first.
        text: which tokens count.
        domain: named in messages.

    Raises:
        MismatchError: states of different tokens or widths.
        InputError: no tokens of that text.
        NotFiniteError: NaN or infinite states.
    """
    check_same_tokens(merged_states, expert_states, domain or "bias")
    mask = merged_states.mask(text)
    if not bool(mask.any()):
        raise InputError(f"{domain or 'bias'}: the prompts have no {text!r} tokens")
    positions = merged_states.tokens.positions()[mask]
    hidden = merged_states.hidden[mask]
    if module is not None:
        if module.config.hidden_size != merged_states.hidden_size:
            raise MismatchError(
                f"{domain or 'bias'}: the adapter corrects hidden states of width "
                f"{module.config.hidden_size}, these have {merged_states.hidden_size}"
            )
        hidden = correct(module, hidden, positions)
    result = Bias(token_bias(hidden, expert_states.hidden[mask]), positions)
    if not bool(result.tokens.l1.isfinite().all()):
        raise NotFiniteError(f"{domain or 'bias'}: NaN or infinite hidden states")
    return result


@torch.no_grad()
def correct(module: SurgeryModule, hidden: Tensor, positions: Tensor) -> Tensor:
    """Corrected states (n, d) in the type of ``hidden``, computed in chunks."""
    parts = [
        module(hidden[start : start + _CHUNK], positions[start : start + _CHUNK])
        for start in range(0, len(hidden), _CHUNK)
    ]
    return torch.cat(parts) if parts else hidden


def _chunks(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    kind = torch.promote_types(a.dtype, torch.float32)
    for start in range(0, len(a), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield a[part].to(kind), b[part].to(kind)
