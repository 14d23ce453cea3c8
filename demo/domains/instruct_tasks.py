"""Requests with several constraints that a program can check: the instruct domain.

A template is a layout (numbered list, JSON object, letter, ...) with a set of kinds of constraint.
An item is a template with a topic and drawn parameters; its response is put together from the
topic's points. ``constraints`` says everything ``check`` needs, see ``instruct_checks``.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from .instruct_checks import unmet
from .instruct_content import TOPICS
from .instruct_phrases import (
    CLOSINGS,
    CONSTRAINT_PHRASES,
    CONTENT_STOP_WORDS,
    FIRST_LINES,
    GREETINGS,
    INTROS,
    LINKS,
    LINKS_WITHOUT_COMMA,
    NAMES,
    QUESTIONS,
    REQUESTS,
    SEPARATORS,
    START_INTROS,
    START_WORDS,
    TAGS,
    TITLES,
)
from .splits import Template, make_splits

__all__ = ["NAME", "SEEN", "TOKEN_BOUNDS", "UNSEEN", "check", "estimate_tokens", "generate"]

NAME = "instruct"

TOKEN_BOUNDS = (60, 190)
"""Least and most estimated tokens of prompt and response together."""

_TRIES = 300
_LISTS = ("number", "dash", "star", "letter", "step")
_NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a 49k-entry byte-pair vocabulary makes of ``text``.

    A word costs one token and one more per seven letters beyond seven, a word in capitals one per
    2.5 letters, each digit, mark and line break one.
    """
    total = text.count("\n")
    for part in re.findall(r"[^\W\d_]+|\d|[^\w\s]|_", text):
        if len(part) > 1 and part.isupper():
            total += -(-len(part) * 2 // 5)
        else:
            total += 1 + max(0, len(part) - 1) // 7
    return total


class _Draft:
    """One attempt at an item: draws the parameters, then writes the response that meets them."""

    def __init__(self, form: str, kinds: tuple[str, ...], rng: random.Random) -> None:
        self.form, self.kinds, self.rng = form, kinds, rng
        self.topic = rng.choice(TOPICS)
        self.n = rng.randint(*self._range())
        self.given: dict[str, dict[str, Any]] = {}
        self.base: list[dict[str, Any]] = []
        limit = rng.randint(6, 9) if "max_words" in kinds else 99
        usable = [point for point in self.topic.points if len(point.split()) <= limit]
        self.ok = len(usable) >= self.n
        self.points = rng.sample(usable, min(self.n, len(usable)))
        self.limit = limit
        self._draw_parameters()

    def _range(self) -> tuple[int, int]:
        if "upper" in self.kinds:
            return 2, 4
        return (4, 6) if self.form in ("note", "titled", "blocks", "qa") else (3, 6)

    def _words(self, texts: list[str], avoid: str) -> list[str]:
        words = {word.lower() for text in texts for word in re.findall(r"[A-Za-z]{5,}", text)}
        taken = set(re.findall(r"\w+", avoid.lower()))
        return sorted(words - taken - CONTENT_STOP_WORDS)

    def _draw_parameters(self) -> None:
        rng, given = self.rng, self.given
        for kind in self.kinds:
            given[kind] = {"kind": kind}
        if self.form in _LISTS:
            self.base.append({"kind": "list", "marker": self.form, "n": self.n})
        if self.form == "note":
            given["greeting"] = {"kind": "greeting"}
        if "greeting" in given:
            self.language = rng.choice(sorted(GREETINGS))
            given["greeting"].update(word=GREETINGS[self.language], name=rng.choice(NAMES))
        simple: dict[str, Callable[[], dict[str, Any]]] = {
            "closing": lambda: {"phrase": self._cased(rng.choice(CLOSINGS))},
            "start": lambda: {"word": rng.choice(START_WORDS)},
            "max_words": lambda: {"marker": self.form, "n": self.limit},
            "point_end": lambda: {"marker": self.form, "mark": rng.choice("!;")},
            "tags": lambda: {"tag": rng.choice(TAGS)},
            "first_line": lambda: {"line": rng.choice(FIRST_LINES).format(topic=self.topic.name)},
        }
        for kind, draw in simple.items():
            if kind in given:
                given[kind].update(draw())
        if "include" in given:
            words = self._words(self.points[:-1] or self.points, self.topic.name)
            count = min(len(words), rng.choice((1, 1, 2)))
            self.ok = self.ok and count > 0
            given["include"]["words"] = rng.sample(words, count)
        if "exclude" in given:
            chosen = " ".join(self.points)
            others = [point for point in self.topic.points if point not in self.points]
            words = self._words(others, chosen + " " + self.topic.name)
            self.ok = self.ok and bool(words)
            given["exclude"]["word"] = rng.choice(words or ["nothing"])

    def _cased(self, text: str) -> str:
        if "lower" in self.kinds:
            return text.lower()
        return text.upper() if "upper" in self.kinds else text

    def _listed(self) -> str:
        rows = []
        mark = self.given.get("point_end", {}).get("mark")
        for index, point in enumerate(self.points):
            label = {
                "number": f"{index + 1}. ",
                "dash": "- ",
                "star": "* ",
                "letter": "abcdef"[index] + ") ",
                "step": f"Step {index + 1}: ",
            }[self.form]
            if self.form == "letter" and "upper" in self.kinds:
                label = label.upper()
            rows.append(label + (point[:-1] + mark if mark else point))
        return "\n".join(rows)

    def _prose(self, question: bool) -> str:
        """Join the points to running text of ``n`` sentences, the last a question if wanted."""
        links = LINKS_WITHOUT_COMMA if "no_commas" in self.kinds else LINKS
        body = self.points[:-1] if question else self.points
        sentences: list[str] = []
        used: set[str] = set()
        for index, point in enumerate(body):
            if index == 0 and "start" in self.given:
                point = f"{self.given['start']['word']}, {point[0].lower()}{point[1:]}"
            elif index and self.rng.random() < 0.45:
                place = 2 if index == len(body) - 1 else min(index, 2) - 1
                link = self.rng.choice([word for word in links[place] if word not in used])
                used.add(link)
                point = f"{link} {point[0].lower()}{point[1:]}"
            sentences.append(point)
        if question:
            sentences.append(self.rng.choice(QUESTIONS))
        return " ".join(sentences)

    def _body(self) -> str:
        rng, name = self.rng, self.topic.name
        question = "question_end" in self.kinds
        if self.form in _LISTS:
            return self._listed()
        if self.form == "paragraph":
            self.base += [{"kind": "one_paragraph"}, {"kind": "sentences", "n": self.n}]
            return self._prose(question)
        if self.form == "note":
            return self._prose(False)
        if self.form == "titled":
            self.base += [{"kind": "title"}, {"kind": "plain_lines", "n": self.n + 1}]
            return rng.choice(TITLES).format(topic=name).upper() + "\n" + "\n".join(self.points)
        if self.form == "qa":
            self.base += [{"kind": "question_answer"}, {"kind": "sentences", "n": self.n + 1}]
            asked = rng.choice(
                ("What should I know about {}?", "Any tips for {}?", "What is your advice on {}?")
            )
            return f"Q: {asked.format(name)}\nA: {self._prose(False)}"
        if self.form == "blocks":
            line = rng.choice(SEPARATORS)
            self.base.append({"kind": "separator", "line": line, "n": self.n})
            return f"\n{line}\n".join(self.points)
        assert self.form == "json"
        self.list_key = rng.choice(("tips", "points", "ideas", "advice", "steps"))
        filler = {
            "topic": name,
            "title": name[0].upper() + name[1:],
            "level": rng.choice(("easy", "medium", "hard")),
            "time": rng.choice(("a week", "a month", "one day", "a few hours", "all year")),
            "mood": rng.choice(("calm", "cheerful", "curious", "patient", "brave")),
            "ending": rng.choice(CLOSINGS),
        }
        self.keys = [*rng.sample(sorted(filler), rng.choice((1, 1, 2))), self.list_key]
        content: dict[str, Any] = {key: filler[key] for key in self.keys[:-1]}
        content[self.list_key] = self.points
        self.base.append(
            {"kind": "json", "keys": self.keys, "list_key": self.list_key, "n": self.n}
        )
        return json.dumps(content, ensure_ascii=False)

    def _response(self) -> str:
        rng, given, inline = self.rng, self.given, self.form in ("paragraph", "qa", "json")
        body = self._body()
        head: list[str] = []
        tail: list[str] = []
        if "greeting" in given:
            end = rng.choice("!.") if "no_commas" in given else ","
            head.append(f"{given['greeting']['word']} {given['greeting']['name']}{end}")
        if "title" in given:
            head.append(rng.choice(TITLES).format(topic=self.topic.name).upper())
        if "first_line" in given:
            head.append(given["first_line"]["line"])
        if not inline and "start" in given:
            intro = rng.choice(START_INTROS).format(topic=self.topic.name)
            head.append(f"{given['start']['word']}, {intro}")
        if self.form in _LISTS and not head and rng.random() < 0.3:
            head.append(rng.choice(INTROS).format(topic=self.topic.name))
        if not inline and "question_end" in given:
            tail.append(rng.choice(QUESTIONS))
        if "closing" in given:
            tail.append(given["closing"]["phrase"] + rng.choice(("", ".")))
        if "postscript" in given:
            spare = [point for point in self.topic.points if point not in self.points]
            tail.append("P.S. " + rng.choice(spare))
        gap = "\n\n" if self.form == "note" else "\n"
        text = gap.join([*head, body, *tail])
        if "tags" in given:
            tag, line = given["tags"]["tag"], "" if inline else "\n"
            text = f"<{tag}>{line}{text}{line}</{tag}>"
        if "quoted" in given:
            text = f'"{text}"'
        if "total_words" in given:
            given["total_words"]["n"] = 5 * (len(text.split()) // 5 + rng.randint(1, 3))
        return self._cased(text)

    def _prompt(self) -> str:
        rng = self.rng
        values: dict[str, Any] = {"topic": self.topic.name}
        values["n"] = rng.choice((str(self.n), _NUMBER_WORDS[self.n]))
        if self.form == "json":
            values["keys"] = " and ".join(f'"{key}"' for key in self.keys)
            if len(self.keys) == 3:
                values["keys"] = '"{}", "{}" and "{}"'.format(*self.keys)
            values["list_key"] = self.list_key
        if self.form == "blocks":
            values["line"] = self.base[0]["line"]
        if "greeting" in self.given:
            values["name"] = self.given["greeting"]["name"]
        request = rng.choice(REQUESTS[self.form]).format(**values)
        rules = []
        for kind, constraint in self.given.items():
            details = {**values, **constraint}
            if kind == "include":
                quoted = [f'"{word}"' for word in constraint["words"]]
                details["words"] = " and ".join(quoted)
                details["noun"] = "word" if len(quoted) == 1 else "words"
            if kind == "greeting":
                details["language"] = self.language
            if kind == "point_end":
                details["mark_name"] = {"!": "an exclamation mark", ";": "a semicolon"}[
                    constraint["mark"]
                ]
            rules.append(rng.choice(CONSTRAINT_PHRASES[kind]).format(**details))
        rng.shuffle(rules)
        if len(rules) > 1 and rng.random() < 0.25:
            return request + "\n" + "\n".join(f"- {rule}" for rule in rules)
        return " ".join([request, *rules])

    def item(self) -> dict[str, Any] | None:
        """Return the item, or None when this attempt breaks a constraint or a length bound."""
        if not self.ok:
            return None
        response = self._response()
        prompt = self._prompt()
        constraints = [*self.base, *self.given.values()]
        low, high = TOKEN_BOUNDS
        if unmet(constraints, response) or not low <= estimate_tokens(prompt + response) <= high:
            return None
        name = "+".join((self.form, *self.kinds))
        key = sorted(json.dumps(constraint, sort_keys=True) for constraint in constraints)
        problem = " | ".join([name, self.topic.name, *key])
        return {
            "prompt": prompt,
            "response": response,
            "constraints": constraints,
            "problem": problem,
        }


def _template(text: str) -> Template:
    form, *kinds = text.split("+")

    def build(rng: random.Random) -> dict[str, Any]:
        for _ in range(_TRIES):
            item = _Draft(form, tuple(kinds), rng).item()
            if item is not None:
                return item
        raise RuntimeError(f"template {text!r} makes no valid item in {_TRIES} attempts")

    return Template(text, build)


_SEEN_NAMES = """
number+include number+max_words+closing number+no_commas+question_end
number+greeting+closing number+lower+include number+first_line+exclude number+tags+max_words
number+point_end+start number+upper dash+max_words+include dash+title+include dash+upper+closing
dash+question_end+exclude dash+greeting+postscript dash+point_end+lower dash+tags+include
dash+start+closing star+include+closing star+lower+no_commas star+first_line+question_end
star+max_words+exclude letter+start+max_words letter+title+closing letter+include+exclude
step+first_line+include step+upper step+closing+point_end step+no_commas+greeting
paragraph+include paragraph+start+question_end paragraph+quoted+exclude
paragraph+lower+no_commas paragraph+upper paragraph+tags+include paragraph+total_words+include
paragraph+quoted+lower json+include json+exclude json+lower json+total_words
note+closing+include note+postscript+exclude note+total_words+closing
note+no_commas+question_end titled+include titled+exclude+no_commas qa+include
qa+exclude+total_words qa+no_commas blocks+include blocks+lower+closing
blocks+no_commas+exclude blocks+greeting+question_end
"""
SEEN: tuple[Template, ...] = tuple(_template(text) for text in _SEEN_NAMES.split())
"""Templates of every split."""

_UNSEEN_NAMES = """
star+greeting+question_end step+lower+closing letter+tags+point_end
number+upper+closing dash+first_line+max_words+exclude paragraph+quoted+upper
paragraph+start+exclude paragraph+tags+lower json+include+exclude
note+postscript+include+total_words titled+include+total_words qa+include+exclude
blocks+upper blocks+greeting+closing number+title+question_end
"""
UNSEEN: tuple[Template, ...] = tuple(_template(text) for text in _UNSEEN_NAMES.split())
"""Templates of the test split only; each of their kinds of constraint also occurs in ``SEEN``."""


def _distinct(template: Template, used: set[str]) -> Template:
    """Return ``template`` with draws whose problem is not in ``used``, to which it adds them."""

    def build(rng: random.Random) -> dict[str, Any]:
        for _ in range(_TRIES):
            item = template.build(rng)
            if item["problem"] not in used:
                used.add(item["problem"])
                return item
        raise RuntimeError(f"template {template.name!r} has no fresh problem left")

    return Template(template.name, build)


def generate(seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Return the splits of the domain; no two items share a prompt or a problem."""
    used: set[str] = set()
    seen = [_distinct(template, used) for template in SEEN]
    unseen = [_distinct(template, used) for template in UNSEEN]
    return make_splits(NAME, seen, unseen, seed)


def check(item: dict[str, Any], response: str) -> bool:
    """Return whether ``response`` meets every constraint of ``item``."""
    return not unmet(item["constraints"], response)
