"""Next-token entropies, computed over chunks of the vocabulary so that no logits are stored."""

from __future__ import annotations

import torch
from torch import Tensor

from surgekit.models.anatomy import Head

_TOKENS = 256
_ROWS = 16_384


@torch.no_grad()
def next_token_entropies(
    hidden: Tensor, head: Head, *, token_chunk: int = _TOKENS, vocabulary_chunk: int = _ROWS
) -> Tensor:
    """Entropy in nats of ``softmax(head(hidden))``, per token.

    One pass over the vocabulary: with m the running maximum of the logits l,
    s = Σ exp(l − m) and u = Σ exp(l − m)·(l − m) are rescaled when m grows, and
    H = log s − u / s. Memory is ``token_chunk × vocabulary_chunk`` numbers.

    Args:
        hidden: (N, d) last hidden states.

    Returns:
        (N,) float32 (float64 for float64 input).
    """
    kind = torch.promote_types(hidden.dtype, torch.float32)
    ready = head.prepared(kind, hidden.device)
    parts = [
        _entropies(hidden[start : start + token_chunk], ready, vocabulary_chunk)
        for start in range(0, len(hidden), token_chunk)
    ]
    return torch.cat(parts) if parts else torch.empty(0, dtype=kind)


def _entropies(hidden: Tensor, head: Head, vocabulary_chunk: int) -> Tensor:
    maximum = total = moment = None
    for start in range(0, head.vocabulary, vocabulary_chunk):
        logits = head.logits(hidden, start, start + vocabulary_chunk)
        peak = logits.amax(-1)
        shifted = logits - peak[:, None]
        weights = shifted.exp()
        s = weights.sum(-1)
        u = shifted.mul_(weights).sum(-1)
        if maximum is None or total is None or moment is None:
            maximum, total, moment = peak, s, u
            continue
        higher = torch.maximum(maximum, peak)
        old, new = maximum - higher, peak - higher
        moment = (moment + old * total) * old.exp() + (u + new * s) * new.exp()
        total = total * old.exp() + s * new.exp()
        maximum = higher
    assert total is not None
    assert moment is not None
    return (total.log() - moment / total).clamp_min(0)
