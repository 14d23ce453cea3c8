"""Prompts: reading JSONL, and the tokens that chat, plain and jinja formats give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from surgekit.errors import InputError
from surgekit.states.prompts import (
    Prompt,
    TokenizedPrompts,
    check_format,
    pack_tokens,
    read_prompts,
    tokenize_prompts,
)

from .tiny import TEMPLATE, tokenizer

TOKENIZER = tokenizer()
END = "<|im_end|>"
CHAT_HEAD = ["<|im_start|>", *"user", "Ċ", *"hi", END, "Ċ", "<|im_start|>", *"assistant", "Ċ"]
"""Tokens of the prompt ``hi`` in the tiny tokenizer's ChatML; Ċ is a line break, Ġ a blank."""


def shown(tokens: TokenizedPrompts, i: int = 0) -> tuple[list[str], list[str]]:
    """The tokens of prompt and response of sequence i, as the vocabulary spells them."""
    words = TOKENIZER.convert_ids_to_tokens(tokens.sequence(i).tolist())
    assert isinstance(words, list)
    start = int(tokens.response_starts[i])
    return words[:start], words[start:]


def one(
    prompt: str = "hi",
    response: str | None = "yo",
    format: str = "chat",
    with_tokenizer: PreTrainedTokenizerFast = TOKENIZER,
) -> tuple[list[str], list[str]]:
    made = Prompt(prompt=prompt, response=response)
    return shown(tokenize_prompts([made], with_tokenizer, format=format))


# --- reading ------------------------------------------------------------------------------------


def written(folder: Path, content: bytes | str) -> Path:
    file = folder / "p.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_both_forms_are_read(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        '\ufeff{"prompt": "a", "response": "b", "id": "x", "extra": [1]}\r\n\n   \n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u", '
        '"name": "n"}, {"role": "assistant", "content": "r"}], "id": 5}\n'
        '{"messages": [{"role": "user", "content": "u"}]}',
    )
    one, two, three = read_prompts(file)
    assert (one.id, one.turns()) == ("x", ([{"role": "user", "content": "a"}], "b"))
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    assert (two.id, two.turns()) == (5, ([system, user], "r"))
    assert three.turns() == ([user], None)


def test_separators_inside_strings_end_no_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    escaped = text.replace("\x0b", "\\u000b").replace("\x0c", "\\u000c").replace("\x1c", "\\u001c")
    (prompt,) = read_prompts(written(tmp_path, f'{{"prompt": "{escaped}"}}\n'))
    assert prompt.prompt == text


BAD_LINES = {
    "not JSON": ('{"prompt": ', "not JSON"),
    "two documents": ('{"prompt": "a"} {"prompt": "b"}', "not JSON"),
    "a raw tab": ('{"prompt": "a\tb"}', "not JSON"),
    "a list": ('["a"]', "expected a JSON object"),
    "null": ("null", "expected a JSON object"),
    "a number": ('{"prompt": 3}', "prompt: "),
    "neither": ('{"response": "x"}', "either 'prompt' or 'messages'"),
    "both": ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "either"),
    "empty prompt": ('{"prompt": ""}', "the prompt is empty"),
    "blank prompt": ('{"prompt": " \\n\\u2003"}', "the prompt is empty"),
    "no messages": ('{"messages": []}', "'messages' is empty"),
    "blank messages": ('{"messages": [{"role": "user", "content": " "}]}', "'messages' is empty"),
    "no question": ('{"messages": [{"role": "assistant", "content": "x"}]}', "no question"),
    "no content": ('{"messages": [{"role": "user"}]}', "'messages.0.content' is missing"),
    "response aside": (
        '{"messages": [{"role": "user", "content": "b"}], "response": "x"}',
        "'response' goes with 'prompt'",
    ),
    "content of parts": ('{"messages": [{"role": "user", "content": [1]}]}', "0.content: "),
    "deep": ("[" * 100_000, "not JSON"),
    "huge number": ('{"prompt": "a", "n": ' + "1" * 5000 + "}", "not JSON"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named(case: str, tmp_path: Path) -> None:
    line, said = BAD_LINES[case]
    file = written(tmp_path, f'{{"prompt": "fine"}}\n\n{line}\n')
    with pytest.raises(InputError) as caught:
        read_prompts(file)
    assert str(caught.value).startswith(f"{file}, line 3: ")
    assert said in str(caught.value)
    assert "Value error" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for content in (b"\xff\xfe\x00", b"\x80", '{"prompt": "a"}'.encode("utf-16")):
        with pytest.raises(InputError, match="prompt file expected as UTF-8 text"):
            read_prompts(written(tmp_path, content))
    for content in (b"", b"\n \n", b"\xef\xbb\xbf"):
        with pytest.raises(InputError, match="at least one prompt, found none"):
            read_prompts(written(tmp_path, content))
    with pytest.raises(InputError, match="prompt file not found"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="prompt file expected as UTF-8 text"):
        read_prompts(tmp_path)


# --- chat ---------------------------------------------------------------------------------------


def test_chat_ends_at_the_end_of_turn() -> None:
    assert one() == (CHAT_HEAD, [*"yo", END])
    assert one(response="") == (CHAT_HEAD, [END])
    assert one(response=None) == (CHAT_HEAD, [])
    assert one(response=" a\nb")[1] == ["Ġ", "a", "Ċ", "b", END]


def test_the_prompt_is_what_generation_starts_from() -> None:
    turns = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    answered = [*turns, {"role": "assistant", "content": "d"}]
    made = [Prompt.model_validate({"messages": m}) for m in (turns, answered)]
    tokens = tokenize_prompts(made, TOKENIZER)
    wanted: Any = TOKENIZER.apply_chat_template(turns, add_generation_prompt=True)
    wanted = list(wanted["input_ids"] if hasattr(wanted, "keys") else wanted)
    assert tokens.sequence(0).tolist() == wanted
    assert tokens.sequence(1).tolist()[: len(wanted)] == wanted
    assert tokens.response_starts.tolist() == [len(wanted)] * 2
    assert shown(tokens, 1)[1] == ["d", END]


def test_a_template_that_rewrites_the_opening_of_an_answer() -> None:
    """It opens the answer with an empty thought when asked for one, and drops it afterwards."""
    opening = "<|im_start|>assistant\n"
    assert opening in TEMPLATE
    thinking = tokenizer(TEMPLATE.replace(opening, f"{opening}<think></think>"))
    head, answer = one(with_tokenizer=thinking)
    assert head == [*CHAT_HEAD, *"<think></think>"]
    assert answer == [*"yo", END]


def test_a_template_that_drops_the_answer_or_does_not_end_it() -> None:
    assert one(with_tokenizer=tokenizer("{{ messages[0].content }}")) == (["h", "i"], [*"yo", END])
    open_ended = tokenizer(
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    assert one(with_tokenizer=open_ended) == ([*"u:hi", "Ċ", *"a:"], [*"yo", "Ċ"])
    spelled = one(response=f"y{END} o", with_tokenizer=open_ended)[1]
    assert spelled == ["y", END, "Ġ", "o", "Ċ"]  # nothing of the response is lost


def test_templates_that_fail_say_for_which_prompt() -> None:
    made = [Prompt(prompt="fine"), Prompt(prompt="bad", id="q7"), Prompt(prompt="bad")]
    for template, said in (
        ("{% if 'bad' in messages[0].content %}{{ raise_exception('no bad') }}{% endif %}x", "no"),
        ("{% if 'bad' in messages[0].content %}{{ 1 + messages }}{% endif %}x", "unsupported"),
        ("{% if 'bad' in messages[0].content %}{{ 1 // 0 }}{% endif %}x", "zero"),
        ("{% if 'bad' in messages[0].content %}{{ messages[0].a.b }}{% endif %}x", "'a'"),
    ):
        with pytest.raises(InputError, match=rf"^prompt q7: .*template.*{said}"):
            tokenize_prompts(made, tokenizer(template))
        with pytest.raises(InputError, match=r"^prompt 1: "):
            tokenize_prompts([made[0], made[2]], tokenizer(template))
    with pytest.raises(InputError, match="needs a chat template"):
        tokenize_prompts(made, tokenizer(None))
    with pytest.raises(InputError, match="prompt 0: gives no tokens"):
        tokenize_prompts(made, tokenizer("{{ '' }}"))


# --- plain and jinja ----------------------------------------------------------------------------


def wrapped(single: str) -> PreTrainedTokenizerFast:
    """A tokenizer that puts special tokens around what it encodes."""
    made = tokenizer()
    special = [(t, made.convert_tokens_to_ids(t)) for t in ("<|im_start|>", END)]
    made.backend_tokenizer.post_processor = TemplateProcessing(  # type: ignore[assignment]
        single=single, special_tokens=special
    )
    return made


@pytest.mark.parametrize(
    ("single", "before", "after"),
    [
        ("$A", [], []),
        ("<|im_start|> $A", ["<|im_start|>"], []),
        ("<|im_start|> $A <|im_end|>", ["<|im_start|>"], [END]),
        ("$A <|im_end|>", [], [END]),
    ],
)
def test_plain_text_begins_and_ends_as_the_tokenizer_has_it(
    single: str, before: list[str], after: list[str]
) -> None:
    made = wrapped(single)
    # An end in the middle of the text would be wrong; a prompt alone is what generation gets.
    assert one(format="plain", with_tokenizer=made) == ([*before, *"hi"], [*"yo", END])
    assert one(format="{{ prompt }}", with_tokenizer=made) == ([*before, *"hi"], [*"yo", END])
    assert one(response=None, format="plain", with_tokenizer=made)[0] == [*before, *"hi", *after]


def test_an_end_that_the_text_itself_has_stays() -> None:
    assert one(format="{{ prompt }}<|im_end|>")[0] == [*"hi", END]
    assert one(prompt=f"hi{END}", format="plain")[0] == [*"hi", END]


def test_jinja_sees_prompt_and_messages() -> None:
    assert one(format="Q: {{ prompt }} A:")[0] == [*"Q:", "Ġ", *"hi", "Ġ", *"A:"]
    format = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    tokens = tokenize_prompts(
        [Prompt.model_validate({"messages": turns})], TOKENIZER, format=format
    )
    assert shown(tokens)[0] == list("system=s;user=u;")


@pytest.mark.parametrize(
    "format",
    ["Chat", "", "{prompt}", "Q: A:", "{{ question }}", "{% for %}", "{{ prompt", "{{ 'prompt' }}"],
)
def test_formats_that_are_none(format: str) -> None:
    with pytest.raises(InputError, match="format"):
        check_format(format)
    with pytest.raises(InputError, match="format"):
        tokenize_prompts([Prompt(prompt="hi")], TOKENIZER, format=format)


@pytest.mark.parametrize(
    "format",
    [
        "{{ prompt + 1 }}",
        "{{ prompt }}{{ missing }}",
        "{{ messages[5].content }}",
        "{{ prompt.__class__.__mro__ }}",
        "{{ '%d' % prompt }}",
        "{{ prompt[::0] }}",
        "{% for i in range(10 ** 9) %}{{ prompt }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}{{ prompt }}",
        "{% include prompt %}",
    ],
)
def test_formats_that_fail_on_a_prompt(format: str) -> None:
    check_format(format)
    with pytest.raises(InputError, match=r"prompt 0: format template failed"):
        tokenize_prompts([Prompt(prompt="hi")], TOKENIZER, format=format)


def test_plain_takes_no_messages() -> None:
    made = Prompt.model_validate({"messages": [{"role": "user", "content": "u"}]})
    with pytest.raises(InputError, match="'plain' takes 'prompt', found 'messages'"):
        tokenize_prompts([made], TOKENIZER, format="plain")


# --- length -------------------------------------------------------------------------------------


def test_long_sequences_are_cut_and_counted() -> None:
    made = [Prompt(prompt="abc", response="de"), Prompt(prompt="x"), Prompt(prompt="longer")]
    tokens = tokenize_prompts(made, TOKENIZER, format="plain", max_length=4)
    assert [shown(tokens, i) for i in range(3)] == [
        (["a", "b", "c"], ["d"]),
        (["x"], []),
        (["l", "o", "n", "g"], []),
    ]
    assert tokens.cut == 2
    exact = tokenize_prompts(made[:1], TOKENIZER, format="plain", max_length=6)
    assert (exact.cut, len(exact.ids)) == (0, 6)
    assert tokenize_prompts(made, TOKENIZER, format="plain", max_length=1).lengths() == [1, 1, 1]
    with pytest.raises(InputError, match="max_length"):
        tokenize_prompts(made, TOKENIZER, max_length=0)
    with pytest.raises(InputError, match="at least one prompt"):
        tokenize_prompts([], TOKENIZER)


# --- any text -----------------------------------------------------------------------------------

SCRIPTS = [
    "Ünïcödé", "русский", "العربية", "עברית", "हिन्दी", "中文字", "日本語かな", "한국어", "ไทย",
    "ქართული", "🙂👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301\u0323", "\u202eright\u202c", "\x00\x01\x1b[31m",
    "a\ud7ffb\ue000", "\U0010ffff", "\ufeff\ufffe",
    "<|im_start|><|im_end|>", "{{ prompt }}{% raw %}",
]  # fmt: skip


@pytest.mark.parametrize("format", ["chat", "plain", "[{{ prompt }}]"])
@pytest.mark.parametrize("text", SCRIPTS)
def test_every_script_comes_back(text: str, format: str) -> None:
    tokens = tokenize_prompts([Prompt(prompt=text, response=text)], TOKENIZER, format=format)
    start = int(tokens.response_starts[0])
    assert text in TOKENIZER.decode(tokens.sequence(0)[:start])
    assert TOKENIZER.decode(tokens.sequence(0)[start:]) == text + END


@settings(max_examples=150, deadline=None)
@example("\ud800", None, "plain")
@example("a", "\udfff", "chat")
@given(
    prompt=st.text(st.characters(), min_size=1, max_size=40),
    response=st.none() | st.text(st.characters(), max_size=40),
    format=st.sampled_from(["chat", "plain", "{{ prompt }}?"]),
)
def test_any_text_is_tokenised_or_refused(prompt: str, response: str | None, format: str) -> None:
    try:
        made = Prompt(prompt=prompt, response=response)
    except ValueError:
        assert not prompt.strip()
        return
    whole = prompt + (response or "")
    if any("\ud800" <= c <= "\udfff" for c in whole):  # half of a pair: no text at all
        with pytest.raises(InputError, match="prompt 0: "):
            tokenize_prompts([made], TOKENIZER, format=format)
        return
    tokens = tokenize_prompts([made], TOKENIZER, format=format, max_length=10_000)
    start = int(tokens.response_starts[0])
    assert 0 < start <= len(tokens.ids)
    assert prompt in TOKENIZER.decode(tokens.ids[:start])
    assert TOKENIZER.decode(tokens.ids[start:]) == ("" if response is None else response + END)


# --- packing ------------------------------------------------------------------------------------

ROWS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(rows=ROWS, data=st.data())
def test_packed_sequences_come_back(rows: list[list[int]], data: st.DataObject) -> None:
    starts = [data.draw(st.integers(1, len(row))) for row in rows]
    tokens = pack_tokens(rows, starts, cut=2)
    assert (len(tokens), tokens.cut) == (len(rows), 2)
    assert tokens.ids.dtype == torch.int64
    assert [tokens.sequence(i).tolist() for i in range(len(rows))] == rows
    assert tokens.lengths() == [len(row) for row in rows]
    assert tokens.positions().tolist() == [t for row in rows for t in range(len(row))]
    assert tokens.targets().tolist() == [t for row in rows for t in (*row[1:], -1)]
    prompt = [t < s for row, s in zip(rows, starts, strict=True) for t in range(len(row))]
    # The state of token t predicts token t + 1, so those that predict the response begin one early.
    predicts = [
        s <= t + 1 < len(row) for row, s in zip(rows, starts, strict=True) for t in range(len(row))
    ]
    assert tokens.mask("prompt").tolist() == prompt
    assert tokens.mask("response").tolist() == predicts
    assert tokens.mask("both").all()
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
    picked = tokens.select(chosen)
    assert [picked.sequence(i).tolist() for i in range(len(picked))] == [rows[i] for i in chosen]
    assert picked.response_starts.tolist() == [starts[i] for i in chosen]


def test_nothing_packs_to_nothing() -> None:
    tokens = pack_tokens([], [])
    assert (len(tokens), tokens.ids.tolist(), tokens.offsets.tolist()) == (0, [], [0])
    assert tokens.positions().tolist() == []
