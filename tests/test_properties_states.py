"""States and heads under damage: what was written comes back, or nothing does."""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from surgekit.errors import InputError
from surgekit.files import CHECKSUM, read_tensors, write_tensors
from surgekit.models.anatomy import Head
from surgekit.states.heads import load_head, save_head
from surgekit.states.prompts import pack_tokens
from surgekit.states.states import States, load_states, save_states

from .damage import Damage, damaged, damages
from .examples import examples
from .invariants import bits, same_states, scratch, states_of

KINDS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@st.composite
def packed(draw: st.DrawFn) -> States:
    """Random states; sequences of one token, without response, and none at all among them."""
    lengths = draw(st.lists(st.integers(1, 6), max_size=5))
    # From 0, a text that is all response, to the length, one without.
    starts = [draw(st.integers(0, n)) for n in lengths]
    count, width = sum(lengths), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    rows = [torch.randint(0, 1 << 31, (n,), generator=generator) for n in lengths]
    hidden = torch.randn(count, width, generator=generator).to(draw(st.sampled_from(KINDS)))
    entropies = torch.rand(count, generator=generator) if draw(st.booleans()) else None
    return States(
        hidden,
        pack_tokens(rows, starts, cut=draw(st.integers(0, 9))),
        entropies,
        draw(st.text(max_size=6)),
        draw(st.integers(0, 99)),
    )


@examples(100)
@given(states=packed(), data=st.data())
def test_states_come_back_whole_and_in_parts(states: States, data: st.DataObject) -> None:
    with scratch() as folder:
        path = folder / "s.safetensors"
        save_states(states, path)
        assert same_states(load_states(path), states)
    count = len(states.tokens)
    order = data.draw(st.permutations(range(count)))
    place = data.draw(st.integers(0, count))
    parts = [states.select(order[:place]), states.select(order[place:])]
    joined = torch.cat([p.hidden for p in parts])
    assert bits(joined) == bits(states.select(order).hidden)
    back = [order.index(i) for i in range(count)]
    again = states.select(order).select(back)
    assert bits(again.hidden) == bits(states.hidden)
    assert bits(again.tokens.ids) == bits(states.tokens.ids)
    assert again.tokens.response_starts.tolist() == states.tokens.response_starts.tolist()


@cache
def sound_states() -> tuple[States, bytes]:
    tokens = pack_tokens([[1, 2, 3], [4], [5, 6]], [1, 1, 2], cut=1)
    hidden = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    states = States(hidden, tokens, torch.arange(6.0) / 3, "sf1-0", 2)
    with scratch() as folder:
        save_states(states, folder / "s")
        return states, (folder / "s").read_bytes()


@examples(200)
@given(changes=damages())
def test_damaged_states_are_refused_or_the_same(changes: list[Damage]) -> None:
    states, whole = sound_states()
    found = states_of(damaged(whole, changes))
    assert found is None or same_states(found, states)


def test_no_flipped_bit_of_states_goes_unnoticed() -> None:
    states, whole = sound_states()
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    for place in range(len(whole)):
        hit = bytearray(whole)
        hit[place] ^= 1 << place % 8
        found = states_of(bytes(hit))
        assert found is None or (place < start and same_states(found, states)), place


def test_a_damaged_name_does_not_switch_the_checksum_off(tmp_path: Path) -> None:
    # One flip in the checksum's name, one in the numbers: without its name nothing is verified.
    path = tmp_path / "x.safetensors"
    save_head(Head(torch.ones(4, 2)), path)
    for whole, load in ((sound_states()[1], load_states), (path.read_bytes(), load_head)):
        hit = bytearray(whole.replace(b'"sha256"', b'"sha257"'))
        hit[-1] ^= 1
        path.write_bytes(hit)
        with pytest.raises(InputError, match="unknown entry 'sha257'"):
            load(path)


@examples(100)
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    bias=st.booleans(),
    scale=st.floats(-1e6, 1e6),
    softcap=st.none() | st.floats(1e-6, 1e6),
    changes=damages(),
)
def test_heads_come_back_and_damaged_ones_do_not(
    rows: int,
    width: int,
    kind: torch.dtype,
    bias: bool,
    scale: float,
    softcap: float | None,
    changes: list[Damage],
) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, width, generator=generator).to(kind)
    head = Head(weight, torch.arange(float(rows)) if bias else None, scale, softcap)
    with scratch() as folder:
        path = folder / "h.safetensors"
        save_head(head, path)
        for content in (path.read_bytes(), damaged(path.read_bytes(), changes)):
            path.write_bytes(content)
            try:
                found = load_head(path)
            except InputError:
                continue
            assert bits(found.weight) == bits(weight)
            assert (found.bias is None) == (head.bias is None)
            assert found.bias is None or found.bias.tolist() == list(range(rows))
            assert (found.scale, found.softcap) == (scale, softcap)


@pytest.mark.parametrize(
    ("metadata", "changes"),
    [
        ({"scale": "nan"}, {}),
        ({"scale": "many"}, {}),
        ({"softcap": "-1.0"}, {}),
        ({"softcap": "0"}, {}),
        ({"softcap": "inf"}, {}),
        ({"sofcap": "3.0"}, {}),
        ({}, {"weight": torch.zeros(4)}),
        ({}, {"weight": torch.zeros(4, 2, dtype=torch.int32)}),
        ({}, {"bias": torch.zeros(3)}),
        ({}, {"bias": torch.zeros(4, 1)}),
        ({}, {"bais": torch.zeros(4)}),
    ],
)
def test_a_head_of_another_form_is_refused(
    metadata: dict[str, str], changes: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "h.safetensors"
    save_head(Head(torch.ones(4, 2)), path)
    kept = read_tensors(path, "head")[1]
    save_file(load_file(path) | changes, path, metadata=kept | metadata)
    with pytest.raises(InputError, match=r"not a head|unknown entry"):
        load_head(path)


def test_a_checksum_covers_names_types_shapes_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(6, dtype=torch.int32), "b": torch.zeros(2)}
    write_tensors(path, tensors, {"k": "v"})
    assert read_tensors(path, "tensors")[1] == {"k": "v"}
    whole = json.loads(path.read_bytes()[8 : 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]])
    kept = whole["__metadata__"]
    assert set(kept) == {"k", CHECKSUM}
    others: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"a": tensors["a"].view(2, 3), "b": tensors["b"]}, kept),
        ({"a": tensors["a"].view(torch.float32), "b": tensors["b"]}, kept),
        ({"b": tensors["a"], "a": tensors["b"]}, kept),
        ({"a": tensors["a"]}, kept),
        (tensors, kept | {"k": "w"}),
        (tensors, kept | {"l": "v"}),
        (tensors, kept | {CHECKSUM: kept[CHECKSUM].upper()}),
        (tensors, kept | {CHECKSUM: ""}),
    ]
    for changed, metadata in others:
        save_file(changed, path, metadata=metadata)
        with pytest.raises(InputError, match="damaged"):
            read_tensors(path, "tensors")
    save_file(tensors, path, metadata=kept)
    read_tensors(path, "tensors")
