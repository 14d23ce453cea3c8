"""Rendering: a prompt as text by a format, and that text as tokens of one tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase

from surgekit.errors import InputError, MismatchError

if TYPE_CHECKING:
    from surgekit.states.prompts import Prompt

# A template is a program of the user's; it fails in the ways of Python too.
_TEMPLATE_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,  # "a" * 10**12
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Rendered:
    """A prompt as text.

    Attributes:
        prompt: what the model is given.
        response: what it should answer, or None.
        special: the tokenizer puts special tokens of its own around ``prompt``.
        closed: ``response`` ends with the end of turn, as the chat template writes it.
    """

    prompt: str
    response: str | None
    special: bool
    closed: bool = False


def check_format(format: str) -> None:
    """Raise InputError unless ``format`` is chat, plain or a jinja template of a prompt."""
    if format not in ("chat", "plain"):
        _compile(format)


def renderer(format: str, tokenizer: PreTrainedTokenizerBase) -> Callable[[Prompt], Rendered]:
    """What turns a prompt into text by ``format``; it raises InputError where it cannot."""
    if format == "chat":
        if not tokenizer.chat_template:
            raise InputError(
                "format 'chat' needs a chat template and this tokenizer has none; "
                "use format 'plain' or give a jinja template"
            )
        return lambda prompt: _render_chat(prompt, tokenizer)
    return _own_renderer(format)


def expect_renderable(prompts: Iterable[Prompt], format: str) -> None:
    """Raise InputError where a format fails on a prompt whatever the tokenizer (never ``chat``)."""
    if format != "chat":
        render = _own_renderer(format)
        for prompt in prompts:
            render(prompt)


def _own_renderer(format: str) -> Callable[[Prompt], Rendered]:
    """What renders by a format that asks no tokenizer."""
    if format == "plain":
        return lambda prompt: Rendered(_plain_text(prompt), prompt.turns()[1], special=True)
    template = _compile(format)

    def render(prompt: Prompt) -> Rendered:
        messages, response = prompt.turns()
        try:
            text = template.render(prompt=messages[-1]["content"], messages=messages)
        except _TEMPLATE_FAILURES as error:
            raise InputError(f"format template failed: {_said(error)}") from error
        return Rendered(text, response, special=True)

    return render


def encode(rendered: Rendered, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """(ids of the prompt, ids of the response through its end-of-turn token)."""
    prompt_ids = _ids(tokenizer, rendered.prompt, special=rendered.special)
    if rendered.response is None:
        return prompt_ids, []
    # Some tokenizers end what they encode with eos; in the middle of a text it would be wrong.
    if rendered.special and len(prompt_ids) > 1 and prompt_ids[-1] == tokenizer.eos_token_id:
        own = _ids(tokenizer, rendered.prompt, special=False)
        if own[-1:] != prompt_ids[-1:]:
            prompt_ids = prompt_ids[:-1]
    response_ids = _ids(tokenizer, rendered.response, special=False)
    if rendered.closed:
        return prompt_ids, _through_end_of_turn(response_ids, tokenizer)
    end = tokenizer.eos_token_id
    return prompt_ids, response_ids + ([end] if isinstance(end, int) else [])


def check_same_tokenizer(
    prompts: Iterable[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    other: PreTrainedTokenizerBase,
    *,
    format: str,
    whose: str,
) -> None:
    """Raise MismatchError where two tokenizers give different ids for the text of a prompt.

    Models are compared on the same ids, so each id must mean the same piece of text to both. What
    a tokenizer knows beyond that text (a padded or longer vocabulary, another template, another
    end-of-text token) does not matter.

    Args:
        prompts: rendered by ``tokenizer`` and ``format``, as for ``tokenize_prompts``.
        tokenizer: the merged model's.
        other: the one to compare.
        whose: names the model of ``other`` in the message.
    """
    render = renderer(format, tokenizer)
    for index, prompt in enumerate(prompts):
        rendered = render(prompt)
        for text in (rendered.prompt, rendered.response or ""):
            ids, found = (_ids(t, text, special=False) for t in (tokenizer, other))
            if ids == found:
                continue
            at = next(
                (k for k, (a, b) in enumerate(zip(ids, found, strict=False)) if a != b),
                min(len(ids), len(found)),
            )
            said = [
                f"{ids_of[at]} ({kind.convert_ids_to_tokens(ids_of[at])!r})"
                if at < len(ids_of)
                else "no token"
                for kind, ids_of in ((tokenizer, ids), (other, found))
            ]
            raise MismatchError(
                f"{whose}: its tokenizer is another than the merged model's: on prompt "
                f"{index if prompt.id is None else prompt.id}, token {at}, it gives {said[1]}, "
                f"the merged model's {said[0]}; surgery needs models of one tokenizer"
            )


def _said(error: BaseException) -> str:
    return "it needs too much memory" if isinstance(error, MemoryError) else str(error)


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


def _render_chat(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Rendered:
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
        raise InputError(f"the chat template refuses it ({_said(error)})") from error
    if response is not None and whole != text and whole.startswith(text):
        return Rendered(text, whole[len(text) :], special=False, closed=True)
    # Templates that open the answer with something they do not keep (an empty thinking block):
    # what is generated is the response itself and the end-of-turn token.
    return Rendered(text, response, special=False)


def _through_end_of_turn(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Cut the blanks that a template writes after the last special token (a line break)."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    for index in range(len(ids) - 1, -1, -1):
        if ids[index] in special:
            # Words there are the response's own, which only spells out a special token.
            blank = not str(tokenizer.decode(ids[index + 1 :])).strip()
            return ids[: index + 1] if blank else ids
    return ids


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    try:
        return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
    except (TypeError, UnicodeError) as error:
        # Half of a surrogate pair is a str to Python and no text to a tokenizer.
        raise InputError(f"holds what is no Unicode text ({error})") from error
