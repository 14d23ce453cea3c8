"""Capturing a model's last hidden states on token sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from surgekit.errors import InputError, NotFiniteError
from surgekit.models.anatomy import find_anatomy, find_body, hidden_of, token_input
from surgekit.models.fingerprint import fingerprint
from surgekit.states.entropy import next_token_entropies
from surgekit.states.prompts import TokenizedPrompts
from surgekit.states.states import States

Progress = Callable[[int], None]


@torch.no_grad()
def capture(
    model: PreTrainedModel,
    tokens: TokenizedPrompts,
    *,
    entropies: bool = False,
    batch_size: int = 8,
    dtype: torch.dtype = torch.bfloat16,
    body: str | None = None,
    head: str | None = None,
    model_fingerprint: str | None = None,
    progress: Progress | None = None,
) -> States:
    """Run the model's body over all sequences and keep the last hidden state of every token.

    Sequences alike in length share a batch (padded on the right, which a causal model does not
    see); the head is not run, and no padding is kept. Where the rotary embedding changes with the
    length of a batch (``longrope``, ``dynamic``), only sequences of equal length share one.

    Args:
        model: a causal language model; what is attached to it (an adapter, a LoRA) takes part.
        tokens: what to run, from ``tokenize_prompts``.
        entropies: also compute the model's own next-token entropies (needed of experts).
        batch_size: sequences a forward pass.
        dtype: of the states kept.
        body, head: names of the parts, where the search for them fails.
        model_fingerprint: of the model, where it is known (computing it reads all weights).
        progress: called with the number of tokens done after each batch.

    Returns:
        States in the order of ``tokens``, on the CPU.

    Raises:
        InputError: a token id outside the model's vocabulary.
        NotFiniteError: the model gives NaN or infinity; names the first such sequence.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, found {batch_size}")
    vocabulary, device = token_input(model)
    outside = tokens.ids[(tokens.ids < 0) | (tokens.ids >= vocabulary)]
    if len(outside):
        raise InputError(
            f"token id {int(outside[0])} is outside the model's vocabulary of "
            f"{vocabulary}; is this the tokenizer of this model?"
        )
    parts = None
    if entropies:
        parts = find_anatomy(model, body=body, head=head)[1].prepared()
    module = find_body(model, body)[1]
    equal = _changes_with_length(module)
    kept: list[Tensor | None] = [None] * len(tokens)
    kept_entropies: list[Tensor] = [torch.empty(0)] * len(tokens)
    for batch in _batches(tokens.lengths(), batch_size, equal):
        ids, mask = _pad([tokens.sequence(i) for i in batch])
        ids, mask = ids.to(device), mask.to(device)
        try:
            output = module(input_ids=ids, attention_mask=mask, use_cache=False)
        except IndexError as error:  # ids are in range, so it is a table of positions
            raise InputError(
                f"the model cannot take prompt {batch[-1]} with its {ids.shape[1]} tokens "
                f"({error}); is max_length beyond the positions it has?"
            ) from error
        hidden = hidden_of(output)
        packed = hidden[mask.bool().to(hidden.device)]
        stored = packed.to(dtype)
        lengths = [tokens.lengths()[i] for i in batch]
        if not bool(stored.isfinite().all()):
            bad = next(
                i
                for i, h in zip(batch, stored.split(lengths), strict=True)
                if not h.isfinite().all()
            )
            raise NotFiniteError(
                f"the model gives NaN or infinite hidden states on prompt {bad}; "
                "check its weights and precision"
            )
        if parts is not None:
            values = next_token_entropies(packed, parts)
            for i, value in zip(batch, values.cpu().split(lengths), strict=True):
                kept_entropies[i] = value
        for i, value in zip(batch, stored.cpu().split(lengths), strict=True):
            kept[i] = value.clone()
        if progress is not None:
            progress(sum(lengths))
    hidden_size = next((h.shape[1] for h in kept if h is not None), 0)
    return States(
        torch.cat([h for h in kept if h is not None])
        if kept
        else torch.empty(0, hidden_size, dtype=dtype),
        tokens,
        torch.cat(kept_entropies or [torch.empty(0)]) if entropies else None,
        model_fingerprint or fingerprint(model),
        batch_size,
    )


def _batches(lengths: list[int], size: int, equal: bool) -> Iterator[list[int]]:
    """Indices of sequences, the shortest first, at most ``size`` a batch."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    groups = groupby(order, key=lambda i: lengths[i] if equal else 0)
    for _, group in groups:
        alike = list(group)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


def _changes_with_length(body: nn.Module) -> bool:
    """Whether the longest row of a batch decides how all its rows are rotated."""
    for module in body.modules():
        kind = getattr(module, "rope_type", None)  # one, or one for each type of layer
        kinds = kind.values() if isinstance(kind, dict) else [kind]
        if any(k in ("longrope", "dynamic") for k in kinds):
            return True
    return False


def _pad(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    width = max(len(r) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = row
        mask[k, : len(row)] = 1
    return ids, mask
