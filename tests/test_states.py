"""States: what is captured is the final norm's output, and files hold what was written."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from surgekit.errors import InputError, MismatchError, NotFiniteError
from surgekit.files import CHECKSUM
from surgekit.models.anatomy import Head, find_anatomy
from surgekit.models.fingerprint import fingerprint
from surgekit.states.capture import capture
from surgekit.states.heads import load_head, save_head
from surgekit.states.prompts import TokenizedPrompts, pack_tokens
from surgekit.states.states import States, check_same_tokens, load_states, save_states

from .oracle import entropy
from .tiny import HIDDEN, VOCABULARY, llama

LENGTHS = (7, 1, 30, 7, 2, 16, 3)
"""Of the sequences: unordered, with repeats and a single token."""


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return llama(3)


@pytest.fixture(scope="module")
def tokens() -> TokenizedPrompts:
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(0, 256, (n,), generator=generator) for n in LENGTHS]
    return pack_tokens(rows, [max(1, n // 2) for n in LENGTHS], cut=1)


@pytest.fixture(scope="module")
def by_hand(model: LlamaForCausalLM, tokens: TokenizedPrompts) -> tuple[Tensor, Tensor]:
    """(N, d) what the final norm gives and (N, V) logits, one unpadded sequence at a time."""
    hidden: list[Tensor] = []
    logits: list[Tensor] = []
    hook = model.model.norm.register_forward_hook(lambda m, a, out: hidden.append(out[0]))
    try:
        with torch.no_grad():
            for i in range(len(tokens)):
                logits.append(model(input_ids=tokens.sequence(i)[None]).logits[0])
    finally:
        hook.remove()
    return torch.cat(hidden), torch.cat(logits)


# --- capture ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 100])
def test_capture_is_the_final_norm_in_order(
    model: LlamaForCausalLM,
    tokens: TokenizedPrompts,
    by_hand: tuple[Tensor, Tensor],
    batch_size: int,
) -> None:
    done: list[int] = []
    states = capture(
        model,
        tokens,
        entropies=True,
        batch_size=batch_size,
        dtype=torch.float32,
        progress=done.append,
    )
    assert states.hidden.dtype == torch.float32
    assert float((states.hidden - by_hand[0]).abs().max()) <= 1e-5
    assert states.entropies is not None
    wanted = entropy(by_hand[1].double().numpy())
    np.testing.assert_allclose(states.entropies.numpy(), wanted, atol=1e-4)
    assert wanted.std() > 0.05  # entropies that differ, or order would not show
    assert states.tokens is tokens
    assert (states.model, states.batch_size) == (fingerprint(model), batch_size)
    assert sum(done) == sum(LENGTHS)
    assert len(done) == -(-len(LENGTHS) // batch_size)


def test_states_are_kept_in_the_type_asked_for(
    model: LlamaForCausalLM, tokens: TokenizedPrompts, by_hand: tuple[Tensor, Tensor]
) -> None:
    states = capture(model, tokens, batch_size=3, model_fingerprint="known")
    assert states.hidden.dtype == torch.bfloat16
    assert states.entropies is None
    assert states.model == "known"
    torch.testing.assert_close(states.hidden.float(), by_hand[0], rtol=1 / 128, atol=1e-6)


def test_no_sequences_give_no_states(model: LlamaForCausalLM) -> None:
    states = capture(model, pack_tokens([], []), entropies=True)
    assert (len(states.hidden), len(states.tokens)) == (0, 0)


def test_a_model_gone_wrong_is_named_with_the_prompt(tokens: TokenizedPrompts) -> None:
    for value in (float("nan"), float("inf")):
        broken = llama(3)
        broken.model.embed_tokens.weight[300] = value
        rows = [tokens.sequence(i).tolist() for i in range(len(tokens))]
        rows[4] = [5, 300]
        bad = pack_tokens(rows, [1] * len(rows))
        for batch_size in (1, 3, 100):
            with pytest.raises(NotFiniteError, match=r"NaN or infinite hidden states on prompt 4;"):
                capture(broken, bad, batch_size=batch_size)


def test_states_too_large_for_their_type_are_not_kept(tokens: TokenizedPrompts) -> None:
    loud = llama(3)
    loud.model.norm.weight.fill_(1e6)
    with pytest.raises(NotFiniteError, match="prompt"):
        capture(loud, tokens, dtype=torch.float16)
    assert capture(loud, tokens).hidden.isfinite().all()


@pytest.mark.parametrize("token", [VOCABULARY, 10**6, -1])
def test_tokens_outside_the_vocabulary(model: LlamaForCausalLM, token: int) -> None:
    bad = pack_tokens([[1, 2], [3, token]], [1, 1])
    with pytest.raises(InputError, match=f"token id {token} is outside .* of {VOCABULARY}"):
        capture(model, bad)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batches_of_nothing(
    model: LlamaForCausalLM, tokens: TokenizedPrompts, batch_size: int
) -> None:
    with pytest.raises(InputError, match="batch_size"):
        capture(model, tokens, batch_size=batch_size)


# --- states in memory ---------------------------------------------------------------------------


def made(rows: int = 3, entropies: bool = True, dtype: torch.dtype = torch.bfloat16) -> States:
    lengths = [2 + i % 3 for i in range(rows)]
    generator = torch.Generator().manual_seed(rows)
    ids = [torch.randint(0, 300, (n,), generator=generator) for n in lengths]
    tokens = pack_tokens(ids, [1 + i % 2 for i in range(rows)], cut=2)
    count = sum(lengths)
    hidden = torch.randn(count, 8, generator=generator).to(dtype)
    values = torch.rand(count, generator=generator) if entropies else None
    return States(hidden, tokens, values, "sf1-abc", 4)


def test_select_takes_sequences_in_the_order_asked_for() -> None:
    states = made(5)
    picked = states.select([3, 0, 3])
    bounds = states.tokens.offsets.tolist()
    parts = [states.hidden[bounds[i] : bounds[i + 1]] for i in (3, 0, 3)]
    assert torch.equal(picked.hidden, torch.cat(parts))
    assert states.entropies is not None
    assert picked.entropies is not None
    wanted = [states.entropies[bounds[i] : bounds[i + 1]] for i in (3, 0, 3)]
    assert torch.equal(picked.entropies, torch.cat(wanted))
    assert torch.equal(picked.tokens.ids, states.tokens.select([3, 0, 3]).ids)
    assert states.select(list(range(5))) is states
    assert len(states.select([]).hidden) == 0


def test_states_must_belong_to_their_tokens() -> None:
    states = made(3)
    with pytest.raises(MismatchError, match=r"need \(9, d\) hidden states, found \(8, 8\)"):
        States(states.hidden[:-1], states.tokens)
    with pytest.raises(MismatchError, match="expected 9 entropies"):
        States(states.hidden, states.tokens, torch.ones(3))
    with pytest.raises(MismatchError, match="hidden sizes differ"):
        check_same_tokens(states, States(states.hidden[:, :4], states.tokens), "math")
    with pytest.raises(MismatchError, match="math: the two states are not of the same tokens"):
        check_same_tokens(states, made(4), "math")
    check_same_tokens(states, made(3), "math")


# --- states on disk -----------------------------------------------------------------------------


def same(a: States, b: States) -> bool:
    pairs = [
        (a.hidden, b.hidden),
        (a.tokens.ids, b.tokens.ids),
        (a.tokens.offsets, b.tokens.offsets),
        (a.tokens.response_starts, b.tokens.response_starts),
    ]
    if a.entropies is not None and b.entropies is not None:
        pairs.append((a.entropies, b.entropies))
    alike = all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)
    facts = [(s.model, s.batch_size, s.tokens.cut, s.entropies is None) for s in (a, b)]
    return alike and facts[0] == facts[1]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 6),
    entropies=st.booleans(),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
def test_states_come_back_as_written(
    tmp_path: Path, rows: int, entropies: bool, dtype: torch.dtype
) -> None:
    states = made(rows, entropies, dtype)
    save_states(states, tmp_path / "new" / "s.safetensors")
    assert same(load_states(tmp_path / "new" / "s.safetensors"), states)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["s.safetensors"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good states file."""
    path = tmp_path_factory.mktemp("whole") / "s.safetensors"
    save_states(made(4), path)
    return path.read_bytes()


def damaged(folder: Path, content: bytes) -> States | None:
    """What is read of such a file; None where it is refused as it should be."""
    path = folder / "damaged.safetensors"
    path.write_bytes(content)
    try:
        return load_states(path)
    except InputError as error:
        assert str(path) in str(error) or "states: " in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        return None


def test_a_truncated_file_is_refused(whole: bytes, tmp_path: Path) -> None:
    for length in range(len(whole)):
        assert damaged(tmp_path, whole[:length]) is None
    assert damaged(tmp_path, whole + b"x") is None
    assert damaged(tmp_path, whole) is not None


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_the_same(
    whole: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(whole)
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        # Most hits go to the header, which is where readers break.
        end = data.draw(st.sampled_from([8, header, header, header, len(content)]))
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    states = damaged(tmp_path, bytes(content))
    if states is not None:  # what was hit is written in two ways: a blank, a letter's case
        assert same(states, made(4))


def rewritten(
    folder: Path, whole: bytes, metadata: dict[str, Any], **changes: Tensor | None
) -> Path:
    """The good file with other tensors (None: without), other metadata and no checksum."""
    path = folder / "rewritten.safetensors"
    path.write_bytes(whole)
    tensors: dict[str, Any] = dict(load_file(path)) | changes
    header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])["__metadata__"] | metadata
    kept = {k: v for k, v in header.items() if v is not None and k != CHECKSUM}
    save_file({k: v for k, v in tensors.items() if v is not None}, str(path), metadata=kept)
    return path


LONG = torch.tensor([0, 2, 5, 9, 11])
"""The offsets of the good file."""


@pytest.mark.parametrize(
    ("metadata", "changes", "said"),
    [
        ({"format": "2"}, {}, "expected states of format 1, found 2"),
        ({"format": None}, {}, "found none"),
        ({"cut": "many"}, {}, "number"),
        ({"batch_size": ""}, {}, "number"),
        ({}, {"offsets": None}, "'offsets' is missing"),
        ({}, {"ids": None}, "'ids' is missing"),
        ({}, {"response_starts": None}, "'response_starts' is missing"),
        ({}, {"hidden": None}, "hidden"),
        ({}, {"hidden": torch.zeros(11, 8, dtype=torch.int32)}, "floating-point"),
        ({}, {"hidden": torch.zeros(10, 8)}, "11 tokens need"),
        ({}, {"hidden": torch.zeros(11)}, "11 tokens need"),
        ({}, {"entropies": torch.zeros(4)}, "expected 11 entropies"),
        ({}, {"ids": torch.zeros(11, dtype=torch.int64)}, "'ids' should be torch.int32"),
        ({}, {"offsets": LONG[None].clone()}, "'offsets' should be"),
        ({}, {"offsets": LONG + 1}, "offsets do not fit"),
        ({}, {"offsets": LONG[:-1].clone()}, "offsets do not fit"),
        ({}, {"offsets": torch.tensor([0, 5, 2, 9, 11])}, "offsets do not fit"),
        ({}, {"offsets": torch.tensor([0, 2, 2, 9, 11])}, "offsets do not fit"),
        (
            {},
            {
                "offsets": torch.tensor([0, 2, 2, 9, 11]),
                "response_starts": torch.tensor([1, 0, 1, 1]),
            },
            "offsets do not fit",
        ),
        ({}, {"offsets": torch.empty(0, dtype=torch.int64)}, "offsets do not fit"),
        ({}, {"response_starts": torch.ones(3, dtype=torch.int64)}, "offsets do not fit"),
        ({}, {"response_starts": torch.full((4,), 9)}, "offsets do not fit"),
        ({}, {"response_starts": torch.full((4,), -1)}, "offsets do not fit"),
    ],
)
def test_a_file_of_another_form_is_refused(
    whole: bytes, tmp_path: Path, metadata: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    assert damaged(tmp_path, rewritten(tmp_path, whole, {}).read_bytes()) is not None
    with pytest.raises(InputError, match=said):
        load_states(rewritten(tmp_path, whole, metadata, **changes))


def test_files_that_are_no_states(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="states not found"):
        load_states(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="states not found"):
        load_states(tmp_path)
    for content in (b"", b"{}", b"\xff" * 100, b"PK\x03\x04"):
        assert damaged(tmp_path, content) is None


# --- heads on disk ------------------------------------------------------------------------------


def test_heads_come_back(model: LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "h.safetensors"
    found = find_anatomy(model)[1]
    heads = [found, Head(torch.randn(9, 4).bfloat16(), torch.randn(9), 0.25, 30.0)]
    for head in heads:
        save_head(head, path)
        again = load_head(path)
        assert torch.equal(again.weight, head.weight)
        assert again.weight.dtype == head.weight.dtype
        assert (again.scale, again.softcap) == (head.scale, head.softcap)
        hidden = torch.randn(3, head.weight.shape[1])
        assert torch.equal(again.logits(hidden), head.logits(hidden))
    assert found.weight.shape == (VOCABULARY, HIDDEN)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="head"):
        load_head(path)
    save_states(made(2), path)
    with pytest.raises(InputError, match="not a head that surgekit wrote"):
        load_head(path)
