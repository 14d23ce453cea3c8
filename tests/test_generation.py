"""Generation as people call it: chunks, several turns, wrappers; wrong padding is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from surgekit.adapters.attach import SurgeryHandle, attach
from surgekit.errors import InputError
from surgekit.models.anatomy import find_anatomy
from surgekit.states.capture import capture
from surgekit.states.prompts import pack_tokens

from .families import family
from .surgeries import (
    TABLE,
    close,
    corrected_by_hand,
    left_padded,
    logits_by_hand,
    surgery,
    tokens,
    uncorrected,
)
from .tiny import llama

PAD = 258
STEPS = 5
GREEDY = {
    "do_sample": False,
    "eos_token_id": None,
    "pad_token_id": PAD,
    "max_new_tokens": STEPS,
    "return_dict_in_generate": True,
    "output_logits": True,
}


@pytest.fixture
def model() -> Any:
    return llama(4)


def right_padded(rows: list[Tensor]) -> dict[str, Tensor]:
    batch = left_padded(rows)
    for k, row in enumerate(rows):
        for value in batch.values():
            value[k] = value[k].roll(len(row))
    return batch


def batch_of(*lengths: int) -> list[Tensor]:
    return [tokens(1, n, seed=n)[0] for n in lengths]


# -- padding on the right --------------------------------------------------------------------------


def generate(model: Any, batch: dict[str, Tensor]) -> Any:
    return model.generate(**batch, **GREEDY)


def generate_with_beams(model: Any, batch: dict[str, Tensor]) -> Any:
    return model.generate(**batch, **GREEDY, num_beams=2)


def generate_with_a_static_cache(model: Any, batch: dict[str, Tensor]) -> Any:
    return model.generate(**batch, **GREEDY, cache_implementation="static")


def generate_without_a_cache(model: Any, batch: dict[str, Tensor]) -> Any:
    return model.generate(**batch, **GREEDY, use_cache=False)


def generate_from_embeddings(model: Any, batch: dict[str, Tensor]) -> Any:
    embedded = model.get_input_embeddings()(batch["input_ids"])
    return model.generate(inputs_embeds=embedded, attention_mask=batch["attention_mask"], **GREEDY)


def generate_in_chunks(model: Any, batch: dict[str, Tensor]) -> Any:
    return model.generate(**batch, **GREEDY, prefill_chunk_size=4)


def generate_with_a_mask_that_is_guessed(model: Any, batch: dict[str, Tensor]) -> Any:
    # transformers takes padding for what it is where it is not the end token too.
    return model.generate(batch["input_ids"], **(GREEDY | {"eos_token_id": 257}))


WAYS: list[Callable[[Any, dict[str, Tensor]], Any]] = [
    generate,
    generate_with_beams,
    generate_with_a_static_cache,
    generate_without_a_cache,
    generate_from_embeddings,
    generate_in_chunks,
    generate_with_a_mask_that_is_guessed,
]


@pytest.mark.parametrize("way", WAYS)
def test_prompts_padded_on_the_right_are_refused(way: Any, model: Any) -> None:
    rows, beams = batch_of(9, 6, 9), 2 if way is generate_with_beams else 1
    with attach(model, surgery()) as handle:
        with pytest.raises(InputError, match=r"right .*padding_side = \"left\""):
            way(model, right_padded(rows))
        way(model, left_padded(rows))
        with handle.rows(["default", "__base__", "__base__"], beams=beams):
            with pytest.raises(InputError, match="padding_side"):
                way(model, right_padded(rows))
            way(model, left_padded(rows))
        with handle.disable_adapter():
            way(model, right_padded(rows))
    way(model, right_padded(rows))


def test_training_and_scoring_may_pad_on_the_right(model: Any) -> None:
    rows, module = batch_of(9, 4), surgery()
    batch = right_padded(rows)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    with attach(model, module):
        found = model(**batch, labels=labels)
        model(**batch, use_cache=True)
        model(**batch, logits_to_keep=1)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for k, row in enumerate(rows):
        expected = logits_by_hand(model, module, range(len(row)), input_ids=row[None])[0]
        close(found.logits[k, : len(row)], expected)
        chances = expected[:-1].log_softmax(-1)
        total -= chances[torch.arange(len(row) - 1), row[1:]].sum()
        count += len(row) - 1
    close(found.loss, total / count)


def test_a_prompt_with_holes_counts_what_it_shows(model: Any) -> None:
    ids, module = tokens(2, 9), surgery()
    mask = torch.tensor([[1, 0, 0, 1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 1, 1, 1, 0, 1]])
    with attach(model, module):
        made = generate(model, {"input_ids": ids, "attention_mask": mask})
    whole = torch.cat([mask, torch.ones(2, STEPS, dtype=mask.dtype)], 1)
    places = whole.cumsum(-1) - 1
    call = {"input_ids": made.sequences, "attention_mask": whole, "position_ids": places}
    expected = logits_by_hand(model, module, places, **call)
    close(torch.stack(made.logits, 1), expected[:, 8:-1])


def test_long_prompts_in_chunks_may_begin_with_padding_alone(model: Any) -> None:
    rows, module = batch_of(3, 11), surgery()
    with attach(model, module):
        whole = generate(model, left_padded(rows))
        chunks = generate_in_chunks(model, left_padded(rows))
    assert torch.equal(whole.sequences, chunks.sequences)
    close(torch.stack(chunks.logits), torch.stack(whole.logits))


def test_a_second_turn_goes_on_counting(model: Any) -> None:
    rows, module = batch_of(3, 6), surgery("table")
    first = left_padded(rows)
    with attach(model, module):
        made = generate(model, first)
        turn = tokens(2, 3, seed=9)
        ids = torch.cat([made.sequences, turn], 1)
        mask = torch.cat([first["attention_mask"], torch.ones(2, STEPS + 3).long()], 1)
        call = {"input_ids": ids, "attention_mask": mask}
        anew = generate(model, call)
        again = model.generate(**call, cache=made.cache, **GREEDY)
        close(torch.stack(again.logits), torch.stack(anew.logits))
        mask[0, -1] = 0
        with pytest.raises(InputError, match="padding_side"):
            model.generate(**call, cache=generate(model, first).cache, **GREEDY)
    for k, row in enumerate(rows):
        whole = torch.cat([row, anew.sequences[k, 6:]])
        expected = logits_by_hand(model, module, range(len(whole)), input_ids=whole[None])
        close(torch.stack(anew.logits, 1)[k], expected[0, -STEPS - 1 : -1])


# -- the hook on generate --------------------------------------------------------------------------


def test_what_others_put_before_generate_stays(model: Any) -> None:
    inner, calls = model.generate, []

    def own(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(args))
        return inner(*args, **kwargs)

    model.generate = own
    handle = attach(model, surgery())
    generate(model, left_padded(batch_of(4)))
    assert calls
    handle.detach()
    assert model.generate is own
    # Someone who comes later keeps what he found; it does nothing once surgery is gone.
    handle.attach()
    kept = model.generate
    model.generate = lambda *args, **kwargs: kept(*args, **kwargs)
    handle.detach()
    generate(model, right_padded(batch_of(4, 2)))


def test_a_copy_refuses_by_its_own_adapters(model: Any) -> None:
    batch = right_padded(batch_of(4, 2))
    with attach(model, surgery()) as handle:
        twin = copy.deepcopy(model)
        handle.set_adapter("__base__")
        generate(model, batch)
        with pytest.raises(InputError, match="padding_side"):
            generate(twin, batch)
    own = SurgeryHandle.of(twin)
    assert own is not None
    own.detach()
    generate(twin, batch)
    assert "generate" not in vars(twin)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("attach_first", [True, False])
def test_a_peft_model_refuses_too(attach_first: bool, model: Any) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"])
    batch = right_padded(batch_of(4, 2))
    if attach_first:
        handle = attach(model, surgery())
        wrapped: Any = get_peft_model(model, config)
    else:
        wrapped = get_peft_model(model, config)
        handle = attach(wrapped, surgery())
    for _ in range(2):  # PEFT puts its own method in front and takes it away again
        with pytest.raises(InputError, match="padding_side"):
            generate(wrapped, batch)
        generate(wrapped, left_padded(batch_of(4, 2)))
    handle.detach()
    generate(wrapped, batch)


# -- states that do not tell their length ----------------------------------------------------------


def test_a_state_from_elsewhere_asks_for_positions() -> None:
    model, ids = family("mamba"), tokens(2, 5)
    with torch.no_grad():
        state = model(input_ids=ids[:, :4], use_cache=True).cache
        other = copy.deepcopy(state)
        with attach(model, surgery("table")) as handle:
            with pytest.raises(InputError, match="position_ids"):
                model(input_ids=ids[:, 4:], cache=state)
            with handle.disable_adapter():
                model(input_ids=ids[:, 4:], cache=copy.deepcopy(other))
            # What was begun with surgery goes on, also after a copy; what begins anew, at zero.
            whole = {"attention_mask": torch.ones(2, 4), "use_cache": True}
            begun = model(input_ids=ids[:, :4], **whole).cache
            twin = copy.deepcopy(begun)
            steps = [model(input_ids=ids[:, 4:], cache=c).logits for c in (begun, twin)]
            begun.reset()
            anew = model(input_ids=ids, cache=begun, use_cache=True).logits
            expected = model(input_ids=ids).logits
            # After a change of the batch nobody knows the rows.
            twin.reorder_cache(torch.tensor([0, 1, 1]))
            with pytest.raises(InputError, match="position_ids"):
                model(input_ids=ids[[0, 1, 1], 4:], cache=twin)
    for step in steps:
        close(step[:, 0], expected[:, -1])
    close(anew, expected)


def test_left_padded_states_count_each_row() -> None:
    """Mamba gets its mask with the prompt alone; the rest is counted from there."""
    model, rows, module = family("mamba"), batch_of(2, 6), surgery("table")
    batch = left_padded(rows)
    new = tokens(2, 3, seed=7)
    with attach(model, module), torch.no_grad():
        out = model(**batch, use_cache=True)
        found = [out.logits[:, -1]]
        for step in range(3):
            out = model(input_ids=new[:, step : step + 1], cache=out.cache)
            found.append(out.logits[:, -1])
        whole = [
            model(input_ids=torch.cat([row, new[k]])[None]).logits[0, len(row) - 1 :]
            for k, row in enumerate(rows)
        ]
    close(torch.stack(found, 1), torch.stack(whole))


# -- models and their parts ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_capture_does_not_mix_lengths_where_they_decide_the_rotation(kind: str) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0}
    if kind == "dynamic":
        rope |= {"factor": 4.0}
    else:
        rope |= {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}
        rope |= {"original_max_position_embeddings": 8}
    model = llama(5, rope_parameters=rope, max_position_embeddings=8)
    rows = batch_of(4, 20, 6, 12, 20)
    found = capture(model, pack_tokens(rows, [1] * 5), dtype=torch.float32, batch_size=8)
    for i, row in enumerate(rows):
        fresh = llama(5, rope_parameters=rope, max_position_embeddings=8)
        start = sum(map(len, rows[:i]))
        close(found.hidden[start : start + len(row)], uncorrected(fresh, input_ids=row[None])[0])


def test_a_scale_that_the_config_declares_and_the_code_ignores() -> None:
    plain, told = llama(6), llama(6)
    told.config.logit_scale, told.config.final_logit_softcapping = 0.5, 3.0
    assert find_anatomy(told)[0] == find_anatomy(plain)[0]
    head = find_anatomy(told)[1]
    assert (head.scale, head.softcap) == (1.0, None)


def test_a_head_that_scales_each_word_is_refused() -> None:
    config = AutoConfig.for_model(
        "dory",
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=320,
        pad_token_id=PAD,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    torch.nn.init.uniform_(model.lm_head.logit_scale)
    with pytest.raises(InputError, match="not the model's own logits"):
        find_anatomy(model)


def test_the_width_is_that_of_the_head() -> None:
    model, ids = family("opt-350m"), tokens(1, TABLE + 3)
    with pytest.raises(InputError, match="this model has 16"):
        attach(model, surgery(hidden=32))
    module = surgery(hidden=16)
    with attach(model, module):
        found = model.model.decoder(input_ids=ids, use_cache=False)[0]
    bare = model.model.decoder(input_ids=ids, use_cache=False)[0]
    close(found, torch.from_numpy(corrected_by_hand(module, bare, range(TABLE + 3))))


def test_chunks_of_a_cache_that_was_cropped(model: Any) -> None:
    ids, module = tokens(1, 9), surgery("table")
    expected = logits_by_hand(model, module, range(9), input_ids=ids)
    cache = DynamicCache(config=model.config)
    with attach(model, module):
        model(input_ids=ids[:, :7], cache=cache)
        cache.crop(-3)
        close(model(input_ids=ids[:, 4:], cache=cache).logits, expected[:, 4:])


# -- every mode of decoding ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["greedy", "sampling", "beams", "lookup", "assistant", "static"])
@pytest.mark.parametrize("told", [True, False])
def test_right_padding_is_refused_in_every_mode(mode: str, told: bool, model: Any) -> None:
    """Also where candidates are appended to the mask, and where the mask is guessed."""
    modes: dict[str, dict[str, Any]] = {
        "greedy": {},
        "sampling": {"do_sample": True},
        "beams": {"num_beams": 2},
        "lookup": {"prompt_lookup_num_tokens": 3},
        "assistant": {"assistant_model": llama(5)},
        "static": {"cache_implementation": "static"},
    }
    ids = torch.cat([tokens(1, 8), torch.full((1, 3), 300)], 1)
    call = {"input_ids": ids, "attention_mask": (ids != 300).long()}
    if not told:
        call = {"input_ids": ids, "pad_token_id": 300, "eos_token_id": 258}
    with attach(model, surgery()) as handle:
        with pytest.raises(InputError, match="padding_side"):
            model.generate(**call, max_new_tokens=3, **modes[mode])
        with handle.disable_adapter():
            model.generate(**call, max_new_tokens=3, **modes[mode])


def test_a_suffix_of_padding_after_a_cached_prefix_is_refused(model: Any) -> None:
    ids = tokens(2, 6)
    with attach(model, surgery()):
        cache = model(input_ids=ids[:, :5], use_cache=True).cache
        mask = torch.ones(2, 6)
        mask[1, 5] = 0
        with pytest.raises(InputError, match="row 1"):
            model.generate(ids, attention_mask=mask, cache=cache, max_new_tokens=2)
