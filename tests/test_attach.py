"""Attaching: the corrected logits are the formula's, and detaching leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from surgekit.adapters.attach import SurgeryHandle, attach
from surgekit.errors import InputError, MismatchError
from surgekit.models.fingerprint import fingerprint

from .surgeries import (
    FORMS,
    TABLE,
    close,
    corrected_by_hand,
    logits_by_hand,
    surgery,
    tokens,
    uncorrected,
)
from .tiny import HIDDEN, llama, shifted

LENGTH = TABLE + 3  # the last tokens lie past the table


@pytest.fixture
def model() -> Any:
    return llama(1)


@pytest.fixture
def ids() -> Tensor:
    return tokens(2, LENGTH)


def traces(model: torch.nn.Module, ids: Tensor) -> dict[str, Any]:
    """All that attaching could change: hook dictionaries, attributes, weights, logits."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[f"attributes of {name}"] = sorted(vars(module))
        for key, value in vars(module).items():
            if "hook" in key:
                found[f"{name}.{key}"] = dict(value) if hasattr(value, "keys") else value
    found |= {f"state {k}": v.numpy().tobytes() for k, v in model.state_dict().items()}
    with torch.no_grad():
        found["logits"] = model(input_ids=ids).logits.numpy().tobytes()
    return found


# -- the formula -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_the_formula_applied_by_hand(form: str, model: Any, ids: Tensor) -> None:
    module = surgery(form)
    expected = logits_by_hand(model, module, range(LENGTH), input_ids=ids)
    plain = logits_by_hand(model, None, None, input_ids=ids)
    with attach(model, module):
        found = model(input_ids=ids).logits
    assert (expected - plain).abs().max() > 0.5  # else agreement would say nothing
    if module.config.max_positions:
        elsewhere = logits_by_hand(model, module, range(1, LENGTH + 1), input_ids=ids)
        assert (expected - elsewhere).abs().max() > 0.5  # positions matter
    close(found, expected)


def test_a_bfloat16_adapter_and_model_are_corrected_in_float32(ids: Tensor) -> None:
    model, module = llama(1, dtype=torch.bfloat16), surgery(dtype=torch.bfloat16)
    expected = corrected_by_hand(module, uncorrected(model, input_ids=ids), range(LENGTH))
    with attach(model, module):
        found = model.model(input_ids=ids).last_hidden_state
    # One rounding to bfloat16 at the end, none on the way.
    assert torch.equal(found, torch.from_numpy(expected).to(torch.bfloat16))


def test_all_hidden_states_end_in_the_corrected_one(model: Any, ids: Tensor) -> None:
    module = surgery()
    expected = corrected_by_hand(module, uncorrected(model, input_ids=ids), range(LENGTH))
    before = model(input_ids=ids, output_hidden_states=True).hidden_states
    with attach(model, module):
        after = model(input_ids=ids, output_hidden_states=True).hidden_states
        body = model.model(ids)  # by position, as some callers do
        pair = model.model(ids, return_dict=False)
    assert len(after) == len(before) == 3
    assert all(torch.equal(a, b) for a, b in zip(after[:-1], before[:-1], strict=True))
    for state in (after[-1], body.last_hidden_state, body[0], pair[0]):
        close(state, torch.from_numpy(expected))


def test_gradients_flow_through_the_correction_to_the_inputs(model: Any, ids: Tensor) -> None:
    model, step = model.double(), 3e-4
    embedded = model.model.embed_tokens(ids).clone().requires_grad_()
    direction = torch.randn(embedded.shape, generator=torch.Generator().manual_seed(3))

    def loss(inputs: Tensor) -> Tensor:
        logits = model(inputs_embeds=inputs, use_cache=False).logits
        return torch.logsumexp(logits, -1).sum()

    def slope() -> float:
        with torch.no_grad():
            up, down = loss(embedded + step * direction), loss(embedded - step * direction)
        return float(up - down) / (2 * step)

    uncorrected_slope = slope()
    module = surgery()
    model.train()
    model.activation_checkpointing_enable({"use_reentrant": False})
    with attach(model, module) as handle:
        loss(embedded).backward()
        assert embedded.grad is not None
        analytic = float((embedded.grad * direction).sum())
        assert analytic == pytest.approx(slope(), rel=0.01)
        assert abs(analytic - uncorrected_slope) > 0.1 * abs(analytic)
        with handle.rows(["default", "__base__"]):
            mixed = torch.autograd.grad(loss(embedded), embedded)[0]
    close(mixed[0], embedded.grad[0])
    assert (mixed[1] - embedded.grad[1]).abs().max() > 0.1
    assert all(p.grad is None for p in module.parameters())


# -- no trace --------------------------------------------------------------------------------------


def leave_quietly(handle: SurgeryHandle, ids: Tensor) -> None:
    handle.model(input_ids=ids)


def leave_by_an_error(handle: SurgeryHandle, ids: Tensor) -> None:
    raise ZeroDivisionError


def leave_by_a_token_that_is_not(handle: SurgeryHandle, ids: Tensor) -> None:
    handle.model(input_ids=torch.full_like(ids, 10_000))


def leave_by_an_error_in_a_layer(handle: SurgeryHandle, ids: Tensor) -> None:
    def fail(module: Any, args: Any) -> None:
        raise RuntimeError

    hook = handle.model.model.layers[1].register_forward_pre_hook(fail)
    try:
        handle.model(input_ids=ids)
    finally:
        hook.remove()


def leave_by_too_few_rows(handle: SurgeryHandle, ids: Tensor) -> None:
    with handle.rows(["default"]):
        handle.model(input_ids=ids)


def leave_by_no_input(handle: SurgeryHandle, ids: Tensor) -> None:
    handle.model()


@pytest.mark.parametrize(
    ("leave", "error"),
    [
        (leave_quietly, None),
        (leave_by_an_error, ZeroDivisionError),
        (leave_by_a_token_that_is_not, IndexError),
        (leave_by_an_error_in_a_layer, RuntimeError),
        (leave_by_too_few_rows, MismatchError),
        (leave_by_no_input, InputError),
    ],
)
def test_detaching_leaves_no_trace(
    leave: Callable[[SurgeryHandle, Tensor], None],
    error: type[Exception] | None,
    model: Any,
    ids: Tensor,
) -> None:
    model.model.register_forward_hook(lambda m, a, out: None)  # the user's own stays
    before = traces(model, ids)
    if error is None:
        with attach(model, surgery()) as handle:
            assert traces(model, ids) != before
            leave(handle, ids)
    else:
        with pytest.raises(error), attach(model, surgery()) as handle:
            leave(handle, ids)
    assert traces(model, ids) == before
    handle.detach()
    assert not handle.attached
    assert traces(model, ids) == before


def test_an_error_in_forward_spoils_nothing_that_follows(model: Any, ids: Tensor) -> None:
    with attach(model, surgery()):
        expected = model(input_ids=ids).logits
        with pytest.raises(IndexError):
            model(input_ids=torch.full((3, 4), 10_000))
        assert torch.equal(model(input_ids=ids).logits, expected)


@pytest.mark.parametrize(
    "adapters",
    [
        surgery(hidden=HIDDEN + 1),
        {"good": surgery(), "wide": surgery(hidden=HIDDEN * 2)},
        {"good": surgery(), "../bad": surgery()},
        {"good": surgery(), "absent": "no/such/folder"},
        {},
    ],
)
def test_a_failed_attach_leaves_no_trace(adapters: Any, model: Any, ids: Tensor) -> None:
    before = traces(model, ids)
    with pytest.raises(InputError):
        attach(model, adapters)
    with pytest.raises(InputError):
        attach(model, surgery(), active="unknown")
    with pytest.raises(InputError):
        attach(model, surgery(), body="no_such_child")
    assert traces(model, ids) == before


def test_attaching_again_after_detach(model: Any, ids: Tensor) -> None:
    plain = model(input_ids=ids).logits
    handle = attach(model, surgery())
    corrected = model(input_ids=ids).logits
    handle.detach()
    assert torch.equal(model(input_ids=ids).logits, plain)
    handle.attach()
    handle.attach()
    assert torch.equal(model(input_ids=ids).logits, corrected)
    handle.detach()
    assert torch.equal(model(input_ids=ids).logits, plain)


# -- adapters by name ------------------------------------------------------------------------------


def test_adding_setting_and_deleting_adapters(model: Any, ids: Tensor) -> None:
    one, two = surgery(seed=1), surgery("linear", seed=2)
    plain = model(input_ids=ids).logits
    expected = {
        "one": logits_by_hand(model, one, range(LENGTH), input_ids=ids),
        "two": logits_by_hand(model, two, range(LENGTH), input_ids=ids),
    }
    with attach(model, {"one": one}) as handle:
        assert handle.add_adapter("two", two) == "two"
        assert (handle.adapter_names, handle.active_adapter) == (["one", "two"], "one")
        close(model(input_ids=ids).logits, expected["one"])
        handle.set_adapter("two")
        close(model(input_ids=ids).logits, expected["two"])
        with handle.disable_adapter():
            assert handle.active_adapter == "__base__"
            assert torch.equal(model(input_ids=ids).logits, plain)
        close(model(input_ids=ids).logits, expected["two"])
        handle.delete_adapter("one")
        close(model(input_ids=ids).logits, expected["two"])
        handle.delete_adapter("two")
        assert (handle.adapter_names, handle.active_adapter) == ([], "__base__")
        assert torch.equal(model(input_ids=ids).logits, plain)
        assert handle.add_adapter(None, one) == "default"
    with attach(model, {"one": one, "two": two}, active="two") as handle:
        close(model(input_ids=ids).logits, expected["two"])
    with attach(model, {"one": one}, active="__base__"):
        assert torch.equal(model(input_ids=ids).logits, plain)


def test_an_adapter_deleted_inside_a_context_is_gone_after_it(model: Any, ids: Tensor) -> None:
    with attach(model, surgery()) as handle:
        with handle.disable_adapter():
            plain = model(input_ids=ids).logits
            handle.delete_adapter("default")
        assert handle.active_adapter == "__base__"
        assert torch.equal(model(input_ids=ids).logits, plain)
        handle.add_adapter("again", surgery())
        with handle.rows(["again", "__base__"]):
            handle.delete_adapter("again")
            with pytest.raises(InputError, match="again"):
                model(input_ids=ids)


def test_wrong_names_are_refused_and_change_nothing(model: Any, ids: Tensor) -> None:
    with attach(model, {"math": surgery()}) as handle:
        expected = model(input_ids=ids).logits
        for act in (
            lambda: handle.set_adapter("code"),
            lambda: handle.delete_adapter("code"),
            lambda: handle.delete_adapter("__base__"),
            lambda: handle.add_adapter("math", surgery(seed=1)),
            lambda: handle.add_adapter("__base__", surgery(seed=1)),
            lambda: handle.add_adapter("a/b", surgery(seed=1)),
            lambda: handle.rows(["math", "code"]).__enter__(),
        ):
            with pytest.raises(InputError):
                act()
        with pytest.raises(InputError, match="math, __base__"):
            handle.set_adapter("code")
        assert handle.adapter_names == ["math"]
        assert torch.equal(model(input_ids=ids).logits, expected)


@pytest.mark.parametrize("names", [["a"], ["a", "a", "a"], []])
def test_one_name_a_row_and_no_other_number(names: list[str], model: Any, ids: Tensor) -> None:
    with attach(model, {"a": surgery()}) as handle:
        with handle.rows(names), pytest.raises(MismatchError, match="batch of 2"):
            model(input_ids=ids)
        with handle.rows(["a"], beams=2):
            assert torch.isfinite(model(input_ids=ids).logits).all()


def test_an_adapter_fits_the_model_it_was_made_for_alone(model: Any, ids: Tensor) -> None:
    other = shifted(model, seed=4)
    mine = surgery(merged_fingerprint=fingerprint(model))
    for same in (model, llama(1), llama(1).to(torch.float64)):
        with attach(same, mine):
            pass
    before = traces(other, ids)
    with pytest.raises(MismatchError, match="ignore_fingerprint"):
        attach(other, mine)
    assert traces(other, ids) == before
    with attach(other, mine, ignore_fingerprint=True):
        expected = other(input_ids=ids).logits
    assert (expected - model(input_ids=ids).logits).abs().max() > 0.5
    with attach(other, surgery()) as handle, pytest.raises(MismatchError):
        handle.add_adapter("mine", mine)


def test_a_body_that_is_never_entered_is_noticed() -> None:
    model = llama(0)
    module = surgery("mean-shift", 0, hidden=HIDDEN)
    ids = torch.tensor([[1, 2, 3]])
    with (
        attach(model, module, body="model.layers"),
        pytest.raises(InputError, match=r"without entering its body 'model\.layers'"),
    ):
        model(input_ids=ids)
    model(input_ids=ids)  # detached: as before
