"""Calibration on what cannot be calibrated on: which error, and what it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from surgekit.errors import InputError, MismatchError, NotFiniteError
from surgekit.states.prompts import TokenizedPrompts, pack_tokens
from surgekit.states.states import States
from surgekit.surgery.config import CalibrationConfig
from surgekit.surgery.fit import calibrate

from .synthetic import calibrated, config, digest, fit_states, pair, rank_of, tokens

D = 8


def broken(states_: States, row: int, value: float) -> States:
    hidden = states_.hidden.clone()
    hidden[row, 1] = value
    return replace(states_, hidden=hidden)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("whose", ["merged model", "expert"])
@pytest.mark.parametrize("name", ["darts", "linear", "mean-shift"])
def test_states_that_are_not_finite(value: float, whose: str, name: str) -> None:
    merged, expert = fit_states()
    if whose == "expert":
        expert = broken(expert, 3, value)
    else:
        merged = broken(merged, 3, value)
    with pytest.raises(NotFiniteError, match=f"^math: .* of the {whose}"):
        calibrate(merged, expert, config(name, D, rank_of(name)), domain="math")


def test_tokens_left_out_may_be_anything() -> None:
    merged, expert = fit_states()
    last = 8  # the first prompt's last, of a response, so no part of response text
    spoiled = broken(merged, last, float("nan")), broken(expert, last, float("inf"))
    chosen = CalibrationConfig(text="response", iterations=2)
    module = calibrate(*spoiled, config("darts", D, 3), calibration=chosen)
    assert digest(module) == digest(
        calibrate(merged, expert, config("darts", D, 3), calibration=chosen)
    )


def huge(text: TokenizedPrompts) -> tuple[States, States]:
    """Finite bfloat16 states whose difference is not finite in float32."""
    hidden = torch.full((len(text.ids), D), 3e38)
    entropies = torch.ones(len(text.ids))
    return States(hidden.bfloat16(), text), States(-hidden.bfloat16(), text, entropies)


def test_a_loss_that_is_not_finite_names_domain_and_iteration() -> None:
    text = tokens([3, 3])
    with pytest.raises(NotFiniteError, match=r"^math: .*ewl1 loss is inf at iteration 1;"):
        calibrate(*huge(text), config("darts", D, 3), domain="math")
    with pytest.raises(NotFiniteError, match=r"^math: the l1 loss is \w+ at iteration 3;"):
        calibrated("darts", loss="l1", learning_rate=1e30)
    with pytest.raises(NotFiniteError, match=r"^math: .*mean-shift"):
        calibrate(*huge(text), config("mean-shift", D), domain="math")


def test_a_last_step_that_ruins_the_loss_is_noticed() -> None:
    with pytest.raises(NotFiniteError, match=r"^math: the l1 loss is \w+ after iteration 1;"):
        calibrated("table", loss="l1", learning_rate=2e37, iterations=1)


def test_entropies_that_are_missing_or_not_finite() -> None:
    merged, expert = fit_states()
    with pytest.raises(InputError, match="entropies=True"):
        calibrate(merged, replace(expert, entropies=None), config("darts", D, 3))
    assert expert.entropies is not None
    spoiled = expert.entropies.clone()
    spoiled[2] = float("nan")
    with pytest.raises(NotFiniteError, match=r"^math: .*entropies"):
        calibrate(merged, replace(expert, entropies=spoiled), config("darts", D, 3), domain="math")
    plain = CalibrationConfig(loss="l1", iterations=1)
    form = config("darts", D, 3)
    calibrate(merged, replace(expert, entropies=None), form, calibration=plain)  # not needed


def test_no_response_tokens() -> None:
    merged, expert = pair(tokens([4, 3]), D)
    with pytest.raises(InputError, match=r"^math: .*'response'.*use text: prompt"):
        calibrate(
            merged,
            expert,
            config("darts", D, 3),
            calibration=CalibrationConfig(text="response"),
            domain="math",
        )


def other_ids(text: TokenizedPrompts) -> TokenizedPrompts:
    return replace(text, ids=text.ids.roll(1))


def other_bounds(text: TokenizedPrompts) -> TokenizedPrompts:
    return pack_tokens([text.ids[:4], text.ids[4:]], [4, len(text.ids) - 4])


@pytest.mark.parametrize("change", [other_ids, other_bounds])
def test_states_of_other_tokens(change: Callable[[TokenizedPrompts], TokenizedPrompts]) -> None:
    merged, expert = fit_states()
    with pytest.raises(MismatchError, match=r"^math: .*not of the same tokens"):
        calibrate(
            merged,
            replace(expert, tokens=change(expert.tokens)),
            config("darts", D, 3),
            domain="math",
        )


def test_widths_that_differ() -> None:
    merged, expert = fit_states()
    narrow = replace(expert, hidden=expert.hidden[:, :-1])
    with pytest.raises(MismatchError, match=r"^math: hidden sizes differ"):
        calibrate(merged, narrow, config("darts", D, 3), domain="math")
    with pytest.raises(MismatchError, match=r"^math: config has hidden_size 9"):
        calibrate(merged, expert, config("darts", D + 1, 3), domain="math")


@pytest.mark.parametrize("loss", ["kl", "ce"])
def test_losses_on_logits_need_a_head(loss: str) -> None:
    with pytest.raises(InputError, match=f"^math: loss '{loss}' needs .*head"):
        calibrated("darts", loss=loss)


def test_losses_that_do_not_fit_the_module() -> None:
    with pytest.raises(InputError, match=r"^math: .*closed form"):
        calibrated("linear", loss="l1")
    with pytest.raises(InputError, match=r"^math: .*closed form"):
        calibrated("darts", loss=None)
