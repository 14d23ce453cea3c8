"""Positions: whatever the padding, the cache or the batch, each token gets its own table row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from surgekit.adapters.attach import attach
from surgekit.adapters.positions import (
    bound_arguments,
    remember_positions,
    token_positions,
)
from surgekit.errors import InputError

from .families import family
from .surgeries import TABLE, close, left_padded, logits_by_hand, surgery, tokens
from .tiny import llama

FORMS = ["darts", "add", "parallel", "linear-cut"]
GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}


@pytest.fixture
def model() -> Any:
    return llama(2)


def by_steps(model: Any, module: Any, row: Tensor, prompt: int) -> Tensor:
    """(steps, V) logits by hand that predict each token of ``row`` (T,) after the prompt's."""
    logits = logits_by_hand(model, module, range(len(row)), input_ids=row[None], use_cache=False)
    return logits[0, prompt - 1 : -1]


# -- what the positions are read from --------------------------------------------------------------


def cache_of(length: int, name: str = "cache") -> dict[str, Any]:
    return {name: SimpleNamespace(get_seq_length=lambda: torch.tensor(length))}


IDS = torch.zeros(2, 4, dtype=torch.long)
LEFT = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({}, [[0, 1, 2, 3]]),
        ({"attention_mask": None, "position_ids": None, "cache": None}, [[0, 1, 2, 3]]),
        ({"position_ids": torch.tensor([[5, 6, 7, 8]])}, [[5, 6, 7, 8]]),
        ({"position_ids": torch.tensor([3, 4, 5, 6]), "attention_mask": LEFT}, [[3, 4, 5, 6]]),
        ({"position_ids": torch.arange(24).view(3, 2, 4)}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ({"position_ids": torch.arange(6)[None]}, [[2, 3, 4, 5]]),
        ({"attention_mask": LEFT}, [[-1, -1, 0, 1], [0, 1, 2, 3]]),
        ({"attention_mask": LEFT.bool()}, [[-1, -1, 0, 1], [0, 1, 2, 3]]),
        ({"attention_mask": LEFT.float()}, [[-1, -1, 0, 1], [0, 1, 2, 3]]),
        ({"attention_mask": LEFT.flip(1)}, [[0, 1, -1, -1], [0, 1, 2, 3]]),
        ({"attention_mask": torch.tensor([[1, 0, 0, 1]])}, [[0, -1, -1, 1]]),
        (
            {"attention_mask": torch.cat([LEFT, torch.ones_like(LEFT)], 1)} | cache_of(4),
            [[2, 3, 4, 5], [4, 5, 6, 7]],
        ),
        # A static cache is wider than what has been seen.
        (
            {"attention_mask": torch.cat([LEFT] + 4 * [torch.ones_like(LEFT)], 1)} | cache_of(4),
            [[2, 3, 4, 5], [4, 5, 6, 7]],
        ),
        (cache_of(3), [[3, 4, 5, 6]]),
        (cache_of(3, "past_key_values"), [[3, 4, 5, 6]]),
        (cache_of(3) | {"attention_mask": torch.zeros(2, 1, 4, 7)}, [[3, 4, 5, 6]]),
    ],
)
def test_positions_of_a_call(call: dict[str, Any], expected: list[list[int]]) -> None:
    assert token_positions({"input_ids": IDS} | call).tolist() == expected
    embedded = {"input_ids": None, "inputs_embeds": torch.zeros(2, 4, 8)}
    assert token_positions(embedded | call).tolist() == expected


class Running:
    """A state that passes on no length; like Mamba's cache, it knows whether it has begun."""

    begun = False

    def has_previous_state(self) -> bool:
        return self.begun

    def get_seq_length(self) -> int:
        raise ValueError("no layer that counts")


@pytest.mark.parametrize("kind", ["cache", "list", "tuple output"])
def test_a_state_without_a_length_bears_a_note(kind: str) -> None:
    state: Any = [torch.zeros(1)] if kind == "list" else Running()
    name = "state" if kind == "list" else "cache"

    def step(**call: Any) -> list[list[int]]:
        carried = {} if kind == "list" and not call.pop("carry", True) else {name: state}
        call.pop("carry", None)
        found = token_positions({"input_ids": IDS[:, :3]} | carried | call)
        remember_positions((0, state) if kind == "tuple output" else {name: state}, found)
        if isinstance(state, Running):
            state.begun = True
        return found.tolist()

    first = torch.tensor([[0, 0, 0], [1, 1, 1]])
    assert step(attention_mask=first, carry=False) == [[-1, -1, -1], [0, 1, 2]]
    assert step(attention_mask=first.flip(0)) == [[0, 1, 2], [-1, -1, -1]]
    assert step() == [[3, 4, 5], [3, 4, 5]]
    wide = torch.cat([first, first.flip(0), first, first], 1)
    assert step(attention_mask=wide) == [[-1, -1, -1], [6, 7, 8]]
    assert step(position_ids=torch.tensor([[2, 3, 4]])) == [[2, 3, 4]]
    assert step() == [[5, 6, 7]]


def test_a_state_of_other_rows_tells_nothing() -> None:
    state = Running()
    remember_positions({"cache": state}, torch.tensor([[0], [1], [2]]))
    state.begun = True
    call = {"input_ids": IDS, "cache": state}
    with pytest.raises(InputError, match="position_ids"):
        token_positions(call)
    assert token_positions(call, required=False).numel() == 0
    for unknown in ({"cache": SimpleNamespace()}, {"state": ()}):
        with pytest.raises(InputError, match="position_ids"):
            token_positions({"input_ids": IDS} | unknown)
    assert token_positions({"input_ids": IDS, "cache": Running()}).tolist() == [[0, 1, 2, 3]]


def test_a_call_without_tokens_has_no_positions() -> None:
    for call in ({}, {"input_ids": None, "inputs_embeds": None}):
        with pytest.raises(InputError, match="input_ids"):
            token_positions(call)


def test_arguments_are_named_however_they_were_passed() -> None:
    class Body(nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> None: ...

    assert bound_arguments(Body(), (1,), {"attention_mask": 2, "cache": 3}) == {
        "input_ids": 1,
        "attention_mask": 2,
        "cache": 3,
    }
    assert bound_arguments(Body(), (1, 2), {}) == {"input_ids": 1, "attention_mask": 2}
    assert bound_arguments(Body(), (), {"input_ids": 1}) == {"input_ids": 1}


# -- plain forward ---------------------------------------------------------------------------------


def test_positions_past_the_table_get_no_position_part(model: Any) -> None:
    ids, module = tokens(1, TABLE + 6), surgery("table")
    plain = logits_by_hand(model, None, None, input_ids=ids)
    with attach(model, module):
        found = model(input_ids=ids).logits
    assert (found[:, :TABLE] - plain[:, :TABLE]).abs().amax(-1).min() > 0.1
    close(found[:, TABLE:], plain[:, TABLE:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_plain_forward_counts_from_the_mask(form: str, side: str, model: Any) -> None:
    rows, module = [tokens(1, n, seed=n)[0] for n in (3, 8, 1)], surgery(form)
    batch = left_padded(rows)
    places = batch["attention_mask"].cumsum(-1) - 1
    if side == "right":
        for k, row in enumerate(rows):
            shift = len(row) - 8
            batch = {n: v.clone() for n, v in batch.items()}
            for value in batch.values():
                value[k] = value[k].roll(shift)
        places = torch.arange(8).expand(3, -1)
    expected = logits_by_hand(model, module, places, **batch)
    with attach(model, module):
        found = model(**batch).logits
    real = batch["attention_mask"].bool()
    close(found[real], expected[real])


def test_packed_sequences_count_anew_by_their_position_ids(model: Any) -> None:
    ids = tokens(1, 12)
    places = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    module = surgery()
    expected = logits_by_hand(model, module, places, input_ids=ids, position_ids=places)
    apart = logits_by_hand(model, module, range(12), input_ids=ids, position_ids=places)
    assert (expected - apart)[0, 5:].abs().max() > 0.5
    with attach(model, module):
        close(model(input_ids=ids, position_ids=places).logits, expected)
        close(model(input_ids=ids, position_ids=places[0][None]).logits, expected)


def test_embeddings_in_place_of_tokens(model: Any) -> None:
    batch = left_padded([tokens(1, 3)[0], tokens(1, 7)[0]])
    embedded = model.model.embed_tokens(batch["input_ids"])
    with attach(model, surgery()):
        expected = model(**batch).logits
        found = model(inputs_embeds=embedded, attention_mask=batch["attention_mask"]).logits
        start = {"inputs_embeds": embedded, "attention_mask": batch["attention_mask"]}
        from_ids = model.generate(**batch, **GREEDY, max_new_tokens=5)
        from_embeddings = model.generate(**start, **GREEDY, max_new_tokens=5)
    assert torch.equal(found, expected)
    assert torch.equal(from_ids.sequences[:, 7:], from_embeddings.sequences)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("given", ["nothing", "mask", "position_ids"])
def test_chunks_through_a_cache_equal_one_forward(kind: str, given: str, model: Any) -> None:
    rows = [tokens(1, 9, seed=1)[0], tokens(1, 9 if given == "nothing" else 4, seed=2)[0]]
    batch, module = left_padded(rows), surgery()
    mask = batch["attention_mask"]
    places = mask.cumsum(-1) - 1
    call = {"attention_mask": mask}
    if given == "position_ids":
        call["position_ids"] = places.clamp(min=0)
    expected = logits_by_hand(model, module, places, input_ids=batch["input_ids"], **call)
    cache: Any = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=16)
    found = []
    with attach(model, module):
        for start, end in ((0, 5), (5, 6), (6, 9)):
            part: dict[str, Tensor] = {}
            if given != "nothing":
                part["attention_mask"] = mask[:, :end]
            if given == "position_ids":
                part["position_ids"] = call["position_ids"][:, start:end]
            found.append(model(input_ids=batch["input_ids"][:, start:end], cache=cache, **part))
    logits = torch.cat([f.logits for f in found], 1)
    close(logits[mask.bool()], expected[mask.bool()])


# -- generation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_each_step_of_generation_equals_the_whole_computed_anew(
    form: str, cache: str | None, model: Any
) -> None:
    ids, module = tokens(2, 3), surgery(form)
    how = {"cache_implementation": cache} if cache else {"use_cache": False}
    with attach(model, module):
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **GREEDY,
            **how,
            max_new_tokens=8,
            eos_token_id=None,
        )
    logits = torch.stack(made.logits, 1)
    for row, found in zip(made.sequences, logits, strict=True):
        expected = by_steps(model, module, row, prompt=3)
        close(found, expected)
        assert torch.equal(expected.argmax(-1), row[3:])


def test_generation_of_a_padded_batch_equals_single_rows(model: Any) -> None:
    pad = 258  # the end token is the padding, and stands inside a prompt as well
    rows = [torch.tensor([7, pad, 9, 11]), torch.tensor([5]), tokens(1, 9)[0]]
    module = surgery()
    with attach(model, module):
        free = model.generate(**left_padded(rows), **GREEDY, max_new_tokens=6, eos_token_id=None)
        # One row stops at its third token; the others must not notice its padding.
        end = int(free.sequences[0, -4])
        ending = [
            {"max_new_tokens": 6, "eos_token_id": e, "pad_token_id": p}
            for e, p in ((None, pad), (end, end))
        ]
        for how in ending:
            batch = left_padded(rows, pad=how["pad_token_id"])
            made = model.generate(**batch, **GREEDY, **how)
            logits = torch.stack(made.logits, 1)
            for k, row in enumerate(rows):
                call = {"input_ids": row[None], "attention_mask": torch.ones(1, len(row))}
                alone = model.generate(**call, **GREEDY, **how)
                steps = len(alone.logits)
                new = made.sequences[k, -logits.shape[1] :]
                assert torch.equal(new[:steps], alone.sequences[0, len(row) :])
                assert bool((new[steps:] == how["pad_token_id"]).all())
                close(logits[k, :steps], torch.cat(alone.logits))
    for k, row in enumerate(rows):
        whole = torch.cat([row, free.sequences[k, -6:]])
        close(torch.stack(free.logits, 1)[k], by_steps(model, module, whole, len(row)))


NAMES = ["math", "__base__", "code", "math"]


def adapters() -> dict[str, Any]:
    return {"math": surgery("darts", seed=1), "code": surgery("add", seed=2)}


def test_rows_with_different_adapters_equal_separate_runs(model: Any) -> None:
    rows = [tokens(1, n, seed=n)[0] for n in (2, 5, 9, 5)]
    how = {"max_new_tokens": 5, "eos_token_id": None}
    with attach(model, adapters()) as handle:
        with handle.rows(NAMES):
            made = model.generate(**left_padded(rows), **GREEDY, **how)
            forward = model(**left_padded(rows)).logits
        logits = torch.stack(made.logits, 1)
        for k, (row, name) in enumerate(zip(rows, NAMES, strict=True)):
            handle.set_adapter(name)
            call = {"input_ids": row[None], "attention_mask": torch.ones(1, len(row))}
            alone = model.generate(**call, **GREEDY, **how)
            assert torch.equal(made.sequences[k, -5:], alone.sequences[0, -5:])
            close(logits[k], torch.cat(alone.logits))
            close(forward[k, -len(row) :], model(input_ids=row[None]).logits[0])
        # One tensor of positions for all rows.
        ids = tokens(4, 7)
        with handle.rows(NAMES):
            found = model(input_ids=ids, position_ids=torch.arange(7)[None]).logits
    for k, name in enumerate(NAMES):
        module = adapters().get(name)
        close(found[k], logits_by_hand(model, module, range(7), input_ids=ids[k : k + 1])[0])


def test_what_the_model_computed_is_not_written_over(model: Any) -> None:
    ids = tokens(2, 9)
    seen: list[Tensor] = []
    model.model.norm.register_forward_hook(lambda m, a, out: seen.append(out))
    with attach(model, adapters()) as handle:
        model(input_ids=ids)
        with handle.rows(["code", "__base__"]):
            model(input_ids=ids)
    model(input_ids=ids)
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[2])


def test_beam_search_with_an_adapter_a_row_equals_separate_runs(model: Any) -> None:
    ids = tokens(4, 4)
    how = {
        "num_beams": 3,
        "max_new_tokens": 5,
        "do_sample": False,
        "num_return_sequences": 2,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    with attach(model, adapters()) as handle:
        with handle.rows(NAMES, beams=3):
            made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **how)
        for k, name in enumerate(NAMES):
            handle.set_adapter(name)
            one = ids[k : k + 1]
            alone = model.generate(input_ids=one, attention_mask=torch.ones_like(one), **how)
            width = alone.sequences.shape[1]
            assert torch.equal(made.sequences[2 * k : 2 * k + 2, :width], alone.sequences)
            close(made.sequences_scores[2 * k : 2 * k + 2], alone.sequences_scores)


def test_several_samples_of_a_row_share_its_adapter(model: Any) -> None:
    ids, modules = tokens(4, 4), adapters()
    with attach(model, modules) as handle, handle.rows(NAMES, beams=3):
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            num_return_sequences=3,
            max_new_tokens=5,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
    assert len({tuple(r) for r in made.sequences.tolist()}) > len(NAMES)
    logits = torch.stack(made.logits, 1)
    for k, row in enumerate(made.sequences):
        close(logits[k], by_steps(model, modules.get(NAMES[k // 3]), row, prompt=4))


@pytest.mark.parametrize("name", ["gpt2", "opt", "bloom", "gemma2"])
def test_other_families_count_as_well(name: str) -> None:
    """OPT counts padding as −1, Bloom hands no positions on, GPT-2 and OPT learn them."""
    model, module = family(name), surgery()
    rows = [tokens(1, n, seed=n)[0] for n in (2, 8)]
    how = {"max_new_tokens": 4, "eos_token_id": None}
    with attach(model, module):
        made = model.generate(**left_padded(rows), **GREEDY, **how)
        apart = [
            model.generate(row[None], attention_mask=torch.ones(1, len(row)), **GREEDY, **how)
            for row in rows
        ]
        # A row alone, in one forward: positions are 0, 1, 2, … beyond doubt.
        whole = [model(input_ids=alone.sequences).logits[0, -5:-1] for alone in apart]
    logits = torch.stack(made.logits, 1)
    for k, alone in enumerate(apart):
        assert torch.equal(made.sequences[k, -4:], alone.sequences[0, -4:])
        close(logits[k], torch.cat(alone.logits))
        close(logits[k], whole[k])
        bare = model(input_ids=alone.sequences).logits[0, -5:-1]
        assert (bare - whole[k]).abs().max() > 0.05
