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
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from surgekit.errors import InputError
from surgekit.parsing import first_problem, nearest, read_text
from surgekit.states.rendering import check_format as check_format
from surgekit.states.rendering import encode, renderer

TextPart = Literal["prompt", "response", "both"]


def _no_text(given: dict[Any, Any]) -> str:
    keys = ", ".join(repr(str(k)[:40]) for k in list(given)[:8]) or "no key"
    said = f"expected either 'prompt' or 'messages', found {keys}"
    if "conversations" in given:
        said += (
            "; make 'messages' of 'conversations': in each turn 'from' becomes 'role' (human: "
            "user, gpt: assistant) and 'value' becomes 'content'"
        )
    return said


ROLES = ("system", "user", "assistant", "tool", "developer", "function")
"""Roles that chat templates know; a template of one's own may have others."""
_MEANT = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="ignore")

    role: str
    content: str

    @field_validator("role")
    @classmethod
    def _one_that_templates_know(cls, value: str) -> str:
        """Refuse what plainly means a usual role: templates would drop such a turn, or fail."""
        word = value.strip().lower()
        near = difflib.get_close_matches(word, ROLES, n=1, cutoff=0.85) if word.isalpha() else []
        meant = _MEANT.get(word) or next(iter(near), None)
        if value not in ROLES and meant is not None:
            raise ValueError(f"unknown role {value!r}; did you mean {meant!r}?")
        return value


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
            given = [key for key in ("prompt", "messages") if value.get(key) is not None]
            if len(given) == 2:
                raise ValueError("expected either 'prompt' or 'messages', found both")
            for key in value:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.85)
                if near and key not in known and near[0] not in value:
                    raise ValueError(f"unknown key {key!r}{nearest(key, near)}")
            if not given:
                raise ValueError(_no_text(value))
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
    text = read_text(path, "prompt file")
    prompts: list[Prompt] = []
    # Not splitlines(): that also breaks at U+2028 and its like, which JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt_of(line))
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
    if not prompts:
        raise InputError(f"{path}: expected at least one prompt, found none")
    return prompts


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless a key stands in it twice: only the last would count."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(k for i, (k, _) in enumerate(pairs) if k in dict(pairs[:i]))
        raise InputError(f"key {twice!r} is given twice")
    return value


def _prompt_of(line: str) -> Prompt:
    try:
        value = json.loads(line, object_pairs_hook=_once)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg}); expected one object a line") from error
    except UnicodeEncodeError as error:
        # Half of a surrogate pair is a str to Python and no text to a tokenizer.
        half = ord(error.object[error.start])
        raise InputError(f"no Unicode text: \\u{half:04x} is half of a character") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits; deep nesting
        raise InputError(f"not JSON to read ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"expected a JSON object, found {repr(value)[:40]}")
    try:
        return Prompt.model_validate(value)
    except ValidationError as error:
        raise InputError(str(first_problem(error, value, Prompt))) from error


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
    render = renderer(format, tokenizer)
    sequences: list[list[int]] = []
    starts: list[int] = []
    cut = 0
    for index, prompt in enumerate(prompts):
        name = index if prompt.id is None else prompt.id
        try:
            prompt_ids, response_ids = encode(render(prompt), tokenizer)
        except InputError as error:
            raise InputError(f"prompt {name}: {error}") from error
        if not prompt_ids:
            raise InputError(f"prompt {name}: gives no tokens")
        ids = prompt_ids + response_ids
        cut += len(ids) > max_length
        sequences.append(ids[:max_length])
        starts.append(min(len(prompt_ids), max_length))
    return replace(pack_tokens(sequences, starts), cut=cut)
