"""Capturing a model's last hidden states on token sequences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from surgekit.errors import InputError, NotFiniteError
from surgekit.models.anatomy import find_anatomy, find_body, hidden_of, input_embedding
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

    Sequences alike in length share a batch (padded on the right); the head is not run, and no
    padding is kept.

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
    embedding = input_embedding(model)
    outside = tokens.ids[(tokens.ids < 0) | (tokens.ids >= embedding.shape[0])]
    if len(outside):
        raise InputError(
            f"token id {int(outside[0])} is outside the model's vocabulary of "
            f"{embedding.shape[0]}; is this the tokenizer of this model?"
        )
    parts = None
    if entropies:
        parts = find_anatomy(model, body=body, head=head)[1].prepared()
    module = find_body(model, body)[1]
    order = sorted(range(len(tokens)), key=lambda i: tokens.lengths()[i])
    kept: list[Tensor | None] = [None] * len(tokens)
    kept_entropies: list[Tensor] = [torch.empty(0)] * len(tokens)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        ids, mask = _pad([tokens.sequence(i) for i in batch])
        ids, mask = ids.to(embedding.device), mask.to(embedding.device)
        hidden = hidden_of(module(input_ids=ids, attention_mask=mask, use_cache=False))
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


def _pad(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    width = max(len(r) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = row
        mask[k, : len(row)] = 1
    return ids, mask
