"""Bias, fidelity and statistics against the oracle and against cases worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surgekit.bias import MEASURES, Bias, TokenBias, correct, measure_bias, token_bias
from surgekit.errors import InputError, MismatchError, NotFiniteError
from surgekit.fidelity import (
    ENTROPY_EDGES,
    METRICS,
    Candidate,
    Fidelity,
    measure_fidelity,
    recovered_share,
    scored_tokens,
)
from surgekit.models.anatomy import Head
from surgekit.states.entropy import next_token_entropies
from surgekit.states.prompts import TextPart, pack_tokens
from surgekit.states.states import States

from . import oracle
from .oracle import Array, Ints
from .synthetic import FORMS, arrays, fit_states, heads, numbers, pair, parameters, random_module
from .synthetic import tokens as make_tokens

D, V = 8, 20
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True, database=None)


# -- Bias ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["prompt", "response", "both"])
def test_bias_equals_the_oracle(text: TextPart) -> None:
    merged, expert = fit_states()
    z, y, at, _ = arrays(merged, expert, text)
    found = measure_bias(merged, expert, text=text)
    wanted = oracle.bias(z, y)
    assert found.positions.tolist() == at.tolist()
    for name in MEASURES:
        values = numbers(getattr(found.tokens, name))
        assert values == pytest.approx(wanted[name], rel=1e-5), name
        assert found.mean()[name] == pytest.approx(float(wanted[name].mean()), rel=1e-5)


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_bias_after_surgery(form: str, rank: int | None) -> None:
    text = make_tokens([9, 4, 7])
    merged, expert = pair(text, D, drift=0.3, dtype=torch.float64)
    module = random_module(form, D, rank)
    z, y, at, _ = arrays(merged, expert)
    wanted = oracle.bias(oracle.correct(form, parameters(module), z, at), y)
    found = measure_bias(merged, expert, module)
    for name in MEASURES:
        assert numbers(getattr(found.tokens, name)) == pytest.approx(wanted[name], rel=1e-9)


def test_bias_by_hand() -> None:
    z = torch.tensor([[1.0, -2.0], [0.0, 3.0], [2.0, 0.0]])
    y = torch.tensor([[0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    found = token_bias(z, y)
    assert found.l1.tolist() == [2.5, 0.0, 3.0]  # (1 + 4) / 2, nothing, (2 + 4) / 2
    assert found.relative.tolist() == [2.5, 0.0, 1.5]  # 5 / 2, nothing, 6 / 4
    assert found.cosine.tolist() == pytest.approx([-2 / math.sqrt(5), 1.0, 0.0])
    assert token_bias(z[:0], y[:0]).l1.shape == (0,)


def test_more_tokens_than_a_chunk() -> None:
    count = 8192 + 5
    z, y = torch.randn(count, 3), torch.randn(count, 3)
    wanted = oracle.bias(numbers(z), numbers(y))
    found = token_bias(z, y)
    for name in MEASURES:
        assert (
            np.abs(numbers(getattr(found, name)) - wanted[name]).max()
            <= 1e-5 * np.abs(wanted[name]).max()
        )
    module = random_module("darts", 3, 2).float()
    at = torch.arange(count) % 9
    with torch.no_grad():
        assert torch.equal(correct(module, z, at), module(z, at))
    assert correct(module, z[:0], at[:0]).shape == (0, 3)


@PROPERTY
@given(
    positions=st.lists(st.integers(0, 700), min_size=1, max_size=40),
    width=st.one_of(st.integers(1, 40), st.just(1000)),
    seed=st.integers(0, 9),
)
def test_bins_of_positions_make_up_the_whole(positions: list[int], width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(3, len(positions), generator=generator)
    found = Bias(TokenBias(*values), torch.tensor(positions))
    rows = found.by_position(width)
    assert sum(row["tokens"] for row in rows) == len(positions)
    assert [row["start"] for row in rows] == sorted({t // width * width for t in positions})
    for row in rows:
        inside = [i for i, t in enumerate(positions) if row["start"] <= t < row["stop"]]
        assert row["stop"] - row["start"] == width
        assert row["tokens"] == len(inside)
        for name, value in zip(MEASURES, values, strict=True):
            assert row[name] == pytest.approx(float(value[inside].mean()), rel=1e-5)
    for name in MEASURES:
        together = sum(row["tokens"] * row[name] for row in rows) / len(positions)
        assert together == pytest.approx(found.mean()[name], rel=1e-5)


def test_bias_that_cannot_be_measured() -> None:
    merged, expert = fit_states()
    with pytest.raises(InputError, match="at least 1, found 0"):
        measure_bias(merged, expert).by_position(0)
    with pytest.raises(MismatchError, match=r"^math: .*not of the same tokens"):
        measure_bias(
            merged, replace(expert, tokens=pack_tokens([expert.tokens.ids], [36])), domain="math"
        )
    with pytest.raises(MismatchError, match=r"^math: hidden sizes differ"):
        measure_bias(merged, replace(expert, hidden=expert.hidden[:, 1:]), domain="math")
    bare, other = pair(make_tokens([3]), D)
    with pytest.raises(InputError, match=r"^math: .*'response' tokens"):
        measure_bias(bare, other, text="response", domain="math")
    spoiled = merged.hidden.clone()
    spoiled[4, 2] = float("nan")
    with pytest.raises(NotFiniteError, match=r"^math"):
        measure_bias(replace(merged, hidden=spoiled), expert, domain="math")


# -- Scored tokens ------------------------------------------------------------------------------


def test_scored_tokens_by_hand() -> None:
    text = pack_tokens([[1, 2, 3, 4, 5], [6, 7, 8, 9], [10], [11, 12]], [3, 4, 1, 1])
    # Predicting 4 and 5; predicting 7, 8 and 9, without a response; nothing; predicting 12.
    assert scored_tokens(text).nonzero()[:, 0].tolist() == [2, 3, 5, 6, 7, 10]
    targets = text.targets()[scored_tokens(text)]
    assert targets.tolist() == [4, 5, 7, 8, 9, 12]


@PROPERTY
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5))
def test_scored_tokens_one_prompt_at_a_time(shapes: list[tuple[int, int]]) -> None:
    text = make_tokens([n for n, _ in shapes], [min(n, start) for n, start in shapes])
    wanted: list[bool] = []
    for length, start in shapes:
        first = start - 1 if start < length else 0
        wanted += [first <= t < length - 1 for t in range(length)]
    assert scored_tokens(text).tolist() == wanted


# -- Fidelity -----------------------------------------------------------------------------------


def scored(states: States) -> tuple[Array, Ints, Ints]:
    """(hidden, targets, prompts) of the scored tokens, by a loop."""
    rows: list[int] = []
    prompts: list[int] = []
    ends = states.tokens.offsets.tolist()
    for i, first in enumerate(states.tokens.response_starts.tolist()):
        begin = ends[i] + (first - 1 if first < ends[i + 1] - ends[i] else 0)
        here = list(range(begin, ends[i + 1] - 1))
        rows += here
        prompts += [i] * len(here)
    targets = states.tokens.ids.numpy()[[r + 1 for r in rows]]
    return numbers(states.hidden)[rows], targets, np.array(prompts)


def check(found: Fidelity, ours: Array, theirs: Array, targets: Ints, tolerance: float) -> None:
    """Token by token, and the means."""
    for i in range(len(targets)):
        wanted = oracle.fidelity(ours[i : i + 1], theirs[i : i + 1], targets[i : i + 1])
        for name in METRICS:
            value = float(getattr(found, name)[i])
            assert value == pytest.approx(wanted[name], abs=tolerance), (name, i)
    means = oracle.fidelity(ours, theirs, targets)
    assert found.mean() == pytest.approx(means, abs=tolerance)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), [(V, V), (V, V + 3), (V + 5, V)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_fidelity_equals_the_oracle(full: bool, ours: int, theirs: int, kind: torch.dtype) -> None:
    text = make_tokens([70, 3, 60, 1, 90, 2], [30, 3, 7, 1, 25, 1], vocabulary=V)
    merged, expert = pair(text, D, drift=0.3, dtype=kind)
    own, _ = heads(D, ours, full=full, seed=1)
    other, _ = heads(D, theirs, full=full, seed=2)
    # The heads share most of their rows, as a merged model's and its expert's do.
    common = min(ours, theirs)
    weight = other.weight.clone()
    weight[:common] = own.weight[:common] + 0.2 * weight[:common]
    other = replace(other, weight=weight)

    def cast(head: Head) -> tuple[Head, oracle.Head]:
        bias = None if head.bias is None else head.bias.to(kind)
        made = replace(head, weight=head.weight.to(kind), bias=bias)
        values = None if bias is None else numbers(bias)
        return made, oracle.Head(numbers(made.weight), values, made.scale, made.softcap)

    own, own_reference = cast(own)
    other, other_reference = cast(other)
    z, targets, prompts = scored(merged)
    y = scored(expert)[0]
    done: list[int] = []
    (found,) = measure_fidelity(
        expert, other, [Candidate(merged.hidden, own)], progress=done.append
    )
    check(found, own_reference(z), other_reference(y), targets, 1e-4)
    assert 0.2 < found.mean()["agreement"] < 1
    assert found.prompts.tolist() == prompts.tolist()
    assert sum(done) == len(targets) > 128  # more than a chunk
    assert expert.entropies is not None
    stored = expert.entropies[scored_tokens(expert.tokens)]
    assert torch.equal(found.entropies, stored)
    # Without stored entropies they are the expert's own, over its whole vocabulary.
    (again,) = measure_fidelity(
        replace(expert, entropies=None), other, [Candidate(merged.hidden, own)]
    )
    wanted = oracle.entropy(other_reference(y))
    assert np.abs(numbers(again.entropies) - wanted).max() <= 1e-5


def test_the_common_part_is_renormalised() -> None:
    """Expert (1/2, 1/4 | 1/4 of its own) and merged (1/3, 2/3): KL of (2/3, 1/3) to (1/3, 2/3)."""
    text = pack_tokens([[0, 1]], [1])
    one = torch.ones(2, 1)
    expert = States(one, text)
    theirs = Head(torch.tensor([[0.5], [0.25], [0.25]]).log())
    ours = Head(torch.tensor([[1 / 3], [2 / 3]]).log())
    (found,) = measure_fidelity(expert, theirs, [Candidate(one, ours)])
    assert found.kl.tolist() == pytest.approx([math.log(2) / 3], abs=1e-6)
    assert found.loss.tolist() == pytest.approx([-math.log(2 / 3)], abs=1e-6)
    assert found.agreement.tolist() == [0.0]
    # A token that only the expert has does not decide what it would say.
    theirs = Head(torch.tensor([[0.1], [0.2], [0.7]]).log())
    (found,) = measure_fidelity(expert, theirs, [Candidate(one, ours)])
    assert found.kl.tolist() == pytest.approx([0.0], abs=1e-6)
    assert found.agreement.tolist() == [1.0]


@pytest.mark.parametrize("full", [False, True])
def test_the_expert_against_itself(full: bool) -> None:
    _, expert = fit_states()
    head = heads(D, V, full=full)[0]
    (found,) = measure_fidelity(expert, head, [Candidate(expert.hidden, head)])
    assert float(found.kl.max()) <= 1e-6
    assert found.mean()["agreement"] == 1.0


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_candidates_are_judged_side_by_side(form: str, rank: int | None) -> None:
    text = make_tokens([90, 70], [20, 70])
    merged, expert = pair(text, D, drift=0.3)
    head, reference = heads(D, V, full=True)
    module = random_module(form, D, rank)
    corrected = correct(module, merged.hidden, text.positions())
    found = measure_fidelity(
        expert,
        head,
        [
            Candidate(merged.hidden, head),
            Candidate(merged.hidden, head, module),
            Candidate(corrected, head),
        ],
    )
    for name in METRICS:
        assert torch.equal(getattr(found[1], name), getattr(found[2], name))
    assert not torch.equal(found[0].kl, found[1].kl)
    z, targets, _ = scored(replace(merged, hidden=corrected))
    check(found[1], reference(z), reference(scored(expert)[0]), targets, 1e-4)


def test_fidelity_that_cannot_be_measured() -> None:
    _, expert = fit_states()
    head = heads(D, V, full=False)[0]
    with pytest.raises(InputError, match="math: 35 states for 36 tokens"):
        measure_fidelity(expert, head, [Candidate(expert.hidden[1:], head)], domain="math")
    single, _ = pair(make_tokens([1, 1]), D)
    with pytest.raises(InputError, match="math: no token to score"):
        measure_fidelity(single, head, [Candidate(single.hidden, head)], domain="math")
    spoiled = torch.full_like(expert.hidden, float("nan"))
    good = Candidate(expert.hidden, head)
    with pytest.raises(NotFiniteError, match=r"math: .* of the second"):
        measure_fidelity(
            expert, head, [good, Candidate(spoiled, head, name="the second")], domain="math"
        )
    small = Candidate(expert.hidden, heads(D, 5, full=False)[0], name="the small one")
    with pytest.raises(InputError, match=r"math: token id 1\d .* the small one, which has 5"):
        measure_fidelity(expert, head, [small], domain="math")


def made(entropies: list[float], **values: Tensor) -> Fidelity:
    count = len(entropies)
    parts = {name: torch.arange(count) / 7.0 for name in METRICS} | values
    prompts = torch.zeros(count, dtype=torch.long)
    return Fidelity(entropies=torch.tensor(entropies), **({"prompts": prompts} | parts))


@PROPERTY
@given(
    st.lists(
        st.one_of(st.floats(0, 12, width=32), st.sampled_from(ENTROPY_EDGES)),
        min_size=1,
        max_size=30,
    )
)
def test_bins_of_entropy_make_up_the_whole(entropies: list[float]) -> None:
    found = made(entropies)
    rows = found.by_entropy()
    assert sum(row["tokens"] for row in rows) == len(entropies)
    values = found.entropies.tolist()
    for row in rows:
        upper = math.inf if row["to"] is None else row["to"]
        inside = [i for i, h in enumerate(values) if row["from"] <= h < upper]
        assert row["tokens"] == len(inside)
        assert row["kl"] == pytest.approx(float(found.kl[inside].mean()), rel=1e-5)
    for name in METRICS:
        together = sum(row["tokens"] * row[name] for row in rows) / len(entropies)
        assert together == pytest.approx(found.mean()[name], rel=1e-5, abs=1e-7)


def test_sums_of_each_prompt() -> None:
    loss = torch.tensor([1.0, 2.0, 4.0, 8.0])
    found = made([0.0] * 4, loss=loss, prompts=torch.tensor([0, 0, 3, 3]))
    top, bottom = found.sums("loss")
    assert top.tolist() == [3.0, 12.0]  # prompts 1 and 2 have no scored token
    assert bottom.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("before", "after", "best", "share"),
    [
        (2.0, 1.0, 0.0, 0.5),
        (2.0, 2.0, 1.0, 0.0),
        (2.0, 1.0, 1.0, 1.0),
        (2.0, 0.5, 1.0, 1.5),  # past the expert
        (2.0, 3.0, 1.0, -1.0),  # worse than before
        (1.0, 0.5, 1.0, None),  # no gap
        (1.0, 0.5, 2.0, None),  # the merged model is the better one
    ],
)
def test_recovered_share(before: float, after: float, best: float, share: float | None) -> None:
    assert recovered_share(before, after, best) == share


def test_recovered_share_of_a_module_that_restores_the_expert() -> None:
    """Constant drift, and the shift that undoes it: all of the gap closes."""
    _, expert = pair(make_tokens([40, 30]), D, dtype=torch.float64)
    head = heads(D, V, full=False)[0]
    module = random_module("mean-shift", D)
    drifted = expert.hidden + module.get_parameter("shift").detach()
    before, after, itself = measure_fidelity(
        expert,
        head,
        [
            Candidate(drifted, head),
            Candidate(drifted, head, module),
            Candidate(expert.hidden, head),
        ],
    )
    kl = [f.mean()["kl"] for f in (before, after, itself)]
    assert recovered_share(*kl) == pytest.approx(1, abs=1e-5)


def test_entropies_of_fidelity_are_those_of_capture() -> None:
    _, expert = fit_states()
    head = heads(D, V, full=True)[0]
    bare = replace(expert, entropies=None)
    (found,) = measure_fidelity(bare, head, [Candidate(expert.hidden, head)])
    captured = next_token_entropies(expert.hidden, head)[scored_tokens(expert.tokens)]
    assert (found.entropies - captured).abs().max() <= 1e-5
