"""Positions under any padding and any cache, against a plain count; batches and their rows."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from surgekit.adapters.attach import BASE, attach
from surgekit.adapters.positions import token_positions

from .examples import examples
from .surgeries import FORMS, TABLE, close, left_padded, surgery, tokens
from .tiny import llama

KINDS = [torch.int64, torch.int32, torch.bool, torch.float32, torch.bfloat16]


@cache
def model() -> Any:
    return llama(2)


def counted(mask: np.ndarray[Any, Any], past: int, length: int) -> list[list[int]]:
    """Places of ``length`` entering tokens among the real ones of each row, -1 for padding."""
    width = mask.shape[1]
    first = past if width >= past + length else width - length
    return [
        [int(row[:t].sum()) if row[t] else -1 for t in range(first, first + length)] for row in mask
    ]


@st.composite
def masks(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], int, int]:
    """(mask (B, W), tokens in the cache, tokens entering), with padding at any place."""
    rows, past, length = draw(st.integers(1, 4)), draw(st.integers(0, 6)), draw(st.integers(1, 6))
    spare = draw(st.sampled_from([0, 0, 0, 1, 5]))  # of a static cache
    short = draw(st.sampled_from([0, 0, 0, past]))  # a mask over the entering tokens alone
    width = past + length + spare - (short if not spare else 0)
    kind = draw(st.sampled_from(["left", "right", "both", "holes", "none", "all"]))
    mask = np.ones((rows, width), dtype=np.int64)
    for row in mask:
        if kind in ("left", "both"):
            row[: draw(st.integers(0, width))] = 0
        if kind in ("right", "both"):
            row[draw(st.integers(0, width)) :] = 0
        if kind == "holes":
            row[:] = draw(st.lists(st.integers(0, 1), min_size=width, max_size=width))
        if kind == "all":
            row[:] = 0
    return mask, past, length


@examples(400)
@given(drawn=masks(), kind=st.sampled_from(KINDS), name=st.sampled_from(["cache", ""]))
def test_any_mask_is_counted(
    drawn: tuple[np.ndarray[Any, Any], int, int], kind: torch.dtype, name: str
) -> None:
    mask, past, length = drawn
    call: dict[str, Any] = {
        "input_ids": torch.zeros(len(mask), length, dtype=torch.long),
        "attention_mask": torch.from_numpy(mask).to(kind),
        name or "past_key_values": SimpleNamespace(get_seq_length=lambda: past),
    }
    found = token_positions(call)
    assert found.dtype == torch.int64
    wanted = counted(mask, past, length)
    # What is padding is negative; how far below zero is of no meaning.
    assert found.clamp_min(-1).tolist() == wanted
    del call["attention_mask"]
    assert token_positions(call).tolist() == [list(range(past, past + length))]


@examples(100)
@given(
    rows=st.integers(1, 3),
    length=st.integers(1, 5),
    more=st.integers(0, 3),
    axes=st.integers(1, 3),
    data=st.data(),
)
def test_given_positions_are_taken_as_they_are(
    rows: int, length: int, more: int, axes: int, data: st.DataObject
) -> None:
    width = length + more
    numbers = st.lists(st.integers(-2, 600), min_size=rows * width, max_size=rows * width)
    flat = torch.tensor(data.draw(numbers)).reshape(rows, width)
    mask, past, _ = data.draw(masks())
    call = {
        "input_ids": torch.zeros(rows, length, dtype=torch.long),
        "attention_mask": torch.from_numpy(mask),
        "cache": SimpleNamespace(get_seq_length=lambda: past),
    }
    wanted = flat[:, more:].tolist()
    stacked = flat.expand(axes, rows, width)
    assert token_positions(call | {"position_ids": flat}).tolist() == wanted
    assert token_positions(call | {"position_ids": stacked}).tolist() == wanted
    assert token_positions(call | {"position_ids": flat[0]}).tolist() == wanted[:1]


# -- on a model ------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, TABLE + 5), min_size=1, max_size=4)


@examples(100)
@given(lengths=LENGTHS, form=st.sampled_from(list(FORMS)), further=st.integers(0, 3))
def test_left_padding_changes_no_row(lengths: list[int], form: str, further: int) -> None:
    rows = [tokens(1, n, seed=i)[0] for i, n in enumerate(lengths)]
    batch = left_padded(rows)
    if further:  # padding that no row needs
        pad = torch.full((len(rows), further), 258)
        batch = {
            "input_ids": torch.cat([pad, batch["input_ids"]], 1),
            "attention_mask": torch.cat([torch.zeros_like(pad), batch["attention_mask"]], 1),
        }
    with attach(model(), surgery(form)):
        found = model()(**batch).logits
        for k, row in enumerate(rows):
            close(found[k, -len(row) :], model()(input_ids=row[None]).logits[0])


@examples(100)
@given(
    lengths=LENGTHS,
    names=st.lists(st.sampled_from(["a", "b", "c", BASE]), min_size=4, max_size=4),
    data=st.data(),
)
def test_rows_may_be_put_in_any_order(
    lengths: list[int], names: list[str], data: st.DataObject
) -> None:
    rows = [tokens(1, n, seed=i)[0] for i, n in enumerate(lengths)]
    names = names[: len(rows)]
    order = data.draw(st.permutations(range(len(rows))))
    batch = left_padded(rows)
    adapters = {"a": surgery("darts"), "b": surgery("add", 1), "c": surgery("linear", 2)}
    with attach(model(), adapters) as handle:
        with handle.rows(names):
            found = model()(**batch).logits
        with handle.rows([names[i] for i in order]):
            moved = model()(**{k: v[order] for k, v in batch.items()}).logits
        real = batch["attention_mask"].bool()
        close(moved[real[order]], found[order][real[order]])
        for k, name in enumerate(names):
            handle.set_adapter(name)
            close(found[k][real[k]], model()(input_ids=rows[k][None]).logits[0])
