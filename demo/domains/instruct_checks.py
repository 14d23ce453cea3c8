"""Checks whether a response meets the constraints of an instruct item.

A constraint is a dictionary with ``kind`` and that kind's parameters, so that an item read back
from JSON can be judged without the generator. White space around the response is ignored. In a
``list`` or ``max_words`` constraint ``marker`` names how a point begins, see ``MARKERS``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["KINDS", "MARKERS", "points_of", "sentences_of", "unmet"]

MARKERS: dict[str, str] = {
    "number": r"(\d+)\. +",
    "dash": r"- +",
    "star": r"\* +",
    "letter": r"([A-Za-z])\) +",
    "step": r"(?i:step) (\d+): +",
}

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)
_SENTENCE = re.compile(r"[^.!?]*\w[^.!?]*[.!?]+")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def points_of(text: str, marker: str) -> list[tuple[str, str]]:
    """Return (label, body) of each line that begins with ``marker``; the label may be empty."""
    found = []
    for line in _lines(text):
        match = re.match(MARKERS[marker], line)
        if match and line[match.end() :]:
            label = match.group(1) if match.re.groups else ""
            found.append((label.lower(), line[match.end() :]))
    return found


def sentences_of(text: str) -> list[str]:
    """Return the sentences of ``text``; one ends with a full stop, ``!`` or ``?``."""
    return [part.strip() for part in _SENTENCE.findall(text)]


def _list(text: str, marker: str, n: int) -> bool:
    points = points_of(text, marker)
    labels = [label for label, _ in points]
    if marker in ("number", "step"):
        in_order = labels == [str(i + 1) for i in range(len(points))]
    elif marker == "letter":
        in_order = labels == [chr(ord("a") + i) for i in range(len(points))]
    else:
        in_order = True
    return len(points) == n and in_order


def _json(text: str, keys: Sequence[str], list_key: str, n: int) -> bool:
    fenced = _FENCE.fullmatch(text)
    try:
        value = json.loads(fenced.group(1) if fenced else text)
    except ValueError:
        return False
    if not isinstance(value, dict) or set(value) != set(keys):
        return False
    entries = value[list_key]
    return (
        isinstance(entries, list)
        and len(entries) == n
        and all(isinstance(entry, str) and entry.strip() for entry in entries)
        and all(isinstance(value[key], str) and value[key] for key in keys if key != list_key)
    )


def _title(text: str) -> bool:
    lines = _lines(text)
    return len(lines) > 1 and lines[0].isupper() and not lines[1].isupper()


def _separator(text: str, line: str, n: int) -> bool:
    blocks: list[list[str]] = [[]]
    for row in _lines(text):
        if row == line:
            blocks.append([])
        else:
            blocks[-1].append(row)
    return len(blocks) == n and all(blocks)


def _question_answer(text: str) -> bool:
    lines = _lines(text)
    return (
        len(lines) >= 2
        and re.fullmatch(r"Q: .*\?", lines[0]) is not None
        and re.match(r"A: \w", lines[1]) is not None
        and sum(line.startswith(("Q:", "A:")) for line in lines) == 2
    )


def _tags(text: str, tag: str) -> bool:
    opening, closing = f"<{tag}>", f"</{tag}>"
    inner = text.removeprefix(opening).removesuffix(closing).strip()
    return (
        text.startswith(opening)
        and text.endswith(closing)
        and text.count(opening) == text.count(closing) == 1
        and bool(inner)
    )


def _starts(text: str, word: str) -> bool:
    return re.match(rf"{re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _max_words(text: str, marker: str, n: int) -> bool:
    points = points_of(text, marker)
    return bool(points) and all(len(body.split()) <= n for _, body in points)


def _point_end(text: str, marker: str, mark: str) -> bool:
    points = points_of(text, marker)
    return bool(points) and all(body.endswith(mark) for _, body in points)


def _quoted(text: str) -> bool:
    return len(text) > 2 and text[0] == text[-1] == '"' and '"' not in text[1:-1]


def _postscript(text: str) -> bool:
    lines = _lines(text)
    return len(lines) > 1 and re.match(r"P\.S\. *\w", lines[-1]) is not None


def _first(text: str) -> str:
    return (_lines(text) or [""])[0]


def _last(text: str) -> str:
    return (_lines(text) or [""])[-1]


_CHECKS: dict[str, Callable[..., bool]] = {
    "list": _list,
    "sentences": lambda text, n: len(sentences_of(text)) == n,
    "one_paragraph": lambda text: len(_lines(text)) == 1 and not re.match(r"[-*]|\d+\.", text),
    "plain_lines": lambda text, n: len(_lines(text)) == n,
    "json": _json,
    "question_answer": _question_answer,
    "separator": _separator,
    "include": lambda text, words: all(_has_word(text, word) for word in words),
    "exclude": lambda text, word: not _has_word(text, word),
    "lower": lambda text: text.islower(),
    "upper": lambda text: text.isupper(),
    "title": _title,
    "greeting": lambda text, word, name: (
        re.fullmatch(rf"{re.escape(word)},? {re.escape(name)}[,!.:]?", _first(text)) is not None
    ),
    "closing": lambda text, phrase: len(_lines(text)) > 1 and _last(text).rstrip(".!") == phrase,
    "start": _starts,
    "max_words": _max_words,
    "total_words": lambda text, n: 0 < len(text.split()) <= n,
    "no_commas": lambda text: bool(text) and "," not in text,
    "question_end": lambda text: text.endswith("?"),
    "quoted": _quoted,
    "first_line": lambda text, line: _first(text).rstrip(".:") == line,
    "point_end": _point_end,
    "tags": _tags,
    "postscript": _postscript,
}

KINDS: tuple[str, ...] = tuple(_CHECKS)
"""All kinds of constraint."""


def unmet(constraints: Sequence[Mapping[str, Any]], response: str) -> list[str]:
    """Return the kinds of the constraints that ``response`` fails, in the given order.

    Raises ValueError for a kind that is not in ``KINDS``.
    """
    text = response.strip()
    failed = []
    for constraint in constraints:
        parameters = dict(constraint)
        kind = parameters.pop("kind", None)
        if kind not in _CHECKS:
            raise ValueError(f"unknown constraint kind {kind!r}; known are {', '.join(KINDS)}")
        if not _CHECKS[kind](text, **parameters):
            failed.append(kind)
    return failed
