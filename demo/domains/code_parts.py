"""Building blocks of the code domain: names, predicates, transforms and the item builder.

A template function takes a ``random.Random`` and returns a :class:`Draft`; :func:`build_item`
turns the draft into a prompt, a reference response and asserts whose expected values come from
running the reference itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .splits import Template


def _split(text: str) -> list[str]:
    return text.split()


LIST_NAMES = _split(
    "nums values items numbers data scores points readings amounts prices levels marks samples "
    "entries sizes weights heights ages temps costs grades lengths steps votes ranks figures"
)
TEXT_NAMES = _split("text word sentence line phrase message title label note name s raw")
DICT_NAMES = _split("mapping table stock prices ages scores totals ratings inventory points")
PAIR_LISTS = _split("pairs records rows entries results orders")
INT_NAMES = _split("n num value number amount score level size")
TWO_LISTS = (
    ("left", "right"), ("first", "second"), ("xs", "ys"), ("list_a", "list_b"),
    ("old", "new"), ("before", "after"), ("top", "bottom"), ("home", "away"),
)  # fmt: skip
TWO_INTS = (
    ("p", "q"), ("first", "second"), ("width", "height"), ("left", "right"),
    ("low", "high"), ("start", "end"), ("m", "n"), ("old", "new"),
)  # fmt: skip
VERBS = _split("get compute find make process handle solve run build calc")
NOUNS = _split(
    "values items scores points marks prices data entries readings levels samples batch stock "
    "orders votes ranks tokens parts pieces coins cards tickets rows series group signal input "
    "report record total result answer output stats figures units blocks bins boxes lines books "
    "steps games rounds teams towns rooms lamps seeds trees shells stones bricks wheels tiles"
)
SUFFIXES = _split("fast v2 now here once again all safe simple plain new main daily weekly")
WORDS = _split(
    "apple river stone Cloud tea Moon garden blue Tiger oak lamp Rose bread silver ant window "
    "Echo level sun kayak open Iris umbrella noon salt"
)
KEYS = _split("ann bob cal dan eve fox gus hal ivy jon kim lee")

MAX_CHARS = 610  # about 190 tokens of prompt and response together
MAX_DRAFTS = 50
DRAWN_CASES = 8


@dataclass(frozen=True)
class Pred:
    """A condition on one integer: its expression, English forms and telling test values."""

    key: str
    code: str
    sg: str
    pl: str
    doc: str
    pool: tuple[int, ...]

    def __call__(self, var: str) -> str:
        """Return the Python condition for the variable called ``var``."""
        return self.code.replace("@", var)


@dataclass(frozen=True)
class Func:
    """A transform of one value: its expression and English forms (``{}`` is the value)."""

    key: str
    code: str
    text: str
    doc: str

    def __call__(self, var: str) -> str:
        """Return the Python expression for the variable called ``var``."""
        return self.code.replace("@", var)

    def of(self, noun: str) -> str:
        """Return the English phrase of this transform applied to ``noun``."""
        return self.text.format(noun)

    def doc_of(self, noun: str) -> str:
        """Return the canonical English phrase, for docstrings."""
        return self.doc.format(noun)


@dataclass(frozen=True)
class Draft:
    """A problem before it is worded: ``phrases`` are noun phrases that follow "return"."""

    key: str
    params: tuple[str, ...]
    phrases: tuple[str, ...]
    doc: str
    body: tuple[str, ...]
    draw: Callable[[], tuple[Any, ...]]
    edges: tuple[tuple[Any, ...], ...] = ()
    verbs: Sequence[str] = ()


def _be(*tails: str) -> list[tuple[str, str]]:
    return [(f"is {tail}", f"are {tail}") for tail in tails]


def predicate(rng: random.Random, avoid: str = "") -> Pred:
    """Draw a condition on integers whose kind (first word of the key) is not ``avoid``."""
    kinds = _split("even odd div ndiv gt lt ge le pos neg between rem digit ne absgt")
    kind = rng.choice([k for k in kinds if k != avoid])
    k = rng.randint(3, 12) if kind in ("div", "ndiv", "rem") else rng.randint(1, 25)
    near = (k - 1, k, k + 1)
    if kind == "even":
        code, forms, key, near = "@ % 2 == 0", _be("even", "divisible by 2"), "", (2, 3, 4)
    elif kind == "odd":
        code, forms, key, near = "@ % 2 == 1", _be("odd", "not even"), "", (1, 2, 5)
    elif kind == "div":
        forms = [*_be(f"divisible by {k}", f"a multiple of {k}")]
        forms[1] = (forms[1][0], f"are multiples of {k}")
        code, key, near = f"@ % {k} == 0", f"{k}", (k, 2 * k, 3 * k, k + 1)
    elif kind == "ndiv":
        code, key, near = f"@ % {k} != 0", f"{k}", (k, 2 * k, k + 1)
        forms = _be(f"not divisible by {k}")
    elif kind == "gt":
        code, key = f"@ > {k}", f"{k}"
        forms = [*_be(f"greater than {k}", f"above {k}", f"larger than {k}")]
    elif kind == "lt":
        code, key = f"@ < {k}", f"{k}"
        forms = [*_be(f"less than {k}", f"below {k}", f"smaller than {k}")]
    elif kind == "ge":
        code, key = f"@ >= {k}", f"{k}"
        forms = _be(f"at least {k}", f"greater than or equal to {k}")
    elif kind == "le":
        code, key = f"@ <= {k}", f"{k}"
        forms = _be(f"at most {k}", f"less than or equal to {k}")
    elif kind == "pos":
        code, key, forms, near = "@ > 0", "", _be("positive", "greater than zero"), (0, 1, -1)
    elif kind == "neg":
        code, key, forms, near = "@ < 0", "", _be("negative", "less than zero"), (0, -1, -6)
    elif kind == "between":
        low, high = k, k + rng.randint(3, 15)
        code, key = f"{low} <= @ <= {high}", f"{low},{high}"
        forms = _be(f"between {low} and {high} inclusive", f"from {low} to {high} inclusive")
        near = (low - 1, low, low + 2, high, high + 1)
    elif kind == "rem":
        r = rng.randint(1, k - 1)
        code, key, near = f"@ % {k} == {r}", f"{k},{r}", (r, k + r, 2 * k + r, k)
        tail = f"a remainder of {r} when divided by {k}"
        forms = [(f"leaves {tail}", f"leave {tail}"), (f"gives {tail}", f"give {tail}")]
    elif kind == "digit":
        d = rng.randint(0, 9)
        code, key, near = f"abs(@) % 10 == {d}", f"{d}", (d, 10 + d, 20 + d, d + 1)
        forms = [(f"ends in the digit {d}", f"end in the digit {d}")]
        forms.append((f"has the last digit {d}", f"have the last digit {d}"))
    elif kind == "ne":
        code, key, forms = f"@ != {k}", f"{k}", _be(f"not equal to {k}", f"different from {k}")
    else:
        code, key = f"abs(@) > {k}", f"{k}"
        tail = f"an absolute value greater than {k}"
        forms = [(f"has {tail}", f"have {tail}")]
        near = (k, k + 1, -k - 1, -k)
    sg, pl = rng.choice(forms)
    return Pred(f"{kind} {key}".strip(), code, sg, pl, forms[0][1], near)


def transform(rng: random.Random, avoid: str = "", small: bool = False) -> Func:
    """Draw an integer transform whose key is not ``avoid``.

    ``small`` says that it is to be applied to small non-negative integers only, for which some
    transforms would do nothing.
    """
    while True:
        k = rng.randint(3, 15)
        b = rng.randint(1, 9)
        key, code, *texts = rng.choice(
            [
                ("square", "@ * @", "the square of {}", "{} squared"),
                ("cube", "@ ** 3", "the cube of {}", "{} cubed"),
                ("double", "@ * 2", "double {}", "twice {}"),
                ("neg", "-@", "the negative of {}", "{} with its sign flipped"),
                ("abs", "abs(@)", "the absolute value of {}"),
                (f"mul {k}", f"@ * {k}", f"{{}} times {k}", f"{{}} multiplied by {k}"),
                (f"mul {k}", f"@ * {k}", f"{{}} times {k}", f"{{}} multiplied by {k}"),
                (f"add {k}", f"@ + {k}", f"{{}} plus {k}", f"{{}} increased by {k}"),
                (f"add {k}", f"@ + {k}", f"{{}} plus {k}", f"{{}} increased by {k}"),
                (f"sub {k}", f"@ - {k}", f"{{}} minus {k}", f"{{}} decreased by {k}"),
                (f"sub {k}", f"@ - {k}", f"{{}} minus {k}", f"{{}} decreased by {k}"),
                (f"rsub {k}", f"{k} - @", f"{k} minus {{}}"),
                (f"floor {k}", f"@ // {k}", f"{{}} floor-divided by {k}"),
                (f"mod {k}", f"@ % {k}", f"the remainder of {{}} divided by {k}"),
                (f"lin {k},{b}", f"@ * {k} + {b}", f"{{}} times {k} plus {b}"),
                (f"sqadd {b}", f"@ * @ + {b}", f"the square of {{}} plus {b}"),
            ]
        )
        if key != avoid and not (small and key.split()[0] in ("floor", "mod", "abs")):
            return Func(key, code, rng.choice(texts), texts[0])


def char_class(rng: random.Random) -> Pred:
    """Draw a condition on one character; ``pl`` names the characters ("digits")."""
    kind = rng.choice(["digit", "upper", "lower", "alpha", "space", "vowel", "set", "set", "eq"])
    table = {
        "digit": ("@.isdigit()", "a digit", "digits"),
        "upper": ("@.isupper()", "an uppercase letter", "uppercase letters"),
        "lower": ("@.islower()", "a lowercase letter", "lowercase letters"),
        "alpha": ("@.isalpha()", "a letter", "letters"),
        "space": ('@ == " "', "a space", "spaces"),
        "vowel": ('@ in "aeiou"', "a lowercase vowel", "lowercase vowels"),
    }
    if kind in table:
        code, sg, pl = table[kind]
        return Pred(kind, code, sg, pl, pl, ())
    letters = "".join(rng.sample("abcdefghiklmnoprstu", 1 if kind == "eq" else rng.randint(2, 4)))
    if kind == "eq":
        sg = f'the letter "{letters}"'
        pl = f'"{letters}" characters'
        return Pred(f"eq {letters}", f'@ == "{letters}"', sg, pl, pl, tuple(map(ord, letters)))
    key = "".join(sorted(letters))
    sg, pl = f'one of the letters "{letters}"', f'characters from "{letters}"'
    return Pred(f"set {key}", f'@ in "{letters}"', sg, pl, pl, tuple(map(ord, letters)))


def word_pred(rng: random.Random) -> Pred:
    """Draw a condition on one word."""
    k = rng.randint(2, 8)
    c = rng.choice("abcdefghiklmnoprstuw")
    code, sg, pl = rng.choice(
        [
            (f"len(@) > {k}", f"has more than {k} letters", f"have more than {k} letters"),
            (f"len(@) < {k}", f"has fewer than {k} letters", f"have fewer than {k} letters"),
            (f"len(@) == {k}", f"has exactly {k} letters", f"have exactly {k} letters"),
            (f"len(@) >= {k}", f"has at least {k} letters", f"have at least {k} letters"),
            (f'@.startswith("{c}")', f'starts with "{c}"', f'start with "{c}"'),
            (f'@.endswith("{c}")', f'ends with "{c}"', f'end with "{c}"'),
            (f'"{c}" in @', f'contains the letter "{c}"', f'contain the letter "{c}"'),
            (f'"{c}" not in @', f'does not contain "{c}"', f'do not contain "{c}"'),
        ]
    )
    pool = (ord(c),) if "len" not in code else (k,)
    return Pred(code, code, sg, pl, pl, pool)


def word_func(rng: random.Random) -> Func:
    """Draw a transform of one word."""
    k = rng.randint(2, 6)
    c = rng.choice("!?.*-+_#")
    key, text = rng.choice(
        [
            ("@.upper()", "{} in uppercase"),
            ("@.lower()", "{} in lowercase"),
            ("@[::-1]", "{} reversed"),
            ("@.capitalize()", "{} capitalized"),
            (f"@[:{k}]", f"the first {k} characters of {{}}"),
            (f"@[-{k}:]", f"the last {k} characters of {{}}"),
            (f'@ + "{c}"', f'{{}} followed by "{c}"'),
            (f'"{c}" + @', f'{{}} preceded by "{c}"'),
            (f"@ * {k}", f"{{}} repeated {k} times"),
        ]
    )
    return Func(key, key, text, text)


def int_list(
    rng: random.Random, pool: Sequence[int] = (), low: int = 3, high: int = 6
) -> list[int]:
    """Draw a short list of integers in which values of ``pool`` are frequent."""
    size = rng.randint(low, high)
    return [
        rng.choice(pool) if pool and rng.random() < 0.45 else rng.randint(-9, 30)
        for _ in range(size)
    ]


def word_text(rng: random.Random, pool: Sequence[int] = (), low: int = 2, high: int = 4) -> str:
    """Draw words joined by spaces; ``pool`` holds character codes to favour or word lengths."""
    words = []
    for _ in range(rng.randint(low, high)):
        word = rng.choice(WORDS)
        if pool and rng.random() < 0.6:
            pick = rng.choice(pool)
            if pick > 20:
                c = chr(pick)
                word = rng.choice([c + word, word + c, word[:2] + c + word[2:]])
            else:
                size = max(1, pick + rng.randint(-1, 1))
                word = (word + rng.choice(WORDS).lower())[:size]
        words.append(word)
    return " ".join(words)


def messy_text(rng: random.Random, pool: Sequence[int] = ()) -> str:
    """Draw text that mixes words and digits."""
    text = word_text(rng, pool, 1, 3)
    return text + rng.choice(["", "7", " 42", "3B", " x9"])


def int_dict(rng: random.Random, pool: Sequence[int] = ()) -> dict[str, int]:
    """Draw a dictionary of short names to integers."""
    values = int_list(rng, pool, 2, 4)
    return dict(zip(rng.sample(KEYS, len(values)), values, strict=True))


def build_item(
    name: str, maker: Callable[[random.Random], Draft], rng: random.Random
) -> dict[str, Any]:
    """Word the problem drawn by ``maker`` and compute its asserts.

    Returns an item with prompt, response, entry_point, asserts and problem (the signature:
    template, choices and constants, but no names or wording). Raises RuntimeError when the
    template draws nothing but constant functions.
    """
    for _ in range(MAX_DRAFTS):
        draft = maker(rng)
        verb = rng.choice([*draft.verbs, *draft.verbs, *VERBS])
        entry = f"{verb}_{rng.choice(NOUNS)}"
        if rng.random() < 0.25:
            entry += f"_{rng.choice(SUFFIXES)}"
        call = f"{entry}({', '.join(draft.params)})"
        doc = draft.doc[0].lower() + draft.doc[1:]
        body = "\n".join(f"    {line}" for line in draft.body)
        source = f'def {call}:\n    """Return {doc}."""\n{body}'
        calls = _calls(entry, source, draft)
        # Some draws are constant ("over 5 and below 2"): no assert could tell right from wrong.
        if len(calls) >= 4 and len({result for _, result in calls}) > 1:
            break
    else:
        raise RuntimeError(f"template {name!r} draws no problem with telling cases")
    response = f"```python\n{source}\n```"
    prompt = _word(call, rng.choice(draft.phrases), rng)
    if rng.random() < 0.5:
        drawn = calls[len(draft.edges) :]
        # Prefer a short call whose result is not an empty value, which would show little.
        shown = min(drawn, key=lambda c: (c[1] in ("[]", "{}", "''", "0", "None"), len(c[0])))
        example = rng.choice(
            ["For example, `{}` returns `{}`.", "Example: `{}` gives `{}`.", "`{}` -> `{}`"]
        ).format(*shown)
        if len(prompt) + len(example) + len(response) < MAX_CHARS:
            prompt = f"{prompt} {example}"
    return {
        "prompt": prompt,
        "response": response,
        "entry_point": entry,
        "asserts": [f"assert {left} == {right}" for left, right in calls],
        "problem": f"{name}|{draft.key}",
    }


def _word(call: str, phrase: str, rng: random.Random) -> str:
    return rng.choice(
        [
            "Write a Python function `{}` that returns {}.",
            "Implement `{}` in Python. It should return {}.",
            "Define a Python function `{}` which returns {}.",
            "I need a Python function `{}`. It must return {}.",
        ]
    ).format(call, phrase)


def _calls(entry: str, source: str, draft: Draft) -> list[tuple[str, str]]:
    """Return (call, result) pairs: the edge cases, then drawn cases with telling results."""
    space: dict[str, Any] = {}
    exec(source, space)
    pairs: dict[str, str] = {}

    def add(args: tuple[Any, ...]) -> None:
        left = f"{entry}({', '.join(map(repr, args))})"
        pairs[left] = repr(space[entry](*args))

    for args in draft.edges:
        add(args)
    for attempt in range(60):
        args = draft.draw()
        before = set(pairs.values())
        result = repr(space[entry](*args))
        # Repeats of a known result are taken only after some draws in search of other results.
        if result not in before or attempt > 12:
            add(args)
        if len(pairs) >= DRAWN_CASES + len(draft.edges):
            break
    return list(pairs.items())


def templates(*makers: Callable[[random.Random], Draft]) -> tuple[Template, ...]:
    """Wrap template functions; each one's name is the template's name."""
    return tuple(
        Template(name, partial(build_item, name, maker))
        for maker in makers
        for name in (maker.__name__.lstrip("_"),)
    )
