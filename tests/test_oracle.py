"""Checks of the oracle itself: hand gradients, optimality, and small cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from .oracle import (
    MODULES,
    Array,
    Head,
    Ints,
    bias,
    correct,
    entropy,
    entropy_weights,
    ewl1,
    exact_table,
    fidelity,
    gcv,
    gradients,
    head,
    kl,
    l1,
    leave_one_prompt_out,
    linear_direct,
    make_loss,
    rows_at,
    weighted_errors,
    weighted_median,
)

N, D, R, T, V = 9, 5, 3, 4, 7
# Every row is used, two of them twice, and three tokens lie outside the table.
POSITIONS: Ints = np.array([0, 1, 2, 3, 4, 11, -1, 2, 0])
SHAPES = {
    "down": (R, D),
    "up": (D, R),
    "down2": (R, D),
    "up2": (D, R),
    "table": (T, D),
    "shift": (D,),
    "weight": (D, D),
    "offset": (D,),
}


def draw(module: str) -> tuple[dict[str, Array], Array, Array]:
    """Parameters, states and expert states whose ReLUs and L1 errors all lie off their kinks."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        params = {name: rng.normal(size=SHAPES[name]) for name in MODULES[module]}
        z = rng.normal(size=(N, D))
        inside = (POSITIONS >= 0) & (POSITIONS < T)
        part = rows_at(params["table"], POSITIONS) if "table" in params else np.zeros((N, D))
        inputs = [np.ones(1)]
        if "down" in params:
            inputs.append((z + part if module == "add" else z) @ params["down"].T)
        if "down2" in params:  # outside the table its input is zero whatever the parameters
            inputs.append(part[inside] @ params["down2"].T)
        if min(np.abs(a).min() for a in inputs) > 0.01:
            gap = rng.choice([-1.0, 1.0], size=(N, D)) * rng.uniform(0.1, 1.0, size=(N, D))
            return params, z, correct(module, params, z, POSITIONS) + gap
    raise AssertionError("no draw is far enough from a kink")


HEADS = {
    "plain": Head(np.random.default_rng(1).normal(size=(V, D))),
    "full": Head(
        np.random.default_rng(2).normal(size=(V, D)),
        bias=np.random.default_rng(3).normal(size=V),
        scale=0.4,
        softcap=2.0,
    ),
}
CASES = [("l1", "plain"), ("ewl1", "plain")] + [(x, h) for x in ("kl", "ce") for h in HEADS]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("loss", "which"), CASES)
def test_gradients_match_central_differences(module: str, loss: str, which: str) -> None:
    params, z, expert = draw(module)
    weights = entropy_weights(np.linspace(0.1, 2.0, N), [0, N], "dataset")
    fn = make_loss(loss, expert, weights, HEADS[which])
    found = gradients(module, params, z, POSITIONS, fn)
    assert set(found) == set(params)
    step = 1e-5
    for name, value in params.items():
        numeric = np.empty_like(value)
        for index in np.ndindex(value.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = value.copy()
                moved[index] += sign * step
                ends.append(fn(correct(module, {**params, name: moved}, z, POSITIONS))[0])
            numeric[index] = (ends[0] - ends[1]) / (2 * step)
        size = np.abs(numeric).max()
        assert size > 1e-3, f"{name}: nothing to compare"
        assert np.abs(found[name] - numeric).max() <= 1e-6 * size, name


def test_given_targets_replace_the_arg_max() -> None:
    _, z, expert = draw("mean-shift")
    targets = np.arange(N) % V
    value, _ = make_loss("ce", expert, head_fn=HEADS["full"], targets=targets)(z)
    logits = HEADS["full"](z)
    each = np.log(np.exp(logits).sum(1)) - logits[np.arange(N), targets]
    assert value == pytest.approx(each.mean(), rel=1e-12)


def test_modules_by_hand() -> None:
    # d = 2, r = 1: D z is 3 for the first state and -1 (cut to 0) for the second.
    z = np.array([[1.0, 2.0], [0.0, -1.0], [1.0, 2.0]])
    at = np.array([1, 0, 2])
    low = {"down": np.array([[1.0, 1.0]]), "up": np.array([[2.0], [-1.0]])}
    table = np.array([[10.0, 20.0], [30.0, 40.0]])
    second = {"down2": np.array([[0.0, 1.0]]), "up2": np.array([[1.0], [0.5]])}
    got = {
        "standard": correct("standard", low, z, at),
        "darts": correct("darts", {**low, "table": table}, z, at),
        "add": correct("add", {**low, "table": table}, z, at),
        "parallel": correct("parallel", {**low, "table": table, **second}, z, at),
        "mean-shift": correct("mean-shift", {"shift": np.array([1.0, -1.0])}, z, at),
        "table": correct("table", {"table": table}, z, at),
        "linear": correct(
            "linear",
            {"weight": np.array([[0.0, 1.0], [2.0, 0.0]]), "offset": np.array([0.5, 0.0])},
            z,
            at,
        ),
    }
    want = {
        "standard": [[-5, 5], [0, -1], [-5, 5]],
        "darts": [[-35, -35], [-10, -21], [-5, 5]],
        "add": [[1 - 146, 2 + 73], [-58, 28], [-5, 5]],
        "parallel": [[-5 - 40, 5 - 20], [-20, -11], [-5, 5]],
        "mean-shift": [[0, 3], [-1, 0], [0, 3]],
        "table": [[-29, -38], [-10, -21], [1, 2]],
        "linear": [[3.5, 4], [-0.5, -1], [3.5, 4]],
    }
    assert set(got) == set(MODULES)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], np.array(value, dtype=float), err_msg=name)


def test_wrong_names_are_refused() -> None:
    z = np.zeros((1, 2))
    with pytest.raises(ValueError, match="unknown module"):
        correct("other", {}, z, np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match="parameters"):
        correct("mean-shift", {"table": z}, z, np.zeros(1, dtype=np.int64))
    for lacking in ("ewl1", "kl", "ce", "l2"):
        with pytest.raises(ValueError, match="lacks"):
            make_loss(lacking, z)


def test_entropy_by_hand() -> None:
    logits = np.array(
        [[0.0, 0, 0, 0], [1000, 0, 0, 0], [5, 5, -np.inf, -np.inf], [math.log(3), 0, -1e9, -1e9]]
    )
    quarter = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    want = [math.log(4), 0.0, math.log(2), quarter]
    np.testing.assert_allclose(entropy(logits), want, rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(entropy(logits + 7.0), want, rtol=1e-12, atol=1e-300)


def test_entropy_weights_by_hand() -> None:
    values = np.array([1.0, 3.0, 2.0, 6.0, 4.0, 2.0])
    whole = entropy_weights(values, [0, 2, 2, 6], "dataset")
    np.testing.assert_allclose(whole, values / 3, rtol=1e-15)
    np.testing.assert_array_equal(whole, entropy_weights(values, [0, 2, 6], "batch"))
    own = entropy_weights(values, [0, 2, 2, 6], "sequence")
    np.testing.assert_allclose(own, [0.5, 1.5, 4 / 7, 12 / 7, 8 / 7, 4 / 7], rtol=1e-15)
    with pytest.raises(ValueError, match="zero"):
        entropy_weights(np.array([0.0, 1.0]), [0, 1, 2], "sequence")
    with pytest.raises(ValueError, match="offsets"):
        entropy_weights(values, [0, 2], "sequence")


def test_head_by_hand() -> None:
    h, weight, shift = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([1, -1])
    np.testing.assert_array_equal(head(h, weight), [[1, 3]])
    np.testing.assert_array_equal(head(h, weight, shift, scale=0.5), [[1, 1]])
    capped = head(h, weight, shift.astype(float), scale=0.5, softcap=2.0)
    np.testing.assert_allclose(capped, [[2 * math.tanh(0.5)] * 2], rtol=1e-15)


def test_losses_by_hand() -> None:
    a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0, 4.0], [3.0, 9.0]])
    assert l1(a, b) == 2.0
    assert ewl1(a, b, np.array([2.0, 0.0])) == 1.5
    assert ewl1(a, b, np.ones(2)) == l1(a, b)
    # Identity head: p = (3/4, 1/4) for the expert, q = (1/2, 1/2) for the corrected state.
    one = Head(np.eye(2))
    p, q = np.array([[math.log(3), 0.0]]), np.zeros((1, 2))
    assert kl(q, p, one) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-14)
    assert kl(p, q, one) == pytest.approx(0.5 * math.log(4 / 3), rel=1e-14)
    assert kl(p, p, one) == 0.0
    assert make_loss("ce", q, head_fn=one)(p)[0] == pytest.approx(math.log(4 / 3), rel=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
def test_exact_table_beats_every_perturbation(weighted: bool) -> None:
    rng = np.random.default_rng(5)
    at = rng.integers(-1, 7, size=60)
    at[at == 3] = 2  # position 3 stays empty; 5 and 6 lie beyond the table
    residual = rng.normal(size=(60, 3))
    w = rng.uniform(0.0, 2.0, size=60) if weighted else None
    table, loss = exact_table(residual, at, w, 5)
    used = np.ones(60) if w is None else w
    target = np.zeros_like(residual)
    assert loss == pytest.approx(
        ewl1(correct("table", {"table": table}, residual, at), target, used)
    )
    assert loss < ewl1(residual, target, used)
    assert not table[3].any()
    for t, j in np.ndindex(*table.shape):
        for candidate in residual[at == t, j]:  # the loss is linear between these
            moved = table.copy()
            moved[t, j] = candidate
            got = ewl1(correct("table", {"table": moved}, residual, at), target, used)
            assert got >= loss - 1e-14


def test_weighted_median_by_hand() -> None:
    values = np.array([5.0, 1.0, 3.0])
    assert weighted_median(values, np.ones(3)) == 3.0
    assert weighted_median(values, np.array([3.0, 1.0, 1.0])) == 5.0
    assert weighted_median(values[:2], np.ones(2)) == 1.0
    assert weighted_median(values, np.zeros(3)) == 0.0
    assert weighted_median(np.zeros(0), np.zeros(0)) == 0.0
    # A weightless value is never chosen for its place at the front.
    assert weighted_median(values, np.array([1.0, 0.0, 0.0])) == 5.0


def regression(seed: int = 0) -> tuple[Array, Array, Array, list[int]]:
    """States, expert states, weights and prompt boundaries for the linear map."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(24, 3)) + 0.5
    y = z + 0.3 * z @ rng.normal(size=(3, 3)) + rng.normal(size=(24, 3)) + 2.0
    return z, y, rng.uniform(0.2, 2.0, size=24), [0, 5, 6, 14, 20, 24]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 0.7, 50.0])
def test_linear_direct_has_zero_gradient(weighted: bool, ridge: float) -> None:
    z, y, w, _ = regression()
    w = w if weighted else np.ones(24)
    fit = linear_direct(z, y, ridge, w)
    error = correct("linear", fit, z, np.zeros(24, dtype=np.int64)) - y
    np.testing.assert_allclose((w[:, None] * error).sum(0), 0.0, atol=1e-11)
    np.testing.assert_allclose((w[:, None] * error).T @ z + ridge * fit["weight"], 0.0, atol=1e-10)
    free = linear_direct(z, y, ridge, w, fit_offset=False)
    assert not free["offset"].any()
    error = correct("linear", free, z, np.zeros(24, dtype=np.int64)) - y
    np.testing.assert_allclose((w[:, None] * error).T @ z + ridge * free["weight"], 0.0, atol=1e-10)
    assert weighted_errors(free, z, y, w) > weighted_errors(fit, z, y, w) - 1e-12


def test_linear_direct_limits() -> None:
    z, y, w, _ = regression()
    exact = linear_direct(z, z @ np.diag([2.0, 1.0, 0.5]) + 1.0, 0.0)
    np.testing.assert_allclose(exact["weight"], np.diag([1.0, 0.0, -0.5]), atol=1e-12)
    np.testing.assert_allclose(exact["offset"], 1.0, atol=1e-12)
    stiff = linear_direct(z, y, 1e12, w)  # the (weighted) mean shift
    np.testing.assert_allclose(stiff["weight"], 0.0, atol=1e-9)
    np.testing.assert_allclose(stiff["offset"], np.average(y - z, axis=0, weights=w), rtol=1e-9)
    whole = linear_direct(z, y, 0.7, np.full(24, 2.0))  # the ridge meets a sum, not a mean
    half = linear_direct(z, y, 0.35)
    np.testing.assert_allclose(whole["weight"], half["weight"], rtol=1e-10)


def test_leave_one_prompt_out() -> None:
    # One-token prompts at z = 0, 1, 2, y - z = 0, 0, 3, ridge 0: each is met by the line through
    # the two others, which errs by 3, -1.5 and 3 there.
    z = np.array([[0.0], [1.0], [2.0]])
    y = z + np.array([[0.0], [0.0], [3.0]])
    assert leave_one_prompt_out(z, y, 0.0, None, [0, 1, 2, 3]) == pytest.approx(20.25)
    w = np.array([1.0, 2.0, 4.0])
    assert leave_one_prompt_out(z, y, 0.0, w, [0, 1, 2, 3]) == pytest.approx(9 + 4.5 + 36)
    # With one token each, the errors are those of the whole fit over 1 - leverage.
    z, y, w, offsets = regression()
    x = np.hstack([z, np.ones((24, 1))])
    normal = x.T @ (w[:, None] * x) + np.diag([0.7, 0.7, 0.7, 0.0])
    lever = w * (x * np.linalg.solve(normal, x.T).T).sum(1)
    fit = linear_direct(z, y, 0.7, w)
    error = correct("linear", fit, z, np.zeros(24, dtype=np.int64)) - y
    short = (w * (error**2).sum(1) / (1 - lever) ** 2).sum()
    single = leave_one_prompt_out(z, y, 0.7, w, np.arange(25))
    assert single == pytest.approx(short, rel=1e-10)
    grouped = leave_one_prompt_out(z, y, 0.7, w, offsets)
    assert grouped > weighted_errors(fit, z, y, w)
    assert grouped != pytest.approx(single, rel=1e-6)


def test_gcv_limits() -> None:
    z, y, w, _ = regression()
    for weights in (None, w):
        for ridge, df in ((0.0, 4.0), (1e12, 1.0)):
            rss = weighted_errors(linear_direct(z, y, ridge, weights), z, y, weights)
            assert gcv(z, y, ridge, weights) == pytest.approx(24 * rss / (24 - df) ** 2, rel=1e-8)
    # z = -1, 1 twice each, ridge 4: the slope's share is 4 / (4 + 4), so df = 1.5; y - z = 0, 2.
    z = np.array([[-1.0], [-1.0], [1.0], [1.0]])
    y = z + np.array([[0.0], [0.0], [2.0], [2.0]])
    assert gcv(z, y, 4.0) == pytest.approx(4 * (4 * 0.25) / 2.5**2, rel=1e-12)


def test_fidelity_by_hand() -> None:
    # The merged model has a third token: its loss counts it, kl and agreement do not.
    merged = np.log(np.array([[0.25, 0.25, 0.5], [0.3, 0.1, 0.6]]))
    expert = np.log(np.array([[0.75, 0.25], [0.25, 0.75]]))
    got = fidelity(merged, expert, np.array([0, 2]))
    assert got["loss"] == pytest.approx(-(math.log(0.25) + math.log(0.6)) / 2, rel=1e-14)
    first = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    second = 0.25 * math.log(1 / 3) + 0.75 * math.log(3)
    assert got["kl"] == pytest.approx((first + second) / 2, rel=1e-14)
    assert got["agreement"] == 0.5
    assert fidelity(expert, merged, np.array([0, 1]))["agreement"] == 0.5


def test_bias_by_hand() -> None:
    got = bias(np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[4.0, -3.0], [2.0, 0.0]]))
    np.testing.assert_allclose(got["l1"], [4.0, 0.5], rtol=1e-15)
    np.testing.assert_allclose(got["relative"], [8 / 7, 0.5], rtol=1e-15)
    np.testing.assert_allclose(got["cosine"], [0.0, 1.0], atol=1e-15)
