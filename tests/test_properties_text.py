"""Any text at all: recipes, merge configurations and prompts are read, or refused in one line."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from surgekit.errors import InputError
from surgekit.recipe import Recipe
from surgekit.states.prompts import Prompt, tokenize_prompts

from .damage import Damage, damaged, damages
from .examples import examples
from .invariants import FORMATS, merge_config_of, prompts, recipe, recipe_of, tokens_of
from .recipes import FULL, SMALL, added, parsed
from .tiny import TEMPLATE, tokenizer

SECONDS = 5.0
"""That no input may take; a recipe by hand takes milliseconds."""


# -- YAML ------------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.dates()
    | st.datetimes()
    | st.binary(max_size=6)
    | st.text(max_size=8)
    | st.sampled_from(["base", "math", "linear", "darts", "chat", "./x", "~/x", "~nobody/x", "{{"])
)
KEYS = st.sampled_from(
    [
        *("base", "domains", "merge", "surgery", "seeds", "plain_text", "max_length", "batch_size"),
        *("dtype", "device", "position_bin", "body", "head", "expert", "format", "calibration"),
        *("validation", "test", "tasks", "file", "items", "module", "loss", "text", "rank"),
        *("max_positions", "iterations", "learning_rate", "entropy_mean", "ridge", "weights"),
        *("name", "model", "revision", "gguf", "package", "lora", "folder", "merge_method"),
        *("base_model", "models", "slices", "sources", "modules", "parameters", "tokenizer"),
        *("tokenizer_source", "tokens", "source", "kind", "path", "math", "code"),
    ]
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


def swapped(document: Any, path: list[int], value: Any) -> Any:
    """A copy of a document with the value at a place put in; numbers choose the way down."""
    if not path or not isinstance(document, (dict, list)) or not document:
        return value
    copy: Any = document.copy()
    keys = list(copy) if isinstance(copy, dict) else list(range(len(copy)))
    key = keys[path[0] % len(keys)]
    copy[key] = swapped(copy[key], path[1:], value)
    return copy


@examples(150)
@given(document=DOCUMENTS)
def test_any_document_is_a_recipe_or_refused(document: Any) -> None:
    recipe_of(yaml.safe_dump(document))


@examples(300)
@given(
    start=st.sampled_from([SMALL, FULL]),
    path=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    value=DOCUMENTS,
)
def test_any_value_in_any_place_of_a_recipe(start: str, path: list[int], value: Any) -> None:
    text = yaml.safe_dump(swapped(yaml.safe_load(start), path, value))
    if recipe_of(text) is None:
        with pytest.raises(InputError) as caught:
            parsed(text)
        where = re.match(r"R\.yaml, line (\d+): ", str(caught.value))
        # Only what is not there at all has no line.
        assert where or "is missing" in str(caught.value), text
        assert where is None or 1 <= int(where[1]) <= len(text.split("\n"))


@examples(200)
@given(start=st.sampled_from([SMALL, FULL]), changes=damages())
def test_any_damage_to_the_bytes_of_a_recipe(start: str, changes: list[Damage]) -> None:
    recipe(damaged(start.encode(), changes))


ALIASES = "".join(f"  k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
COMBINATIONS = json.dumps(
    {
        "module": ["standard", "darts", "add", "parallel"],
        "loss": ["l1", "ewl1", "kl", "ce"],
        "text": ["prompt", "response", "both"],
        **{k: list(range(1, 60)) for k in ("rank", "iterations", "batch_size")},
        "learning_rate": [i / 100 for i in range(1, 60)],
    }
)
TRAPS: dict[str, str] = {
    "aliases of aliases": added(f"x:\n  k0: &a0 [lol]\n{ALIASES}"),
    "merge keys of merge keys": added(
        "x:\n  k0: &a0 {a: 1}\n"
        + "".join(f"  k{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9))
    ),
    "deep lists": added("body: " + "[" * 20_000),
    "deep mappings": added("body: " + "{a: " * 5_000),
    "deep blocks": added("body:\n" + "".join(" " * i + "-\n" for i in range(1, 800))),
    "a long number": added("max_length: " + "9" * 10_000),
    "a huge number": added(f"max_length: {10**25}"),
    "a huge sexagesimal": added("max_length: " + ":".join(["59"] * 3000)),
    "a huge float": added("surgery: [{module: linear, ridge: 1e999}]"),
    "a number that is none": added("surgery: [{module: linear, ridge: .nan}]"),
    "a date": added("body: 2020-01-01"),
    "a date as a domain": SMALL.replace("math:", "2020-01-01:"),
    "a double key": added("seeds: [0]\nseeds: [1]"),
    "millions of methods": added(f"surgery: [{COMBINATIONS}]"),
    "many entries": added(
        "surgery:\n" + "".join(f"- {{module: linear, name: a{i}}}\n" for i in range(300))
    ),
    "many seeds": added(f"seeds: {list(range(5_000))}"),
    "a seed many times": added(f"seeds: {[7] * 5_000}"),
    "a long path": SMALL.replace("cal.jsonl", "a" * 5_000),
    "a long name": SMALL.replace("math:", "m" * 900 + ":"),
    "a long key": added(f"{'k' * 900}: 1"),
    "a long line": added("body: " + "a" * 500_000),
    "many keys": added("".join(f"k{i}: 1\n" for i in range(3_000))),
    "many domains": SMALL
    + "".join(f"  d{i}: {{expert: e, calibration: c, test: t}}\n" for i in range(500)),
    "a long anchor": added(f"body: &{'a' * 50_000} x"),
    "quotes": added("body: " + "'" * 9999),
    "backslashes": added('body: "' + "\\x41" * 50_000 + '"'),
    "comments": added("#" * 300_000),
    "tags": added("body: " + "!!str " * 1000 + "x"),
    "binary": added("body: !!binary " + "A" * 9999),
    "a set": added("body: !!set {a, b}"),
    "an ordered map": added("merge: !!omap [a: 1]"),
    "odd keys": added("? !!python/tuple [1]\n: x"),
    "null keys": added("~: 1"),
    "true keys": added("true: 1\nyes: 2"),
    "numbers as keys of a merge": SMALL.replace("{merge_method: linear}", "{1: 2, 1.5: 3}"),
    "merge of bytes": SMALL.replace("{merge_method: linear}", "{merge_method: !!binary aGk=}"),
    "merge of dates": SMALL.replace("linear}", "linear, x: 2020-01-01, y: 2020-01-01 10:00:00}"),
    "merge of nan": SMALL.replace("linear}", "linear, x: .nan, y: -.inf}"),
    "merge of sets": SMALL.replace("linear}", "linear, x: !!set {a}}"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_traps_are_read_or_refused_in_time(name: str) -> None:
    start = time.process_time()
    recipe(TRAPS[name].encode())
    assert time.process_time() - start < SECONDS


def test_a_message_of_blanks_is_made_in_time() -> None:
    start = time.process_time()
    said = str(InputError("found " + " " * 200_000 + "here, \n in the end"))
    assert time.process_time() - start < SECONDS
    assert said.endswith("here, in the end")


def test_methods_have_a_limit_that_is_said() -> None:
    with pytest.raises(InputError, match=r"line 8: surgery.*10,000 methods"):
        parsed(TRAPS["millions of methods"])
    most = {"iterations": list(range(1, 101)), "batch_size": list(range(1, 51))}
    recipe: Recipe = parsed(added(json.dumps({"surgery": [{"module": "table"} | most]})[1:-1]))
    assert len(recipe.methods()) == 5000


MERGES = st.fixed_dictionaries(
    {"merge_method": st.sampled_from(["linear", "ties", "slerp", "passthrough", "x"])},
    optional={
        "base_model": DOCUMENTS | st.sampled_from(["base", {"model": "base"}]),
        "models": st.lists(
            st.dictionaries(KEYS, DOCUMENTS, max_size=2)
            | st.fixed_dictionaries(
                {"model": st.sampled_from(["math", "code"]) | DOCUMENTS},
                optional={"parameters": DOCUMENTS},
            ),
            max_size=3,
        )
        | DOCUMENTS,
        "slices": DOCUMENTS | st.lists(st.fixed_dictionaries({"sources": DOCUMENTS}), max_size=2),
        "modules": DOCUMENTS | st.dictionaries(KEYS, st.dictionaries(KEYS, DOCUMENTS), max_size=2),
        "parameters": DOCUMENTS,
        "tokenizer": DOCUMENTS
        | st.fixed_dictionaries({"tokens": st.dictionaries(KEYS, DOCUMENTS, max_size=2)}),
        "tokenizer_source": DOCUMENTS,
    },
)


@examples(300)
@given(document=MERGES)
def test_any_merge_configuration_is_resolved_or_refused(document: Any) -> None:
    merge_config_of(yaml.safe_dump(document))


@examples(100)
@given(document=MERGES)
def test_any_merge_configuration_survives_a_recipe(document: Any) -> None:
    text = yaml.safe_dump(yaml.safe_load(SMALL) | {"merge": document})
    recipe_of(text)


# -- prompts ---------------------------------------------------------------------------------------

LETTERS = st.characters(exclude_categories=("Cs",))
PIECES = st.one_of(
    st.text(LETTERS, max_size=12),
    st.sampled_from(
        [
            *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_end|>\n"),
            "<|im_start|>assistant\n",
            *("\r", "\r\n", "\u2028", "\x00", "\x7f", "\x1b[2J", "\u202e", "e\u0301\u0323", "🏳️‍🌈"),
            *("{{ x }}", "{% for %}", "\\u0041", "\ufeff", "\U0010ffff", " ", "\t", "\x85"),
            "\u200b",
        ]
    ),
)  # fmt: skip
WORDS = st.lists(PIECES, max_size=5).map("".join)


@examples(200)
@example(text="a<|im_end|>\n<|im_start|>assistant\nb", response="<|im_end|> \n", format="chat")
@example(text="\u2028", response="\x00", format="plain")
@given(text=WORDS, response=st.none() | WORDS, format=st.sampled_from(FORMATS))
def test_any_text_becomes_its_own_tokens(text: str, response: str | None, format: str) -> None:
    if not text.strip():
        with pytest.raises(ValueError, match="empty"):
            Prompt(prompt=text, response=response)
        return
    assert tokens_of(Prompt(prompt=text, response=response), format) is not None


ROLES = st.sampled_from(["user", "assistant", "system", "tool", "", "<|im_end|>"])


@examples(150)
@given(turns=st.lists(st.tuples(ROLES, WORDS), min_size=1, max_size=4))
def test_any_chat_becomes_its_own_tokens(turns: list[tuple[str, str]]) -> None:
    messages: list[Any] = [{"role": r, "content": c} for r, c in turns]
    try:
        prompt = Prompt(messages=messages)
    except ValueError:
        assert not any(c.strip() for _, c in turns) or [r for r, _ in turns] == ["assistant"]
        return
    assert tokens_of(prompt, "chat") is not None


@examples(200)
@given(
    items=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "prompt": WORDS | DOCUMENTS.filter(lambda d: _json(d) is not None),
                "response": WORDS,
                "messages": st.lists(
                    st.fixed_dictionaries({"role": ROLES, "content": WORDS}), max_size=3
                ),
                "id": st.integers() | st.text(max_size=3) | st.floats(),
            },
        ),
        max_size=4,
    ),
    plain=st.booleans(),
    ends=st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\u2028"]),
)
def test_any_lines_of_json(items: list[dict[str, Any]], plain: bool, ends: str) -> None:
    prompts(ends.join(json.dumps(i, ensure_ascii=plain) for i in items).encode())


def _json(value: Any) -> str | None:
    try:
        return json.dumps(value)
    except TypeError:
        return None


SOUND = (
    '{"prompt": "é🙂", "response": "b\\u2028", "id": 1}\n'
    '{"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "r"}]}\n'
)


@examples(300)
@given(changes=damages())
def test_any_damage_to_a_prompt_file(changes: list[Damage]) -> None:
    prompts(damaged(SOUND.encode(), changes))


@examples(50)
@given(content=st.binary(max_size=60))
def test_any_bytes_as_prompts_recipe_or_merge(content: bytes) -> None:
    prompts(content)
    recipe(content)
    merge_config_of(content.decode(errors="replace"))


LONG = {
    "letters": "a" * 100_000,
    "one script": "日本語" * 33_333,
    "combining": "e" + "\u0301" * 100_000,
    "joined": "👩\u200d" * 33_333,
    "NUL": "\x00" * 100_000,
    "blanks": "a" + " \t\n\r\u2003" * 20_000,
    "special": "<|im_end|>" * 10_000,
    "opened": "<|im_" * 20_000,
    "escapes": "\\u0000{{%" * 10_000,
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("format", FORMATS)
def test_a_hundred_thousand_characters_in_time(name: str, format: str) -> None:
    start = time.process_time()
    tokens = tokens_of(Prompt(prompt=LONG[name], response=LONG[name]), format)
    assert tokens is not None
    assert time.process_time() - start < SECONDS
    cut = tokenize_prompts([Prompt(prompt=LONG[name])], tokenizer(), format=format, max_length=7)
    assert (cut.lengths(), cut.cut) == ([7], 1)


def trimming() -> PreTrainedTokenizerFast:
    """A tokenizer whose template takes the blanks off, as Llama's and Qwen's do."""
    return tokenizer(TEMPLATE.replace("m['content']", "m['content'] | trim"))


def thinking() -> PreTrainedTokenizerFast:
    """A tokenizer whose template opens the answer with what it does not keep."""
    opened = "assistant\n<think>\n\n</think>\n\n{% endif %}"
    return tokenizer(TEMPLATE.replace("assistant\n{% endif %}", opened))


@examples(150)
@given(text=WORDS.filter(str.strip), response=WORDS)
def test_the_response_of_every_template_is_the_answer_alone(text: str, response: str) -> None:
    for made in (trimming(), thinking()):
        tokens = tokenize_prompts([Prompt(prompt=text, response=response)], made, max_length=10_000)
        ids, start = tokens.ids.tolist(), int(tokens.response_starts[0])
        turns = [{"role": "user", "content": text}]
        own = made.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        assert ids[:start] == list(own)
        answer = str(made.decode(ids[start:]))
        assert answer.endswith("<|im_end|>")
        # jinja's trim knows the same blanks as Python's strip.
        assert answer.removesuffix("<|im_end|>").strip() == response.strip()
        mask = tokens.mask("response").tolist()
        assert sum(mask) == len(ids) - start
        assert all(mask[start - 1 : -1])
