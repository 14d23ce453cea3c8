"""Losses, gradients, entropies and heads against the oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surgekit.errors import InputError
from surgekit.models.anatomy import Head
from surgekit.states.entropy import next_token_entropies
from surgekit.surgery.config import EntropyMean
from surgekit.surgery.losses import ce_loss, entropy_weights, kl_loss, l1_loss
from surgekit.surgery.modules import SurgeryModule

from . import oracle
from .synthetic import heads, numbers, parameters, random_module, whole

N, D, R, T, V = 40, 6, 3, 5, 13
OFFSETS = [0, 7, 8, 20, N]
# Rows used several times, one never (3), and tokens outside the table on either side.
POSITIONS = torch.tensor([0, 1, 2, 4, T, 9, -1, 2, 0, -T] * 4)
PROPERTY = settings(max_examples=80, deadline=None, derandomize=True, database=None)

MODULES = [(name, R if "down" in names else None) for name, names in oracle.MODULES.items()]
SCOPES: list[EntropyMean] = ["dataset", "sequence", "batch"]
LOSSES = [
    ("l1", ""),
    *[("ewl1", scope) for scope in SCOPES],
    *[(loss, head) for loss in ("kl", "ce") for head in ("plain", "full")],
]


def states(seed: int = 0, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    """Merged and expert states in float64, and the expert's entropies."""
    generator = torch.Generator().manual_seed(seed)
    merged = torch.randn(n, D, generator=generator, dtype=torch.float64)
    shift = torch.randn(n, D, generator=generator, dtype=torch.float64)
    entropies = torch.rand(n, generator=generator, dtype=torch.float64) * 3
    return merged, merged + 0.5 * shift, entropies


def both_losses(
    loss: str, variant: str, expert: Tensor, entropies: Tensor, corrected: Tensor
) -> tuple[Tensor, oracle.ValueAndGrad]:
    """The package's loss of ``corrected``, and the oracle's as a function."""
    if loss == "l1":
        return l1_loss(corrected, expert), oracle.make_loss("l1", numbers(expert))
    if loss == "ewl1":
        scope = next(s for s in SCOPES if s == variant)
        ours = entropy_weights(entropies, torch.tensor(OFFSETS), scope)
        theirs = oracle.entropy_weights(numbers(entropies), OFFSETS, scope)
        return l1_loss(corrected, expert, ours), oracle.make_loss("ewl1", numbers(expert), theirs)
    head, reference = heads(D, V, full=variant == "full")
    through = kl_loss if loss == "kl" else ce_loss
    return (
        through(corrected, expert, head),
        oracle.make_loss(loss, numbers(expert), head_fn=reference),
    )


def close(found: Tensor, wanted: oracle.Array, relative: float) -> bool:
    """Equal up to a part of the largest entry."""
    assert tuple(found.shape) == wanted.shape
    size = np.abs(wanted).max()
    assert size > 1e-4, "nothing to compare"
    return bool(np.abs(numbers(found) - wanted).max() <= relative * size)


@pytest.mark.parametrize(("name", "rank"), MODULES)
@pytest.mark.parametrize(("loss", "variant"), LOSSES)
@pytest.mark.parametrize("seed", [0, 1])
def test_value_and_gradients(
    name: str, rank: int | None, loss: str, variant: str, seed: int
) -> None:
    module = random_module(name, D, rank, positions=T, seed=seed)
    merged, expert, entropies = states(seed)
    corrected = module(merged, POSITIONS)
    value, reference = both_losses(loss, variant, expert, entropies, corrected)
    value.backward()
    params = parameters(module)
    z, at = numbers(merged), whole(POSITIONS)
    assert value.item() == pytest.approx(
        reference(oracle.correct(name, params, z, at))[0], rel=1e-10
    )
    wanted = oracle.gradients(name, params, z, at, reference)
    found = dict(module.named_parameters())
    assert set(found) == set(wanted)
    for key, parameter in found.items():
        assert parameter.grad is not None
        assert close(parameter.grad, wanted[key], 1e-9), key
    if "table" in found:
        assert found["table"].grad is not None
        assert not found["table"].grad[3].any()  # no token stands at position 3


@pytest.mark.parametrize("name", ["darts", "parallel"])
@pytest.mark.parametrize(("loss", "variant"), LOSSES)
def test_value_and_gradients_in_single_precision(name: str, loss: str, variant: str) -> None:
    """The precision that training runs in."""
    module = random_module(name, D, R, positions=T).float()
    merged, expert, entropies = (x.float() for x in states())
    value, reference = both_losses(loss, variant, expert, entropies, module(merged, POSITIONS))
    assert value.dtype == torch.float32
    value.backward()
    params, z, at = parameters(module), numbers(merged), whole(POSITIONS)
    assert value.item() == pytest.approx(
        reference(oracle.correct(name, params, z, at))[0], rel=1e-5
    )
    wanted = oracle.gradients(name, params, z, at, reference)
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert close(parameter.grad, wanted[key], 1e-5), key


def test_the_gradient_scales_with_what_comes_from_above() -> None:
    merged, expert, _ = states()
    head, _ = heads(D, V, full=True)
    grads = []
    for factor in (1.0, -3.0):
        leaf = merged.clone().requires_grad_()
        (factor * kl_loss(leaf, expert, head)).backward()
        assert leaf.grad is not None
        grads.append(leaf.grad)
    assert torch.allclose(grads[1], -3.0 * grads[0], rtol=1e-12)


def test_bounds_of_the_head_losses() -> None:
    merged, expert, _ = states()
    head, reference = heads(D, V, full=True)
    leaf = expert.clone().requires_grad_()
    loss = kl_loss(leaf, expert, head)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-14)
    assert leaf.grad is not None
    assert float(leaf.grad.abs().max()) <= 1e-14
    assert float(kl_loss(merged, expert, head)) > 0
    least = oracle.log_softmax(reference(numbers(merged))).max(axis=1).mean()
    assert float(ce_loss(merged, expert, head)) >= -least


# -- Chunks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched(Head):
    """A head that notes the shape of all logits it is asked for."""

    seen: list[tuple[int, int]] = field(default_factory=list)

    def logits(self, hidden: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        out = super().logits(hidden, start, stop)
        self.seen.append((out.shape[0], out.shape[1]))
        return out


@pytest.mark.parametrize("loss", ["kl", "ce"])
@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_more_tokens_than_a_chunk(loss: str, count: int) -> None:
    merged, expert, _ = states(n=count)
    head, reference = heads(D, V, full=True)
    watched = Watched(head.weight, head.bias, head.scale, head.softcap)
    leaf = merged.clone().requires_grad_()
    value = (kl_loss if loss == "kl" else ce_loss)(leaf, expert, watched)
    value.backward()
    wanted, grad = oracle.make_loss(loss, numbers(expert), head_fn=reference)(numbers(merged))
    assert value.item() == pytest.approx(wanted, rel=1e-10)
    assert leaf.grad is not None
    assert close(leaf.grad, grad, 1e-9)
    rows = [n for n, _ in watched.seen]
    assert sum(rows) == 2 * count  # each token once for either side, and never again
    assert max(rows) <= 256


# -- Entropy weights ----------------------------------------------------------------------------


@PROPERTY
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
    scope=st.sampled_from(SCOPES),
    data=st.data(),
)
def test_entropy_weights(lengths: list[int], scope: EntropyMean, data: st.DataObject) -> None:
    count = sum(lengths)
    values = data.draw(st.lists(st.floats(1e-3, 12), min_size=count, max_size=count))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    entropies = torch.tensor(values, dtype=torch.float64)
    found = entropy_weights(entropies, torch.from_numpy(offsets), scope)
    wanted = oracle.entropy_weights(numbers(entropies), offsets, scope)
    assert np.allclose(numbers(found), wanted, rtol=1e-12, atol=0)
    assert float(found.mean()) == pytest.approx(1, rel=1e-12)


def test_a_certain_expert_gives_no_weights() -> None:
    entropies, offsets = torch.tensor([1.0, 2.0, 0.0, 0.0]), torch.tensor([0, 2, 4])
    assert entropy_weights(entropies, offsets, "dataset").tolist() == pytest.approx(
        [4 / 3, 8 / 3, 0, 0]
    )
    with pytest.raises(InputError, match="positive mean entropy"):
        entropy_weights(entropies, offsets, "sequence")
    for scope in SCOPES:
        with pytest.raises(InputError, match="positive mean entropy"):
            entropy_weights(torch.zeros(4), offsets, scope)


# -- Entropies ----------------------------------------------------------------------------------


@PROPERTY
@given(
    count=st.integers(1, 9),
    vocabulary=st.integers(1, 40),
    token_chunk=st.integers(1, 12),
    vocabulary_chunk=st.integers(1, 45),
    full=st.booleans(),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_entropies_whatever_the_chunks(
    count: int,
    vocabulary: int,
    token_chunk: int,
    vocabulary_chunk: int,
    full: bool,
    spread: float,
    seed: int,
) -> None:
    head, reference = heads(D, vocabulary, full=full, seed=seed)
    watched = Watched(head.weight, head.bias, head.scale, head.softcap)
    hidden = spread * states(seed, count)[0]
    found = next_token_entropies(
        hidden, watched, token_chunk=token_chunk, vocabulary_chunk=vocabulary_chunk
    )
    assert found.dtype == torch.float64
    assert np.abs(numbers(found) - oracle.entropy(reference(numbers(hidden)))).max() <= 1e-10
    assert max(n for n, _ in watched.seen) <= token_chunk
    assert max(v for _, v in watched.seen) <= vocabulary_chunk
    assert sum(n * v for n, v in watched.seen) == count * vocabulary


@PROPERTY
@given(
    logits=st.lists(
        st.one_of(
            st.sampled_from([-1e4, 1e4, 0.0]), st.floats(-1e4, 1e4, width=32), st.floats(-4, 4)
        ),
        min_size=1,
        max_size=12,
    ),
    chunk=st.integers(1, 12),
    kind=st.sampled_from([torch.float32, torch.float64]),
)
def test_entropies_of_extreme_logits(logits: list[float], chunk: int, kind: torch.dtype) -> None:
    weight = torch.tensor(logits, dtype=kind)[:, None]  # width 1 and state 1: logits as given
    found = next_token_entropies(torch.ones(2, 1, dtype=kind), Head(weight), vocabulary_chunk=chunk)
    wanted = float(oracle.entropy(numbers(weight).T)[0])
    assert bool(torch.isfinite(found).all())
    assert bool((found >= 0).all())
    assert float(found[0]) == pytest.approx(wanted, abs=2e-6 if kind == torch.float32 else 1e-10)
    assert float(found[0]) == float(found[1])


def test_entropies_by_hand() -> None:
    cases = [
        ([1e4, 1e4], math.log(2)),
        ([-1e4, 1e4], 0.0),
        ([-1e4, -1e4, -1e4], math.log(3)),
        ([0.0, math.log(3)], 2 * math.log(2) - 0.75 * math.log(3)),  # 1/4 and 3/4
        ([5.0], 0.0),
    ]
    for logits, wanted in cases:
        for chunk in (1, 2, 8):
            found = next_token_entropies(
                torch.ones(1, 1), Head(torch.tensor(logits)[:, None]), vocabulary_chunk=chunk
            )
            assert found.dtype == torch.float32
            assert float(found) == pytest.approx(wanted, abs=1e-6)


def test_default_chunks_bound_what_exists_at_once() -> None:
    watched = Watched(torch.randn(20_000, 2))
    found = next_token_entropies(torch.randn(300, 2), watched)
    assert found.shape == (300,)
    assert max(n for n, _ in watched.seen) <= 256
    assert max(v for _, v in watched.seen) <= 16_384
    assert next_token_entropies(torch.empty(0, 2), watched).shape == (0,)


# -- Heads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_logits_of_a_head(full: bool) -> None:
    head, reference = heads(D, V, full=full)
    hidden = states()[0]
    wanted = reference(numbers(hidden))
    assert np.abs(numbers(head.logits(hidden)) - wanted).max() <= 1e-12
    assert np.abs(numbers(head.logits(hidden, 3, 7)) - wanted[:, 3:7]).max() <= 1e-12
    single = head.prepared().logits(hidden.float())
    assert single.dtype == torch.float32
    assert np.abs(numbers(single) - wanted).max() <= 1e-4


@pytest.mark.parametrize("full", [False, True])
def test_half_precision_heads_and_states_lose_nothing_on_the_way(full: bool) -> None:
    """The factors are bfloat16, the sums are not, whichever units do the products."""
    d, vocabulary = 256, 64
    wide, _ = heads(d, vocabulary, full=full)
    head = Head(
        wide.weight.bfloat16(),
        None if wide.bias is None else wide.bias.bfloat16(),
        wide.scale,
        wide.softcap,
    )
    bias = None if head.bias is None else numbers(head.bias)
    reference = oracle.Head(numbers(head.weight), bias, head.scale, head.softcap)
    hidden = torch.randn(32, d).bfloat16()
    wanted = reference(numbers(hidden))
    for ready in (head, head.prepared()):
        for entering in (hidden, hidden.float()):
            found = ready.logits(entering)
            assert found.dtype == torch.float32
            assert np.abs(numbers(found) - wanted).max() <= 1e-4
    # Neither a state nor a weight that is no bfloat16 value may be rounded to one.
    unrounded = replace(wide, weight=wide.weight.float(), bias=None).prepared()
    exact = oracle.Head(numbers(unrounded.weight), None, wide.scale, wide.softcap)
    assert np.abs(numbers(unrounded.logits(hidden)) - exact(numbers(hidden))).max() <= 1e-4
    fine = hidden.float() * 1.001
    assert np.abs(numbers(head.prepared().logits(fine)) - reference(numbers(fine))).max() <= 1e-4
    found = next_token_entropies(hidden, head)
    assert np.abs(numbers(found) - oracle.entropy(wanted)).max() <= 1e-4


def test_losses_leave_a_module_free_to_be_trained() -> None:
    """One step of gradient descent lowers each head loss: its sign is right through the module."""
    head, _ = heads(D, V, full=True)
    merged, expert, _ = states()
    for through in (kl_loss, ce_loss):
        module: SurgeryModule = random_module("darts", D, R, positions=T)
        before = through(module(merged, POSITIONS), expert, head)
        before.backward()
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter -= 1e-2 * parameter.grad
            after = through(module(merged, POSITIONS), expert, head)
        assert after.item() < before.item()
