"""Exactness on every family: corrected logits are the formula's, however tokens come in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from surgekit.adapters.attach import attach
from surgekit.errors import InputError
from surgekit.models.anatomy import find_anatomy
from surgekit.states.capture import capture
from surgekit.states.prompts import pack_tokens

from .families import FAMILIES, PAD, family, head_by_hand, states_of
from .oracle import entropy
from .surgeries import TABLE, close, corrected_by_hand, left_padded, surgery, tokens

LENGTH = TABLE + 8  # past the table's end, past every window
PROMPT = 3
STEPS = 9  # of generation: past the table's end and the window too
GREEDY = {
    "do_sample": False,
    "eos_token_id": None,
    "pad_token_id": PAD,
    "max_new_tokens": STEPS,
    "return_dict_in_generate": True,
    "output_logits": True,
}

# What a family of transformers 5.24 cannot do by itself, with or without a correction. Each entry
# is held against the bare model: a table that no longer tells the truth fails.
UNLIKE_UNPADDED = {
    "rwkv": "takes no mask: padding is text to it; and its steps mix the rows of a batch",
    "recurrent_gemma": "its convolution has seen the padding",
}
"""Rows of a left-padded batch do not have the states they have alone."""
ONE_ROW = {"rwkv"}
"""So these are tested on one row where the rest is on two."""
UNLIKE_WHOLE = {"bamba": "counts every step from 0 where no position_ids are given"}
"""A loop of one's own that passes the cache alone does not give the states of one forward."""
WITHOUT_CACHE = {
    "openai-gpt": "has none",
    "recurrent_gemma": "keeps its state in its own layers",
}
WITHOUT_STATIC_CACHE = {
    "gpt_neo": "its own mask does not fit the static length",
    "falcon-alibi": "builds alibi from a two-dimensional mask, and is handed another",
}
WITHOUT_BEAMS = {
    "rwkv": "its state cannot be reordered",
    "recurrent_gemma": "the state in its layers is not reordered",
}
WITHOUT_ROLLBACK = dict.fromkeys(
    (
        "qwen3_next",
        "qwen3_5",
        "olmo_hybrid",
        "mamba",
        "falcon_mamba",
        "mamba2",
        "rwkv",
        "recurrent_gemma",
        "jamba",
        "bamba",
        "falcon_h1",
        "granitemoehybrid",
        "nemotron_h",
        "zaya",
    ),
    "a running state cannot take back rejected tokens",
) | {"openai-gpt": "has no cache", "mpt": "supports none in assisted decoding"}
WITHOUT_POSITION_IDS = dict.fromkeys(
    ("bloom", "mpt", "mamba", "falcon_mamba", "mamba2", "rwkv"), "takes none"
)
UNLIKE_EMBEDDED = {"gemma3n": "each of its layers looks the token ids up once more"}
WITHOUT_EMBEDDED_GENERATION = dict.fromkeys(
    ("openai-gpt", "ctrl", "bamba", "falcon_h1", "nemotron_h"), "generate takes none"
)
WITHOUT_MASK = {"rwkv": "takes none"}
WITHOUT_CHECKPOINTING = dict.fromkeys(("openai-gpt", "ctrl", "jetmoe"), "does not implement it")

every = pytest.mark.parametrize("name", FAMILIES)


@cache
def model_of(name: str) -> Any:
    return family(name)


@pytest.fixture
def model(name: str) -> Iterator[Any]:
    made = model_of(name)
    yield made
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in made.modules())


@cache
def surgery_for(name: str) -> Any:
    return surgery("darts", hidden=FAMILIES[name].width)


def by_hand(name: str, model: Any, positions: Any, **call: Any) -> Tensor:
    """(B, T, V) float64 logits of the corrected model, from the bare model's states."""
    states = corrected_by_hand(surgery_for(name), states_of(name, model, **call), positions)
    return torch.from_numpy(head_by_hand(name, model, states))


def loop(name: str, model: Any, ids: Tensor, prompt: int) -> Iterator[Any]:
    """Outputs of a prompt's forward and of one forward a token after it, through the cache."""
    carried: dict[str, Any] = {}
    with torch.no_grad():
        for start, end in [(0, prompt), *((i, i + 1) for i in range(prompt, ids.shape[1]))]:
            out = model(input_ids=ids[:, start:end], use_cache=True, **carried)
            carried = {k: out[k] for k in ("cache", "state") if k in out}
            assert bool(carried) == (name not in WITHOUT_CACHE)
            yield out


def loop_by_hand(name: str, model: Any, ids: Tensor, prompt: int) -> Tensor:
    """(B, T, V) corrected logits from the states of the bare model's steps."""
    body, seen = model.get_submodule(FAMILIES[name].body), list[Tensor]()
    hook = body.register_forward_hook(lambda m, a, out: seen.append(out[0]))
    try:
        list(loop(name, model, ids, prompt))
    finally:
        hook.remove()
    states = torch.cat(seen, 1)
    moved = corrected_by_hand(surgery_for(name), states, range(ids.shape[1]))
    return torch.from_numpy(head_by_hand(name, model, moved))


def steps_by_hand(name: str, model: Any, row: Tensor, prompt: int) -> Tensor:
    """(steps, V) logits that predict each token of ``row`` (T,) after the prompt's."""
    call = {"input_ids": row[None], "attention_mask": torch.ones_like(row[None])}
    return by_hand(name, model, range(len(row)), **call, use_cache=False)[0, prompt - 1 : -1]


def worst(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).abs().max())


def each_row(rows: list[Tensor], made: Any) -> Iterator[tuple[Tensor, Tensor, int]]:
    """(all its tokens without padding, logits of its steps, length of its prompt) of each row."""
    for row, sequence, logits in zip(
        rows, made.sequences, torch.stack(made.logits, 1), strict=True
    ):
        yield torch.cat([row, sequence[-len(logits) :]]), logits, len(row)


def check_steps(name: str, model: Any, rows: list[Tensor], made: Any) -> None:
    """Every step's logits are those by hand of its row alone, computed anew."""
    for row, logits, prompt in each_row(rows, made):
        close(logits, steps_by_hand(name, model, row, prompt))


@torch.no_grad()
def error_of_bare(model: Any, rows: list[Tensor], made: Any) -> float:
    """How far the bare model's own steps are from a forward of each row alone."""
    return max(
        worst(logits, model(input_ids=row[None], use_cache=False).logits[0, prompt - 1 : -1])
        for row, logits, prompt in each_row(rows, made)
    )


# -- the formula -----------------------------------------------------------------------------------


@every
def test_body_and_head_are_found(name: str, model: Any) -> None:
    made, ids = FAMILIES[name], tokens(2, LENGTH)
    anatomy, head = find_anatomy(model)
    assert (anatomy.body, anatomy.head, anatomy.hidden_size) == (made.body, made.head, made.width)
    assert (head.scale, head.softcap) == (made.scale, made.softcap)
    own, states = model(input_ids=ids).logits, states_of(name, model, input_ids=ids)
    close(own, torch.from_numpy(head_by_hand(name, model, states.double().numpy())), 1e-5)
    close(head.logits(states), own, 1e-5)


@every
def test_corrected_logits_are_the_formula_applied_by_hand(name: str, model: Any) -> None:
    ids = tokens(2, LENGTH)
    expected = by_hand(name, model, range(LENGTH), input_ids=ids)
    elsewhere = by_hand(name, model, range(1, LENGTH + 1), input_ids=ids)
    with torch.no_grad():
        plain = model(input_ids=ids).logits
    assert worst(plain, expected) > 0.3  # else agreement would say nothing
    assert worst(elsewhere, expected) > 0.3  # positions matter
    with attach(model, surgery_for(name)):
        found = model(input_ids=ids).logits
    close(found, expected)
    assert torch.equal(model(input_ids=ids).logits, plain)


@every
def test_embeddings_in_place_of_tokens(name: str, model: Any) -> None:
    ids = tokens(2, LENGTH)
    embedded = model.get_input_embeddings()(ids)
    # A copy each time: CTRL writes into it.
    expected = by_hand(name, model, range(LENGTH), inputs_embeds=embedded.clone())
    from_ids = by_hand(name, model, range(LENGTH), input_ids=ids)
    assert (worst(expected, from_ids) > 1e-3) == (name in UNLIKE_EMBEDDED)
    with attach(model, surgery_for(name)):
        close(model(inputs_embeds=embedded.clone()).logits, expected)
        start = {"inputs_embeds": embedded.clone(), "attention_mask": torch.ones_like(ids)}
        if name in WITHOUT_EMBEDDED_GENERATION:
            with pytest.raises(ValueError, match="inputs_embeds"):
                model.generate(**start, **GREEDY)
            return
        made = model.generate(**start, **GREEDY)
        again = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **GREEDY)
    close(made.logits[0], expected[:, -1])
    if name not in UNLIKE_EMBEDDED:
        assert torch.equal(made.sequences, again.sequences[:, LENGTH:])
        close(torch.stack(made.logits), torch.stack(again.logits))


@every
def test_packed_sequences_count_anew_by_their_position_ids(name: str, model: Any) -> None:
    ids = tokens(1, 12)
    places = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    call = {"input_ids": ids, "position_ids": places}
    expected = by_hand(name, model, places, **call)
    if name in WITHOUT_POSITION_IDS:
        assert torch.equal(states_of(name, model, **call), states_of(name, model, input_ids=ids))
        expected = by_hand(name, model, range(12), **call)
    with attach(model, surgery_for(name)):
        close(model(**call).logits, expected)


@every
def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    model, ids = family(name), tokens(2, LENGTH)
    embedded = model.get_input_embeddings()(ids).clone().requires_grad_()
    expected = by_hand(name, model, range(LENGTH), inputs_embeds=embedded.detach().clone())

    def gradient() -> tuple[Tensor, Tensor]:
        logits = model(inputs_embeds=1 * embedded, use_cache=False).logits
        return logits, torch.autograd.grad(torch.logsumexp(logits, -1).sum(), embedded)[0]

    assert model.supports_gradient_checkpointing == (name not in WITHOUT_CHECKPOINTING)
    with attach(model, surgery_for(name)):
        _, plain = gradient()
        model.train()
        if name not in WITHOUT_CHECKPOINTING:
            model.activation_checkpointing_enable({"use_reentrant": False})
        logits, found = gradient()
    close(logits.detach(), expected)
    close(found, plain, 1e-4 * float(plain.abs().max()) + 1e-5)


# -- cache -----------------------------------------------------------------------------------------


@every
def test_each_step_with_a_cache_equals_the_whole_computed_anew(name: str, model: Any) -> None:
    ids = tokens(1 if name in ONE_ROW else 2, LENGTH)
    if name in WITHOUT_CACHE:
        assert not {"cache", "state"} & set(model(input_ids=ids, use_cache=True))
        return
    whole = by_hand(name, model, range(LENGTH), input_ids=ids, use_cache=False)
    steps = loop_by_hand(name, model, ids, PROMPT)
    assert (worst(steps, whole) > 1e-3) == (name in UNLIKE_WHOLE)
    with attach(model, surgery_for(name)):
        found = torch.cat([out.logits for out in loop(name, model, ids, PROMPT)], 1)
    close(found, steps)


# -- generation ------------------------------------------------------------------------------------

ROWS = [3, 8, 5, 1, 2, 8, 1, 6]


@every
def test_a_left_padded_batch_equals_its_rows_alone(name: str, model: Any) -> None:
    rows = [tokens(1, n, seed=k)[0] for k, n in enumerate(ROWS)]
    rows[2][1] = PAD  # the end token is the padding, and stands inside a prompt as well
    bare = model.generate(**left_padded(rows[:4]), **GREEDY)
    assert (error_of_bare(model, rows[:4], bare) > 1e-3) == (name in UNLIKE_UNPADDED)
    sizes = (1,) if name in UNLIKE_UNPADDED else (1, 4, 8)
    with attach(model, surgery_for(name)):
        made = {n: model.generate(**left_padded(rows[:n]), **GREEDY) for n in sizes}
    for n, batch in made.items():
        check_steps(name, model, rows[:n], batch)
        new = made[max(sizes)].sequences[:n, -STEPS:]
        assert torch.equal(batch.sequences[:, -STEPS:], new)


@every
def test_a_static_cache_gives_the_same(name: str, model: Any) -> None:
    lengths = [5] if name in UNLIKE_UNPADDED else [2, 5]
    rows = [tokens(1, n, seed=n + k)[0] for k, n in enumerate(lengths)]
    how = GREEDY | {"cache_implementation": "static"}
    if name in WITHOUT_STATIC_CACHE:
        try:
            error = error_of_bare(model, rows, model.generate(**left_padded(rows), **how))
        except (RuntimeError, ValueError):
            return
        assert error > 1e-3
        return
    with attach(model, surgery_for(name)):
        made = model.generate(**left_padded(rows), **how)
    check_steps(name, model, rows, made)


@every
def test_samples_are_drawn_from_the_corrected_logits(name: str, model: Any) -> None:
    rows = list(tokens(1 if name in ONE_ROW else 2, PROMPT))
    how = GREEDY | {"do_sample": True, "top_k": 0}
    with attach(model, surgery_for(name)):
        torch.manual_seed(3)
        made = model.generate(**left_padded(rows), **how)
    check_steps(name, model, rows, made)
    # The same numbers drawn from the logits by hand give the same tokens.
    torch.manual_seed(3)
    expected = [steps_by_hand(name, model, row, PROMPT) for row in made.sequences]
    for step in range(STEPS):
        chances = torch.stack([e[step] for e in expected]).float().softmax(-1)
        drawn = torch.multinomial(chances, 1)[:, 0]
        assert torch.equal(drawn, made.sequences[:, PROMPT + step])


@every
def test_beam_search_scores_the_corrected_logits(name: str, model: Any) -> None:
    rows = list(tokens(1 if name in ONE_ROW else 2, PROMPT))
    how = GREEDY | {"num_beams": 3, "num_return_sequences": 2, "output_scores": True}
    if name in WITHOUT_BEAMS:
        try:
            bare = model.generate(**left_padded(rows), **how)
        except ValueError:
            return
        again = [model(input_ids=r[None], use_cache=False).logits for r in bare.sequences]
        pairs = zip(again, bare.sequences, strict=True)
        scores = [mean_chance(logits[0, PROMPT - 1 : -1], row) for logits, row in pairs]
        assert worst(bare.sequences_scores, torch.stack(scores)) > 1e-3
        return
    with attach(model, surgery_for(name)):
        made = model.generate(**left_padded(rows), **how)
    for row, score in zip(made.sequences, made.sequences_scores, strict=True):
        close(score, mean_chance(steps_by_hand(name, model, row, PROMPT), row))


@every
@pytest.mark.parametrize("draft", ["assistant", "lookup"])
def test_drafted_tokens_change_nothing(name: str, draft: str, model: Any) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    how = {"prompt_lookup_num_tokens": 3}
    if draft == "assistant":
        how = {"assistant_model": family("llama")}
    if name in WITHOUT_ROLLBACK:
        with pytest.raises((ValueError, RuntimeError, AttributeError), match=r"(?i)assisted|cache"):
            model.generate(**call, **GREEDY, **how)
        return
    with attach(model, surgery_for(name)):
        plain = model.generate(**call, **GREEDY)
        made = model.generate(**call, **GREEDY, **how)
    assert torch.equal(made.sequences, plain.sequences)
    check_steps(name, model, [ids[0]], made)


def mean_chance(logits: Tensor, row: Tensor) -> Tensor:
    """Mean log-probability of a row's last tokens under the logits (steps, V) before them."""
    steps = torch.arange(len(logits))
    return logits.double().log_softmax(-1)[steps, row[-len(logits) :]].mean()


# -- padding where it does not belong --------------------------------------------------------------


@every
def test_generation_after_padding_on_the_right_is_refused(name: str, model: Any) -> None:
    rows = [tokens(1, n, seed=n)[0] for n in (3, 6)]
    batch = left_padded(rows)
    for value in batch.values():
        value[0] = value[0].roll(-3)
    with attach(model, surgery_for(name)) as handle:
        with pytest.raises(InputError, match="padding_side"):
            model.generate(**batch, **GREEDY)
        with handle.disable_adapter():
            model.generate(**batch, **GREEDY)
        found = model(**batch).logits
    for k, row in enumerate(rows):
        expected = by_hand(name, model, range(len(row)), input_ids=row[None])
        close(found[k, : len(row)], expected[0])


@every
def test_a_mask_with_holes_counts_what_it_shows(name: str, model: Any) -> None:
    ids = tokens(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, [0, 2, 3]] = 0
    mask[1, [1, 4]] = 0
    places = mask.cumsum(-1) - 1
    call = {"input_ids": ids, "attention_mask": mask}
    if name in WITHOUT_MASK:
        places = torch.arange(LENGTH)
    expected = by_hand(name, model, places, **call)
    with attach(model, surgery_for(name)):
        found = model(**call).logits
    close(found[mask.bool()], expected[mask.bool()])


# -- capture ---------------------------------------------------------------------------------------


@every
def test_captured_states_are_those_of_single_runs(name: str, model: Any) -> None:
    lengths = [3, LENGTH, 9, 1, 2, 9]
    rows = [tokens(1, n, seed=k)[0] for k, n in enumerate(lengths)]
    alone = [states_of(name, model, input_ids=r[None], use_cache=False)[0] for r in rows]
    expected = torch.cat(alone)
    entropies = entropy(head_by_hand(name, model, expected.double().numpy()))
    for size in (1, 4, 8):
        found = capture(
            model,
            pack_tokens(rows, [1] * len(rows)),
            entropies=True,
            batch_size=size,
            dtype=torch.float32,
        )
        close(found.hidden, expected)
        assert found.entropies is not None
        close(found.entropies, torch.from_numpy(entropies))


# -- the table in the docs -------------------------------------------------------------------------

LIMITS = {
    "left padding": UNLIKE_UNPADDED,
    "attention masks": WITHOUT_MASK,
    "KV cache": WITHOUT_CACHE,
    "a loop of one's own without `position_ids`": UNLIKE_WHOLE,
    "static cache": WITHOUT_STATIC_CACHE,
    "beam search": WITHOUT_BEAMS,
    "assisted decoding, prompt lookup": WITHOUT_ROLLBACK,
    "packing by `position_ids`": WITHOUT_POSITION_IDS,
    "`inputs_embeds` alone": UNLIKE_EMBEDDED,
    "`generate` from `inputs_embeds`": WITHOUT_EMBEDDED_GENERATION,
    "gradient checkpointing": WITHOUT_CHECKPOINTING,
}


def test_the_table_in_the_docs_is_this_one() -> None:
    text = (Path(__file__).parents[1] / "docs" / "families.md").read_text(encoding="utf-8")
    limited = {n for table in LIMITS.values() for n in table}
    for name in FAMILIES:
        if name not in limited:
            assert f"`{name}`" in text, f"docs/families.md does not list {name}"
    for what, table in LIMITS.items():
        for name, why in table.items():
            row = f"| `{name}` | {what} | {why} |"
            assert row in text, f"docs/families.md lacks the line {row}"
    assert f"{len(FAMILIES)} families" in text
