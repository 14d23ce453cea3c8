"""Prompts: from JSONL to the tokens that the model will see at inference."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from surgekit.errors import InputError

TextPart = Literal["prompt", "response", "both"]

# A template is a program of the user's; it fails in the ways of Python too.
_TEMPLATE_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="ignore")

    role: str
    content: str


class Prompt(BaseModel):
    """One calibration, validation or test item.

    Give ``prompt`` (and optionally ``response``), or ``messages``; in ``messages`` a last turn of
    the assistant is the response. Keys that surgekit does not know are left to others.
    """

    model_config = ConfigDict(extra="ignore")

    id: str | int | None = None
    prompt: str | None = None
    response: str | None = None
    messages: list[Message] | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_misspelt_key(cls, value: Any) -> Any:
        if isinstance(value, dict):
            known = ("prompt", "response", "messages")
            for key in value:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.85)
                if near and key not in known and near[0] not in value:
                    raise ValueError(f"unknown key {key!r}; did you mean {near[0]!r}?")
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Prompt:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected either 'prompt' or 'messages'")
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError("the prompt is empty")
        if self.messages is not None:
            if not self.messages or not any(m.content.strip() for m in self.messages):
                raise ValueError("'messages' is empty")
            if self.response is not None:
                raise ValueError("'response' goes with 'prompt'; end 'messages' with a turn")
            if len(self.messages) == 1 and self.messages[0].role == "assistant":
                raise ValueError("'messages' holds an answer but no question")
        return self

    def turns(self) -> tuple[list[dict[str, str]], str | None]:
        """(messages before the response, response)."""
        if self.messages is None:
            return [{"role": "user", "content": self.prompt or ""}], self.response
        turns = [m.model_dump() for m in self.messages]
        if turns[-1]["role"] == "assistant":
            return turns[:-1], turns[-1]["content"]
        return turns, None


def read_prompts(file: str | Path) -> list[Prompt]:
    """Read prompts from a JSONL file (one JSON object a line; blank lines are skipped).

    Raises:
        InputError: no such file, not UTF-8, or a bad line, named by its number.
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"prompt file not found: {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a UTF-8 JSONL file ({error})") from error
    prompts = []
    # Not splitlines(): that also breaks at U+2028 and its like, which JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(Prompt.model_validate(json.loads(line)))
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error.msg})") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{p}." for p in first["loc"])[:-1] + ": " if first["loc"] else ""
            said = first["msg"].removeprefix("Value error, ")
            raise InputError(f"{path}, line {number}: {where}{said}") from error
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits; deep nesting
            raise InputError(f"{path}, line {number}: not JSON to read ({error})") from error
    if not prompts:
        raise InputError(f"{path}: expected at least one prompt, found none")
    return prompts


@dataclass(frozen=True)
class TokenizedPrompts:
    """Token sequences, packed end to end.

    Attributes:
        ids: (N,) int64, all sequences one after the other.
        offsets: (P + 1,) int64; sequence i is ``ids[offsets[i]:offsets[i + 1]]``.
        response_starts: (P,) int64, index within its own sequence of the first response token;
            equal to the length where there is no response.
        cut: how many sequences were cut at ``max_length``.
    """

    ids: Tensor
    offsets: Tensor
    response_starts: Tensor
    cut: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def _lengths(self) -> list[int]:
        return self.offsets.diff().tolist()

    def lengths(self) -> list[int]:
        """Number of tokens of each sequence."""
        return self._lengths

    def sequence(self, i: int) -> Tensor:
        """The ids of sequence i."""
        return self.ids[int(self.offsets[i]) : int(self.offsets[i + 1])]

    def positions(self) -> Tensor:
        """(N,) index of each token within its own sequence, from 0."""
        return torch.arange(len(self.ids)) - self.offsets[:-1].repeat_interleave(
            self.offsets.diff()
        )

    def select(self, indices: Sequence[int]) -> TokenizedPrompts:
        """The sequences at ``indices``, in that order."""
        return pack_tokens(
            [self.sequence(i) for i in indices],
            [int(self.response_starts[i]) for i in indices],
        )

    def mask(self, text: TextPart) -> Tensor:
        """(N,) bool: the tokens whose states belong to ``text`` (SPEC: calibration text).

        ``response``: states that *predict* a response token, so the last prompt token is in and
        the last token of all is out. ``prompt``: states of the prompt's tokens. ``both``: all.
        """
        if text == "both":
            return torch.ones(len(self.ids), dtype=torch.bool)
        counts = self.offsets.diff()
        starts = self.response_starts.repeat_interleave(counts)
        positions = self.positions()
        if text == "prompt":
            return positions < starts
        lengths = counts.repeat_interleave(counts)
        return (positions >= starts - 1) & (positions < lengths - 1) & (starts < lengths)

    def targets(self) -> Tensor:
        """(N,) the token that follows each token; -1 at the end of a sequence."""
        following = torch.full_like(self.ids, -1)
        following[:-1] = self.ids[1:]
        following[self.offsets[1:] - 1] = -1
        return following


def pack_tokens(
    sequences: Sequence[Tensor | Sequence[int]], response_starts: Sequence[int], cut: int = 0
) -> TokenizedPrompts:
    """Pack token sequences end to end."""
    rows = [torch.as_tensor(s, dtype=torch.long) for s in sequences]
    lengths = torch.tensor([0] + [len(r) for r in rows], dtype=torch.long)
    return TokenizedPrompts(
        torch.cat(rows) if rows else torch.empty(0, dtype=torch.long),
        lengths.cumsum(0),
        torch.tensor(list(response_starts), dtype=torch.long),
        cut,
    )


def tokenize_prompts(
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    *,
    format: str = "chat",
    max_length: int = 512,
) -> TokenizedPrompts:
    """Turn prompts into the tokens the model meets at inference.

    Prompt and response are tokenised apart, as in generation, where the response is appended to
    the prompt's tokens; the response ends with the end-of-turn token.

    Args:
        format: ``chat`` (the tokenizer's chat template), ``plain`` (the text as it is), or a
            jinja template with ``{{ prompt }}`` or ``{{ messages }}`` in it.
        max_length: longer sequences are cut there, and counted in ``cut``.

    Raises:
        InputError: no chat template, a broken template, or a prompt without any token.
    """
    if not prompts:
        raise InputError("expected at least one prompt, found none")
    if max_length < 1:
        raise InputError(f"max_length must be at least 1, found {max_length}")
    render = _renderer(format, tokenizer)
    sequences: list[list[int]] = []
    starts: list[int] = []
    cut = 0
    for index, prompt in enumerate(prompts):
        name = index if prompt.id is None else prompt.id
        try:
            prompt_ids, response_ids = render(prompt)
        except InputError as error:
            raise InputError(f"prompt {name}: {error}") from error
        if not prompt_ids:
            raise InputError(f"prompt {name}: gives no tokens")
        ids = prompt_ids + response_ids
        cut += len(ids) > max_length
        sequences.append(ids[:max_length])
        starts.append(min(len(prompt_ids), max_length))
    return replace(pack_tokens(sequences, starts), cut=cut)


def _renderer(format: str, tokenizer: PreTrainedTokenizerBase) -> Any:
    if format == "chat":
        if not tokenizer.chat_template:
            raise InputError(
                "format 'chat' needs a chat template and this tokenizer has none; "
                "use format 'plain' or give a jinja template"
            )
        return lambda prompt: _render_chat(prompt, tokenizer)
    if format == "plain":
        return lambda prompt: _render_text(prompt, _plain_text(prompt), tokenizer)
    template = _compile(format)

    def render(prompt: Prompt) -> tuple[list[int], list[int]]:
        messages, _ = prompt.turns()
        try:
            text = template.render(prompt=messages[-1]["content"], messages=messages)
        except _TEMPLATE_FAILURES as error:
            raise InputError(f"format template failed: {error}") from error
        return _render_text(prompt, text, tokenizer)

    return render


def check_format(format: str) -> None:
    """Raise InputError unless ``format`` is chat, plain or a jinja template of a prompt."""
    if format not in ("chat", "plain"):
        _compile(format)


def _compile(format: str) -> Any:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    try:
        used = meta.find_undeclared_variables(environment.parse(format))
        template = environment.from_string(format)
    except (TemplateError, RecursionError) as error:
        raise InputError(f"format template does not parse: {error}") from error
    if not used & {"prompt", "messages"}:
        raise InputError(
            f"format {format!r}: expected chat, plain or a jinja template with {{{{ prompt }}}} or "
            "{{ messages }} in it"
        )
    return template


def _plain_text(prompt: Prompt) -> str:
    if prompt.prompt is None:
        raise InputError("format 'plain' takes 'prompt', found 'messages'; use format 'chat'")
    return prompt.prompt


def _render_text(
    prompt: Prompt, text: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[int]]:
    response = prompt.turns()[1]
    prompt_ids = _encode(tokenizer, text, special=True)
    if response is None:
        return prompt_ids, []
    # Some tokenizers end what they encode with eos; in the middle of a text it would be wrong.
    if len(prompt_ids) > 1 and prompt_ids[-1] == tokenizer.eos_token_id:
        own = _encode(tokenizer, text, special=False)
        if own[-1:] != prompt_ids[-1:]:
            prompt_ids = prompt_ids[:-1]
    response_ids = _encode(tokenizer, response, special=False)
    end = tokenizer.eos_token_id
    return prompt_ids, response_ids + ([end] if isinstance(end, int) else [])


def _render_chat(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    messages, response = prompt.turns()
    try:
        text = str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
        whole = text
        if response is not None:
            turns = [*messages, {"role": "assistant", "content": response}]
            whole = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except _TEMPLATE_FAILURES as error:
        raise InputError(f"the chat template refuses it ({error})") from error
    prompt_ids = _encode(tokenizer, text, special=False)
    if response is None:
        return prompt_ids, []
    if whole != text and whole.startswith(text):
        response_ids = _encode(tokenizer, whole[len(text) :], special=False)
        return prompt_ids, _through_end_of_turn(response_ids, tokenizer)
    # Templates that open the answer with something they do not keep (an empty thinking block):
    # what is generated is the response itself and the end-of-turn token.
    response_ids = _encode(tokenizer, response, special=False)
    end = tokenizer.eos_token_id
    return prompt_ids, response_ids + ([end] if isinstance(end, int) else [])


def _through_end_of_turn(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Cut the blanks that a template writes after the last special token (a line break)."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    for index in range(len(ids) - 1, -1, -1):
        if ids[index] in special:
            # Words there are the response's own, which only spells out a special token.
            blank = not str(tokenizer.decode(ids[index + 1 :])).strip()
            return ids[: index + 1] if blank else ids
    return ids


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    try:
        return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
    except (TypeError, UnicodeError) as error:
        # Half of a surrogate pair is a str to Python and no text to a tokenizer.
        raise InputError(f"holds what is no Unicode text ({error})") from error
