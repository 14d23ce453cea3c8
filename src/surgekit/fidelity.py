"""Fidelity: how close a model's next-token predictions are to an expert's, on held-out text.

Everything is teacher-forced on reference responses and computed from stored states, so a
correction can be judged without running a model again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surgekit.errors import InputError, NotFiniteError
from surgekit.models.anatomy import Head
from surgekit.states.prompts import TokenizedPrompts
from surgekit.states.states import States
from surgekit.statistics import Array
from surgekit.surgery.modules import SurgeryModule

METRICS = ("loss", "kl", "agreement")
ENTROPY_EDGES = (0.0, 0.05, 0.5, 1.5)
"""Lower edges in nats of the bins that figures are split by, after the expert's own entropy."""
_TOKEN_CHUNK = 128


@dataclass(frozen=True)
class Candidate:
    """One set of predictions to judge: states of all tokens, and the head that reads them.

    Attributes:
        hidden: (N, d) over all tokens of the text.
        head: turns them into logits.
        module: corrects the states first, a few tokens at a time.
        name: what messages call it.
    """

    hidden: Tensor
    head: Head
    module: SurgeryModule | None = None
    name: str = "a candidate"


@dataclass(frozen=True)
class Fidelity:
    """Per-token figures of one candidate on the scored tokens of a text.

    Attributes:
        loss: (n,) negative log-likelihood in nats of the reference token.
        kl: (n,) KL(expert ‖ candidate) in nats, on the common vocabulary, renormalised.
        agreement: (n,) 1 where both have the same most likely token.
        entropies: (n,) the expert's own next-token entropy.
        prompts: (n,) index of the prompt each token belongs to.
    """

    loss: Tensor
    kl: Tensor
    agreement: Tensor
    entropies: Tensor
    prompts: Tensor

    def mean(self) -> dict[str, float]:
        """Mean over tokens of each metric."""
        return {name: float(getattr(self, name).mean()) for name in METRICS}

    def by_entropy(self) -> list[dict[str, Any]]:
        """Means within bins of the expert's entropy: [{from, to, tokens, loss, kl, agreement}]."""
        edges = [*ENTROPY_EDGES, float("inf")]
        rows: list[dict[str, Any]] = []
        for low, high in zip(edges[:-1], edges[1:], strict=True):
            inside = (self.entropies >= low) & (self.entropies < high)
            if not bool(inside.any()):
                continue
            row: dict[str, Any] = {
                "from": low,
                "to": None if high == float("inf") else high,
                "tokens": int(inside.sum()),
            }
            row |= {name: float(getattr(self, name)[inside].mean()) for name in METRICS}
            rows.append(row)
        return rows

    def sums(self, metric: str) -> tuple[Array, Array]:
        """(sum over its tokens, number of tokens) of each prompt, for intervals over prompts."""
        count = int(self.prompts.max()) + 1 if len(self.prompts) else 0
        index = self.prompts.numpy()
        values = getattr(self, metric).double().numpy()
        top = np.bincount(index, weights=values, minlength=count)
        bottom = np.bincount(index, minlength=count).astype(np.float64)
        return np.asarray(top[bottom > 0], dtype=np.float64), bottom[bottom > 0]


def scored_tokens(tokens: TokenizedPrompts) -> Tensor:
    """(N,) bool: tokens whose prediction is judged.

    Those that predict a response token; in a sequence without response, all but the last.
    """
    counts = tokens.offsets.diff()
    lengths = counts.repeat_interleave(counts)
    starts = tokens.response_starts.repeat_interleave(counts)
    positions = tokens.positions()
    no_response = starts >= lengths
    return (positions < lengths - 1) & (no_response | (positions >= starts - 1))


@torch.no_grad()
def measure_fidelity(
    reference: States,
    reference_head: Head,
    candidates: Sequence[Candidate],
    *,
    domain: str = "",
    progress: Callable[[int], None] | None = None,
) -> list[Fidelity]:
    """Judge candidates against a reference (the expert) on the scored tokens of its text.

    Logits exist for a few tokens at a time; the reference's are formed once for all candidates.

    Args:
        reference: the expert's states, with entropies where it has them.
        reference_head: the expert's own head.
        candidates: states of the same tokens in the same order.
        domain: named in messages.
        progress: called with the number of tokens done, of ``scored_tokens(...)``.

    Raises:
        InputError: nothing to score, states of another number of tokens, or a reference token
            that a candidate's head does not know.
        NotFiniteError: NaN or infinity in a figure; names the candidate.
    """
    mask = scored_tokens(reference.tokens)
    name = domain or "fidelity"
    if not bool(mask.any()):
        raise InputError(f"{name}: no token to score (are all prompts a single token?)")
    for candidate in candidates:
        if len(candidate.hidden) != len(reference.hidden):
            raise InputError(
                f"{name}: {len(candidate.hidden)} states for {len(reference.hidden)} tokens"
            )
    index = mask.nonzero()[:, 0]
    targets = reference.tokens.targets()[index]
    highest = int(targets.max())
    for candidate in candidates:
        if highest >= candidate.head.vocabulary:
            raise InputError(
                f"{name}: token id {highest} is outside the vocabulary of {candidate.name}, "
                f"which has {candidate.head.vocabulary} rows; judge it on text of its own tokenizer"
            )
    positions = reference.tokens.positions()
    counts = reference.tokens.offsets.diff()
    prompts = torch.arange(len(counts)).repeat_interleave(counts)[index]
    figures = [torch.empty(3, len(index)) for _ in candidates]
    entropies = torch.empty(len(index))
    ready = {id(h): h.prepared() for h in [reference_head, *(c.head for c in candidates)]}
    for start in range(0, len(index), _TOKEN_CHUNK):
        part = slice(start, start + _TOKEN_CHUNK)
        rows = index[part]
        log_wanted = ready[id(reference_head)].logits(reference.hidden[rows]).log_softmax(-1)
        probability = log_wanted.exp()
        if reference.entropies is None:
            entropies[part] = -(probability * log_wanted).sum(-1)
        for figure, candidate in zip(figures, candidates, strict=True):
            hidden = candidate.hidden[rows]
            if candidate.module is not None:
                hidden = candidate.module(hidden, positions[rows])
            logits = ready[id(candidate.head)].logits(hidden)
            figure[:, part] = _compare(log_wanted, probability, logits, targets[part])
        if progress is not None:
            progress(len(rows))
    if reference.entropies is not None:
        entropies = reference.entropies[index]
    for figure, candidate in zip(figures, candidates, strict=True):
        if not bool(figure.isfinite().all()):
            raise NotFiniteError(f"{name}: NaN or infinite predictions of {candidate.name}")
    return [Fidelity(f[0], f[1].clamp_min(0), f[2], entropies, prompts) for f in figures]


def recovered_share(uncorrected: float, corrected: float, expert: float) -> float | None:
    """The part of the merged→expert gap that a correction closes; None where there is no gap."""
    gap = uncorrected - expert
    return (uncorrected - corrected) / gap if gap > 0 else None


def _compare(log_wanted: Tensor, probability: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """(3, n): loss, KL and agreement of one chunk."""
    common = min(log_wanted.shape[-1], logits.shape[-1])
    whole = logits.log_softmax(-1)
    loss = -whole.gather(-1, targets[:, None])[:, 0]
    if common == log_wanted.shape[-1]:
        expected, log_expected = probability, log_wanted
    else:
        log_expected = log_wanted[:, :common].log_softmax(-1)
        expected = log_expected.exp()
    ours = whole if common == whole.shape[-1] else whole[:, :common].log_softmax(-1)
    agreement = (log_expected.argmax(-1) == ours.argmax(-1)).to(loss.dtype)
    # (log p − log q) first: summed apart, p·log p and p·log q would cancel to rounding noise.
    kl = torch.einsum("nv,nv->n", expected, log_expected - ours)
    return torch.stack([loss, kl, agreement])
