"""Models that are compiled, copied, pickled, offloaded, wrapped or shared: the correction holds."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from surgekit.adapters.attach import SurgeryHandle, attach
from surgekit.adapters.files import save_adapter
from surgekit.errors import InputError, MismatchError
from surgekit.models.anatomy import find_anatomy
from surgekit.models.fingerprint import fingerprint
from surgekit.states.capture import capture
from surgekit.states.prompts import pack_tokens

from .surgeries import (
    TABLE,
    close,
    corrected_by_hand,
    left_padded,
    logits_by_hand,
    surgery,
    tokens,
)
from .tiny import llama

LENGTH = TABLE + 3  # the last tokens lie past the table
GREEDY = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
peft_warns = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


@pytest.fixture
def model() -> Any:
    return llama(1)


@pytest.fixture
def ids() -> Tensor:
    return tokens(2, LENGTH)


# -- compiled --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_is_corrected(model: Any, ids: Tensor) -> None:
    module = surgery()
    plain = model(input_ids=ids).logits
    expected = logits_by_hand(model, module, range(LENGTH), input_ids=ids)
    with attach(model, module) as handle:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        close(compiled(input_ids=ids).logits, expected)
        with handle.rows(["__base__", "default"]):
            mixed = compiled(input_ids=ids).logits
        with handle.disable_adapter():
            assert torch.equal(compiled(input_ids=ids).logits, plain)
        close(compiled(input_ids=ids).logits, expected)
    assert torch.equal(mixed[0], plain[0])
    close(mixed[1], expected[1])
    assert torch.equal(compiled(input_ids=ids).logits, plain)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("by_method", [False, True])
def test_a_model_compiled_and_run_before_is_corrected_from_then_on(
    by_method: bool, model: Any, ids: Tensor
) -> None:
    module = surgery()
    expected = logits_by_hand(model, module, range(LENGTH), input_ids=ids)
    if by_method:
        model.compile(backend="eager")
    compiled = model if by_method else torch.compile(model, backend="eager")
    plain = compiled(input_ids=ids).logits
    with attach(compiled, module):
        close(compiled(input_ids=ids).logits, expected)
    assert torch.equal(compiled(input_ids=ids).logits, plain)


@pytest.mark.usefixtures("fresh_compiler")
def test_generation_from_a_compiled_model_and_a_static_cache(model: Any, ids: Tensor) -> None:
    call = left_padded([ids[0, :4], ids[1]])
    with attach(model, surgery()):
        expected = model.generate(**call, **GREEDY)
        model.forward = torch.compile(model.forward, backend="eager")
        made = model.generate(**call, **GREEDY, cache_implementation="static")
    assert torch.equal(made, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.usefixtures("fresh_compiler")
def test_the_default_compiler_corrects_too(model: Any, ids: Tensor) -> None:
    module = surgery()
    expected = logits_by_hand(model, module, range(LENGTH), input_ids=ids)
    with attach(model, module):
        close(torch.compile(model)(input_ids=ids).logits, expected)


# -- copied, pickled -------------------------------------------------------------------------------


def through_pickle(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def through_torch_save(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, through_pickle, through_torch_save])
def test_a_copy_has_a_correction_of_its_own(again: Any, model: Any, ids: Tensor) -> None:
    plain = model(input_ids=ids).logits
    with attach(model, surgery()) as handle:
        corrected = model(input_ids=ids).logits
        twin = again(model)
        own = SurgeryHandle.of(twin)
        assert own is not None
        assert own is not handle
        handle.set_adapter("__base__")
        assert torch.equal(twin(input_ids=ids).logits, corrected)
        assert torch.equal(model(input_ids=ids).logits, plain)
        handle.set_adapter("default")
        own.detach()
        assert torch.equal(twin(input_ids=ids).logits, plain)
        assert torch.equal(model(input_ids=ids).logits, corrected)
    own.attach()
    assert torch.equal(twin(input_ids=ids).logits, corrected)
    assert torch.equal(model(input_ids=ids).logits, plain)


def test_a_checkpoint_of_a_corrected_model_holds_the_model_alone(
    model: Any, tmp_path: Path
) -> None:
    before = model.state_dict()
    with attach(model, surgery()):
        assert model.state_dict().keys() == before.keys()
        model.save_pretrained(tmp_path)
    found = type(model).from_pretrained(tmp_path)
    assert fingerprint(found) == fingerprint(model)
    assert SurgeryHandle.of(found) is None


def test_a_second_handle_is_refused(model: Any, ids: Tensor) -> None:
    with attach(model, surgery()) as handle:
        corrected = model(input_ids=ids).logits
        with pytest.raises(InputError, match="corrected already"):
            attach(model, surgery(seed=2))
        assert SurgeryHandle.of(model) is handle
        assert torch.equal(model(input_ids=ids).logits, corrected)
    assert SurgeryHandle.of(model) is None
    with attach(model, surgery()):
        assert torch.equal(model(input_ids=ids).logits, corrected)


# -- offloaded -------------------------------------------------------------------------------------


def to_memory(model: Any, folder: Path, as_one: Sequence[str] = ()) -> Any:
    """Offload layer by layer; modules of the classes ``as_one`` are loaded with all inside them."""
    from accelerate import cpu_offload

    return cpu_offload(model, torch.device("cpu"), preload_module_classes=list(as_one))


def to_disk(model: Any, folder: Path, as_one: Sequence[str] = ()) -> Any:
    from accelerate import disk_offload

    device, kinds = torch.device("cpu"), list(as_one)
    return disk_offload(model, str(folder), device, preload_module_classes=kinds)


def in_parts(model: Any, folder: Path) -> Any:
    from accelerate import dispatch_model

    places = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu"}
    places |= {"model.norm": "disk", "model.rotary_emb": "cpu"}
    tied = model.config.tie_word_embeddings
    places["lm_head"] = "cpu" if tied else "disk"
    device = torch.device("cpu")
    return dispatch_model(model, places, main_device=device, offload_dir=str(folder))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("offload", [to_memory, to_disk, in_parts])
def test_an_offloaded_model_is_like_the_model_itself(
    offload: Any, tied: bool, ids: Tensor, tmp_path: Path
) -> None:
    whole, module = llama(1, tie_word_embeddings=tied), surgery()
    mark = fingerprint(whole)
    module.record = {"merged_fingerprint": mark}
    packed = pack_tokens(list(ids), [3, 3])
    states = capture(whole, packed, entropies=True, model_fingerprint=mark)
    anatomy, head = find_anatomy(whole)
    expected = logits_by_hand(whole, module, range(LENGTH), input_ids=ids)
    with attach(whole, module):
        made = whole.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    away = offload(llama(1, tie_word_embeddings=tied), tmp_path)
    assert any(p.is_meta for p in away.parameters())
    assert fingerprint(away) == mark
    found, own_head = find_anatomy(away)
    assert found == anatomy
    assert torch.equal(own_head.weight, head.weight)
    again = capture(away, packed, entropies=True, model_fingerprint=mark)
    assert torch.equal(again.hidden, states.hidden)
    assert torch.equal(again.entropies, states.entropies)
    with attach(away, module):
        close(away(input_ids=ids).logits, expected)
        assert torch.equal(away.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY), made)


def test_a_model_without_values_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="no values"):
        fingerprint(model.to("meta"))


# -- wrapped in PEFT -------------------------------------------------------------------------------


@peft_warns
@pytest.mark.parametrize("attach_first", [True, False])
def test_a_peft_model_is_corrected_on_top_of_its_lora(
    attach_first: bool, model: Any, ids: Tensor
) -> None:
    from peft import LoraConfig, get_peft_model

    def wrap(inner: Any) -> Any:
        torch.manual_seed(5)
        config = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
        return get_peft_model(inner, config).eval().requires_grad_(False)

    module = surgery()
    bare = llama(1)
    plain = bare(input_ids=ids).logits
    with_lora = wrap(bare)
    expected = logits_by_hand(with_lora.get_base_model(), module, range(LENGTH), input_ids=ids)
    lora_only = with_lora(input_ids=ids).logits
    assert float((lora_only - plain).detach().abs().max()) > 0.5
    if attach_first:
        handle = attach(model, module)
        wrapped = wrap(model)
    else:
        wrapped = wrap(model)
        handle = attach(wrapped, module)
    close(wrapped(input_ids=ids).logits, expected)
    call = left_padded([ids[0, :4], ids[1]])
    made = wrapped.generate(**call, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert made.shape == (2, LENGTH + 3)
    handle.detach()
    assert torch.equal(wrapped(input_ids=ids).logits, lora_only)
    assert torch.equal(wrapped.unload()(input_ids=ids).logits, plain)


@peft_warns
@pytest.mark.parametrize("saved", [["lm_head"], None])
def test_an_adapter_of_the_bare_model_fits_the_wrapped_one(
    saved: list[str] | None, model: Any, ids: Tensor
) -> None:
    """A LoRA on top, and whole modules that PEFT keeps copies of, are no other merged model."""
    from peft import LoraConfig, get_peft_model

    module = surgery(merged_fingerprint=fingerprint(model))
    config = LoraConfig(r=2, target_modules=["q_proj", "up_proj"], modules_to_save=saved)
    wrapped: Any = get_peft_model(model, config)
    assert fingerprint(wrapped.get_base_model()) == module.record["merged_fingerprint"]
    with attach(wrapped, module) as handle:
        handle.add_adapter("again", module)
    wrapped.get_base_model().model.norm.weight.data[0] += 0.5
    with pytest.raises(MismatchError, match="was made for the model"):
        attach(wrapped, module)


@peft_warns
def test_a_lora_trained_under_the_correction_learns_through_it(model: Any, ids: Tensor) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(5)
    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    with attach(wrapped, surgery()) as handle:
        wrapped(input_ids=ids, labels=ids).loss.backward()
        corrected = [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]
        wrapped.zero_grad()
        with handle.disable_adapter():
            wrapped(input_ids=ids, labels=ids).loss.backward()
        plain = [p.grad for p in wrapped.parameters() if p.grad is not None]
    assert corrected
    assert any(not torch.allclose(a, b) for a, b in zip(corrected, plain, strict=True))


# -- shared by threads -----------------------------------------------------------------------------


def test_threads_that_share_a_model_do_not_mix_their_positions(model: Any) -> None:
    prompts = [tokens(1 + k % 3, 3 + k, seed=k) for k in range(8)]
    how = GREEDY | {"max_new_tokens": 8, "min_new_tokens": 8}
    with attach(model, surgery()):
        alone = [model.generate(p, attention_mask=torch.ones_like(p), **how) for p in prompts]
        found: dict[int, Tensor] = {}
        begin = threading.Barrier(len(prompts))

        def work(k: int) -> None:
            begin.wait()
            with torch.no_grad():
                ids = prompts[k]
                found[k] = model.generate(ids, attention_mask=torch.ones_like(ids), **how)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(torch.equal(found[k], alone[k]) for k in range(len(prompts)))


def test_rows_chosen_here_hold_for_a_generation_in_another_thread(model: Any, ids: Tensor) -> None:
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found: list[Tensor] = []
    with attach(model, surgery()) as handle, handle.rows(["__base__", "default"]):
        expected = model.generate(**call, **GREEDY)
        thread = threading.Thread(target=lambda: found.append(model.generate(**call, **GREEDY)))
        thread.start()
        thread.join()
    assert torch.equal(found[0], expected)


def test_two_threads_cannot_choose_at_once(model: Any) -> None:
    with attach(model, surgery()) as handle:
        said: list[str] = []

        def choose() -> None:
            try:
                with handle.rows(["default"]):
                    said.append("in")
            except InputError as error:
                said.append(str(error))

        with handle.disable_adapter(), handle.rows(["__base__"]):  # one thread may, as deep as it
            other = threading.Thread(target=choose)
            other.start()
            other.join()
        assert "another thread" in said[0]
        other = threading.Thread(target=choose)
        other.start()
        other.join()
        assert said[1] == "in"


# -- choices that are nested -----------------------------------------------------------------------


def test_an_adapter_set_inside_a_context_is_the_active_one_after_it(
    model: Any, ids: Tensor
) -> None:
    one, two = surgery(seed=1), surgery("linear", seed=2)
    with attach(model, {"one": one, "two": two}) as handle:
        with handle.disable_adapter():
            plain = model(input_ids=ids).logits
            handle.set_adapter("two")
            assert torch.equal(model(input_ids=ids).logits, plain)
        assert handle.active_adapter == "two"
        corrected = model(input_ids=ids).logits
    close(corrected, logits_by_hand(model, two, range(LENGTH), input_ids=ids))


def test_a_single_name_is_not_a_list_of_rows(model: Any) -> None:
    with attach(model, {"ab": surgery(), "a": surgery(), "b": surgery()}) as handle:
        with pytest.raises(InputError, match="list of names"), handle.rows("ab"):
            pass
        with handle.rows(["a"]), pytest.raises(MismatchError):
            model(input_ids=tokens(2, 3))


# -- autocast --------------------------------------------------------------------------------------


def test_autocast_does_not_round_the_correction(model: Any, ids: Tensor) -> None:
    module = surgery()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model.model(input_ids=ids).last_hidden_state
        with attach(model, module):
            found = model.model(input_ids=ids).last_hidden_state
    expected = torch.from_numpy(corrected_by_hand(module, plain, range(LENGTH)))
    close(found, expected.to(found.dtype), 1e-5 if found.dtype == torch.float32 else 0.1)


# -- what is no adapter, no model, no list of rows -------------------------------------------------


def test_what_is_no_adapter_is_said(model: Any) -> None:
    spoiled = surgery("table")
    spoiled.table.data[0, 0] = float("nan")
    for adapter, said in (
        (None, "found NoneType"),
        (42, "found int"),
        ([surgery()], "found list"),
        (spoiled, "holds NaN or infinity"),
    ):
        with pytest.raises(InputError, match=said):
            attach(model, adapter)
    with pytest.raises(InputError, match="expected a model, found NoneType"):
        attach(None, surgery())  # type: ignore[arg-type]


def test_rows_from_a_generator_and_rows_that_are_none(model: Any, ids: Tensor) -> None:
    with attach(model, {"a": surgery()}) as handle:
        with handle.rows(name for name in ("a", "__base__")):
            model(input_ids=ids)
        for rows, beams in ((None, 1), (["a"], 0), (["a"], "x")):
            with pytest.raises(InputError, match="rows: expected"), handle.rows(rows, beams=beams):
                pass


def test_a_domain_that_is_no_name_asks_for_one(model: Any, tmp_path: Path, ids: Tensor) -> None:
    save_adapter(surgery(), tmp_path / "d", domain="математика")
    with pytest.raises(InputError, match="give it one: attach"):
        attach(model, tmp_path / "d")
    with attach(model, {"math": tmp_path / "d"}):
        model(input_ids=ids)


def test_an_adapter_added_later_is_held_against_the_weights_of_then(model: Any) -> None:
    module = surgery(merged_fingerprint=fingerprint(model))
    with attach(model, module) as handle:
        model.model.norm.weight.data[0] += 0.5
        with pytest.raises(MismatchError, match="was made for the model"):
            handle.add_adapter("later", module)
