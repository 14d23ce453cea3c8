"""Losses that a surgery module is trained with, and the entropy weights of one of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surgekit.errors import InputError
from surgekit.models.anatomy import Head
from surgekit.surgery.config import EntropyMean

_TOKEN_CHUNK = 256


def entropy_weights(entropies: Tensor, offsets: Tensor, mean: EntropyMean) -> Tensor:
    """w_t = H_t / mean(H), the mean over all tokens given or over each sequence.

    Args:
        entropies: (n,) in nats.
        offsets: (P + 1,) boundaries of the sequences among the n tokens.
        mean: ``sequence``, or ``dataset`` and ``batch``, which differ only in what is passed in.

    Returns:
        (n,) weights of mean 1.

    Raises:
        InputError: the mean entropy is zero, so that no weights exist.
    """
    if mean == "sequence":
        counts = offsets.diff()
        sums = torch.zeros(len(counts), dtype=entropies.dtype, device=entropies.device)
        owner = torch.arange(len(counts), device=entropies.device).repeat_interleave(counts)
        means = (sums.index_add(0, owner, entropies) / counts.clamp_min(1))[owner]
    else:
        means = entropies.mean()
    if not bool((means > 0).all()):
        raise InputError(
            "entropy weights need a positive mean entropy; the expert is certain of every token "
            "here (use loss l1, or entropy_mean: dataset)"
        )
    return entropies / means


def l1_loss(corrected: Tensor, expert: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean over tokens of ``w_t · ‖ẑ_t − z^k_t‖₁ / d``; all w_t = 1 where none are given.

    Args:
        corrected, expert: (n, d).
        weights: (n,).
    """
    per_token = (corrected - expert).abs().mean(-1)
    return (per_token if weights is None else per_token * weights).mean()


def kl_loss(corrected: Tensor, expert: Tensor, head: Head) -> Tensor:
    """Mean over tokens of ``KL(softmax(head(z^k)) ‖ softmax(head(ẑ)))``, in nats."""
    return _through_head("kl", corrected, expert, head)


def ce_loss(corrected: Tensor, expert: Tensor, head: Head) -> Tensor:
    """Mean cross-entropy of ``softmax(head(ẑ))`` against the expert's most likely token."""
    return _through_head("ce", corrected, expert, head)


def _through_head(kind: str, corrected: Tensor, expert: Tensor, head: Head) -> Tensor:
    return _ChunkedHeadLoss.apply(corrected, expert, head, kind)


class _ChunkedHeadLoss(torch.autograd.Function):
    """A loss on logits whose gradient is formed chunk by chunk in the forward pass.

    Only one chunk's logits exist at a time, so memory does not grow with the batch.
    """

    @staticmethod
    def forward(ctx: Any, corrected: Tensor, expert: Tensor, head: Head, kind: str) -> Tensor:
        total = corrected.new_zeros(())
        gradient = torch.zeros_like(corrected)
        count = len(corrected)
        for start in range(0, count, _TOKEN_CHUNK):
            part = slice(start, start + _TOKEN_CHUNK)
            with torch.no_grad():
                wanted = head.logits(expert[part])
            with torch.enable_grad():
                inputs = corrected[part].detach().requires_grad_()
                logits = head.logits(inputs)
                if kind == "kl":
                    loss = F.kl_div(
                        logits.log_softmax(-1),
                        wanted.log_softmax(-1),
                        reduction="sum",
                        log_target=True,
                    )
                else:
                    loss = F.cross_entropy(logits, wanted.argmax(-1), reduction="sum")
                (gradient[part],) = torch.autograd.grad(loss / count, inputs)
            total = total + loss.detach() / count
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_outputs[0], None, None, None
