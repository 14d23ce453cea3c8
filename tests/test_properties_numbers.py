"""Numbers: what holds of every fit, every figure and every fingerprint, whatever the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from surgekit.errors import InputError, NotFiniteError
from surgekit.fidelity import Candidate, measure_fidelity
from surgekit.models import fingerprint as fingerprints
from surgekit.models.anatomy import Head
from surgekit.models.fingerprint import fingerprint
from surgekit.states.prompts import TokenizedPrompts, pack_tokens
from surgekit.states.states import States
from surgekit.statistics import over_runs, ratio_interval
from surgekit.surgery.closed_form import RIDGE_GRID, LinearProblem, fit_linear, fit_mean_shift
from surgekit.surgery.config import CalibrationConfig, SurgeryConfig, TextPart
from surgekit.surgery.fit import calibrate

from . import oracle
from .examples import examples
from .synthetic import FORMS, config, numbers, parameters, random_module, whole

VOCABULARY = 11


@st.composite
def texts(draw: st.DrawFn, least: int = 1) -> TokenizedPrompts:
    """Packed sequences, some of one token, some without response."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=least, max_size=6))
    starts = [draw(st.integers(1, n)) for n in lengths]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    rows = [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in lengths]
    return pack_tokens(rows, starts)


def drawn(tokens: TokenizedPrompts, width: int, seed: int, size: float = 1.0) -> States:
    generator = torch.Generator().manual_seed(seed)
    count = len(tokens.ids)
    hidden = torch.randn(count, width, generator=generator) * size
    return States(hidden, tokens, torch.rand(count, generator=generator) + 0.01)


# -- modules ---------------------------------------------------------------------------------------


@examples(150)
@given(
    form=st.sampled_from(FORMS),
    width=st.integers(3, 12),
    rows=st.integers(1, 9),
    places=st.lists(st.integers(-3, 12), max_size=12),
    seed=st.integers(0, 99),
)
def test_any_size_of_any_form_equals_the_oracle(
    form: tuple[str, int | None], width: int, rows: int, places: list[int], seed: int
) -> None:
    module = random_module(form[0], width, form[1], positions=rows, seed=seed)
    positions = torch.tensor(places, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(len(places), width, generator=generator, dtype=torch.float64)
    wanted = oracle.correct(form[0], parameters(module), numbers(z), whole(positions))
    np.testing.assert_allclose(numbers(module(z, positions)), wanted, atol=1e-10)


# -- closed forms ----------------------------------------------------------------------------------


def objective(problem: LinearProblem, z: Tensor, y: Tensor, b: Tensor, c: Tensor) -> float:
    """Σ w ‖(I + B) z + c − y‖², what ``linear`` minimises beside its penalty."""
    left = z.double() @ (torch.eye(len(b)) + b).T + c - y.double()
    return float((problem.weights[:, None] * left.square()).sum())


@examples(150)
@given(
    tokens=texts(2),
    width=st.integers(1, 6),
    seed=st.integers(0, 99),
    gap=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    rule=st.sampled_from(["loo", "gcv", *RIDGE_GRID[::6]]),
    weighted=st.booleans(),
    rank=st.integers(1, 6),
)
def test_a_closed_form_is_never_worse_than_nothing_on_its_own_data(
    tokens: TokenizedPrompts,
    width: int,
    seed: int,
    gap: float,
    rule: str | float,
    weighted: bool,
    rank: int,
) -> None:
    z = drawn(tokens, width, seed)
    moved = drawn(tokens, width, seed + 1, gap)
    y = z.hidden + moved.hidden
    assume(len(z.hidden) > 1)
    weights = z.entropies if weighted else None
    problem = LinearProblem(z.hidden, y, weights, tokens.offsets)
    fit = fit_linear(problem, rule)
    zero, nothing = torch.zeros(width, width).double(), torch.zeros(width).double()
    before = objective(problem, z.hidden, y, zero, nothing)
    solutions = [(fit.weight, fit.offset), problem.solve(fit.ridge, min(rank, width))]
    for b, c in solutions:
        with_penalty = objective(problem, z.hidden, y, b, c) + fit.ridge * float(b.square().sum())
        assert with_penalty <= before * (1 + 1e-9) + 1e-12
    shift = fit_mean_shift(z.hidden, y)
    uniform = LinearProblem(z.hidden, y, None, tokens.offsets)
    before = objective(uniform, z.hidden, y, zero, nothing)
    assert objective(uniform, z.hidden, y, zero, -shift) <= before * (1 + 1e-9) + 1e-12


# -- what is not a number --------------------------------------------------------------------------

LOSSES: dict[str, Any] = {"standard": "l1", "darts": "ewl1", "add": "kl", "parallel": "ce"}


def fitted(name: str, z: States, y: States, text: TextPart) -> Any:
    """Two steps of training, or the closed form."""
    head = Head(torch.randn(VOCABULARY, z.hidden_size, generator=torch.Generator().manual_seed(1)))
    settings: dict[str, Any] = {"text": text, "iterations": 2, "seed": 1}
    if name in LOSSES:
        settings["loss"] = LOSSES[name]
    if name == "linear":
        settings["ridge"] = 0.1
    rank = 2 if name in LOSSES else None
    return calibrate(
        z,
        y,
        config(name, z.hidden_size, rank),
        calibration=CalibrationConfig(**settings),
        head=head,
        domain="algebra",
    )


@examples(200)
@given(
    name=st.sampled_from(["standard", "darts", "add", "parallel", "mean-shift", "table", "linear"]),
    tokens=texts(2),
    text=st.sampled_from(["prompt", "response", "both"]),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    where=st.sampled_from(["merged", "expert", "entropies"]),
    place=st.integers(0, 10**6),
)
def test_what_is_not_finite_is_named_or_not_used(
    name: str, tokens: TokenizedPrompts, text: TextPart, value: float, where: str, place: int
) -> None:
    used = tokens.mask(text)
    assume(int(used.sum()) > 1)
    z, y = drawn(tokens, 4, 1), drawn(tokens, 4, 2)
    row = place % len(tokens.ids)
    assert y.entropies is not None
    if where == "entropies":
        y.entropies[row] = value
    else:
        (z if where == "merged" else y).hidden[row, place % 4] = value
    if bool(used[row]):
        with pytest.raises(NotFiniteError, match="algebra"):
            fitted(name, z, y, text)
    else:
        module = fitted(name, z, y, text)
        assert all(bool(p.isfinite().all()) for p in module.parameters())


@examples(200)
@given(
    name=st.sampled_from(["standard", "darts", "add", "parallel", "mean-shift", "table", "linear"]),
    size=st.sampled_from([1e-38, 1e15, 1e30, 1e38, 3.39e38, 3.4e38]),
    seed=st.integers(0, 9),
    both=st.booleans(),
)
def test_numbers_of_any_size_fit_or_are_refused(
    name: str, size: float, seed: int, both: bool
) -> None:
    tokens = pack_tokens([[1, 2, 3], [4, 5]], [1, 1])
    z, y = drawn(tokens, 4, seed), drawn(tokens, 4, seed + 1)
    signs = z.hidden.sign() if seed % 2 else torch.ones_like(z.hidden)
    z.hidden.copy_(signs * size + (z.hidden if size < 1e20 else 0))
    if both:
        y.hidden.copy_(-z.hidden)
    try:
        module = fitted(name, z, y, "both")
    except InputError as error:
        assert "algebra" in str(error)  # noqa: PT017
    else:
        assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
        assert all(bool(p.isfinite().all()) for p in module.parameters())


# -- figures ---------------------------------------------------------------------------------------


@examples(150)
@given(
    tokens=texts(),
    size=st.sampled_from([0.0, 1e-4, 1.0, 30.0, 1e4]),
    drift=st.sampled_from([0.0, 1e-6, 1.0, 1e3]),
    seed=st.integers(0, 99),
    own=st.booleans(),
    data=st.data(),
)
def test_figures_stay_in_their_bounds_and_know_no_order(
    tokens: TokenizedPrompts, size: float, drift: float, seed: int, own: bool, data: st.DataObject
) -> None:
    expert = drawn(tokens, 4, seed, size)
    hidden = expert.hidden + drawn(tokens, 4, seed + 1, drift).hidden
    generator = torch.Generator().manual_seed(seed)
    head = Head(torch.randn(VOCABULARY, 4, generator=generator))
    other = Head(torch.randn(VOCABULARY + own, 4, generator=generator)) if own else head
    try:
        (found,) = measure_fidelity(expert, head, [Candidate(hidden, other)])
    except InputError:
        assert set(tokens.lengths()) == {1}
        return
    assert bool((found.kl >= 0).all())
    assert bool((found.loss >= 0).all())
    assert set(found.agreement.tolist()) <= {0.0, 1.0}
    if drift == 0 and not own:
        assert float(found.kl.max()) == 0
        assert bool((found.agreement == 1).all())
    order = data.draw(st.permutations(range(len(tokens))))
    merged = States(hidden, tokens)
    moved = Candidate(merged.select(order).hidden, other)
    (again,) = measure_fidelity(expert.select(order), head, [moved])
    for name, value in found.mean().items():
        assert again.mean()[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    # Each prompt keeps its own figures, wherever it stands.
    for k, i in enumerate(order):
        for name in ("loss", "kl", "agreement"):
            a, b = (
                getattr(found, name)[found.prompts == i],
                getattr(again, name)[again.prompts == k],
            )
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@examples(60)
@given(
    pairs=st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 50)), min_size=1, max_size=20),
    seed=st.integers(0, 5),
)
def test_an_interval_is_ordered_and_the_same_again(
    pairs: list[tuple[float, int]], seed: int
) -> None:
    top, bottom = (np.array(p, dtype=np.float64) for p in zip(*pairs, strict=True))
    interval = ratio_interval(top, bottom, seed=seed)
    assert interval == ratio_interval(top, bottom, seed=seed)
    if interval is None:
        assert len(pairs) == 1
        return
    ratios = top / bottom
    slack = 1e-9 * (1 + np.abs(ratios).max())
    assert ratios.min() - slack <= interval[0] <= interval[1] <= ratios.max() + slack
    runs = over_runs(top.tolist())
    assert min(runs["runs"]) - slack <= runs["mean"] <= max(runs["runs"]) + slack


# -- fingerprints ----------------------------------------------------------------------------------

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5)


class Bare(nn.Module):
    """Parameters registered in a given order."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in named.items():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))


@examples(100)
@given(shapes=SHAPES, seed=st.integers(0, 99), chunk=st.integers(1, 9), data=st.data())
def test_a_fingerprint_is_of_names_and_values_alone(
    shapes: list[list[int]], seed: int, chunk: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    named = {f"p{i}": torch.randn(s, generator=generator).bfloat16() for i, s in enumerate(shapes)}
    mark = fingerprint(Bare(named))
    order = data.draw(st.permutations(list(named)))
    assert fingerprint(Bare({n: named[n] for n in order})) == mark
    assert fingerprint(Bare({n: v.float() for n, v in named.items()})) == mark
    assert fingerprint(Bare({n: v.double() for n, v in named.items()})) == mark
    turned = {n: v.mT.contiguous().mT if v.dim() == 2 else v for n, v in named.items()}
    assert fingerprint(Bare(turned)) == mark
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fingerprints, "_CHUNK_ELEMENTS", chunk)
        assert fingerprint(Bare(named)) == mark
    # A bit of any one value, a name, or a shape, and it is another.
    renamed = {("q" if n == order[0] else n): v for n, v in named.items()}
    assert fingerprint(Bare(renamed)) != mark
    reshaped = named | {order[0]: named[order[0]][None]}
    assert fingerprint(Bare(reshaped)) != mark
    count = named[order[0]].numel()
    assume(count)
    place, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 15))
    hit = named[order[0]].clone()
    hit.view(torch.int16).reshape(-1)[place] ^= np.int16(np.uint16(1 << bit).view(np.int16)).item()
    assert fingerprint(Bare(named | {order[0]: hit})) != mark


@examples(60)
@given(value=st.floats(1e-30, 1e30), seed=st.integers(0, 9))
def test_a_fingerprint_is_blind_below_bfloat16_alone(value: float, seed: int) -> None:
    kept = torch.tensor([value]).bfloat16().float()
    inside = kept * (1 + 1e-3)  # bfloat16 keeps 8 bits: half a step is at least 1/512
    beyond = kept * (1 + 1 / 64)
    mark = fingerprint(Bare({"w": kept}))
    assert fingerprint(Bare({"w": inside})) == mark
    assert fingerprint(Bare({"w": beyond})) != mark


# -- settings --------------------------------------------------------------------------------------


@examples(200)
@given(
    module=st.sampled_from([*{n for n, _ in FORMS}, "x", None]),
    hidden=st.integers(-1, 10**6) | st.none(),
    rank=st.integers(-1, 10**6) | st.none(),
    rows=st.integers(-1, 10**7) | st.none(),
)
def test_settings_are_valid_or_refused_before_anything_is_built(
    module: Any, hidden: Any, rank: Any, rows: Any
) -> None:
    given_ = {"module": module, "hidden_size": hidden, "rank": rank, "max_positions": rows}
    try:
        made = SurgeryConfig.model_validate(given_)
    except ValueError:
        return
    assert made.rank is None or 1 <= made.rank <= made.hidden_size
    assert SurgeryConfig.model_validate_json(made.model_dump_json()) == made
