"""Seen templates of the code domain on numbers, ranges, tuples and paired lists."""

from __future__ import annotations

import random

from .code_parts import (
    INT_NAMES,
    KEYS,
    LIST_NAMES,
    PAIR_LISTS,
    TWO_INTS,
    TWO_LISTS,
    Draft,
    int_list,
    predicate,
    templates,
    transform,
)

EMPTY = (([],),)


def _zip_lists(rng: random.Random) -> Draft:
    a, b = rng.choice(TWO_LISTS)
    k = rng.randint(2, 20)
    key, code, text = rng.choice(
        [
            (f"add{k}", f"x + y + {k}", f"the sum of the two numbers plus {k}"),
            (f"mul{k}", f"x * y + {k}", f"the product of the two numbers plus {k}"),
            (f"diff{k}", f"x - y + {k}", f"the first number minus the second plus {k}"),
            (f"wl{k}", f"{k} * x + y", f"{k} times the first number plus the second"),
            (f"wr{k}", f"x + {k} * y", f"the first number plus {k} times the second"),
            (f"ad{k}", f"abs(x - y) * {k}", f"the absolute difference times {k}"),
            (f"mx{k}", f"max(x, y) + {k}", f"the larger of the two numbers plus {k}"),
            (f"mn{k}", f"min(x, y) - {k}", f"the smaller of the two numbers minus {k}"),
        ]
    )

    def draw() -> tuple[list[int], list[int]]:
        size = rng.randint(1, 3)
        return int_list(rng, (), size, size), int_list(rng, (), size, size)

    return Draft(
        key,
        (a, b),
        (
            f"a list that holds, for each pair of elements of `{a}` and `{b}`, {text}",
            f"a list made by walking through `{a}` and `{b}` together and taking {text}",
        ),
        f"{text}, per pair",
        (f"return [{code} for x, y in zip({a}, {b})]",),
        draw,
        (([], []),),
        ("combine", "merge", "join"),
    )


def _slice_map(rng: random.Random) -> Draft:
    t, a = transform(rng), rng.choice(LIST_NAMES)
    k = rng.randint(2, 4)
    code, text, doc = rng.choice(
        [
            (f"[:{k}]", f"the first {k} numbers", f"the first {k} numbers"),
            (f"[-{k}:]", f"the last {k} numbers", f"the last {k} numbers"),
            (f"[{k}:]", f"the numbers after the first {k}", f"numbers after the first {k}"),
            (f"[::{k}]", f"every {k}th number (from index 0)", f"every {k}th number"),
        ]
    )
    text = text.replace("2th", "2nd").replace("3th", "3rd")
    doc = doc.replace("2th", "2nd").replace("3th", "3rd")
    return Draft(
        f"{code}|{t.key}",
        (a,),
        (
            f"a list that takes {text} of `{a}` and contains {t.of('x')} for each x of them",
            f"a list of {t.of('x')} for x in {text} of `{a}`",
        ),
        f"{t.doc_of('x')} for {doc}",
        (f"return [{t('x')} for x in {a}{code}]",),
        lambda: (int_list(rng, (), 3, 6),),
        EMPTY,
        ("slice", "take", "cut"),
    )


def _range_sum(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(INT_NAMES)
    while p.key.split()[0] in ("pos", "neg", "absgt"):
        p = predicate(rng)
    return Draft(
        p.key,
        (a,),
        (
            f"the sum of the numbers from 1 to `{a}` that {p.pl}",
            f"the total of all integers from 1 up to and including `{a}` that {p.pl}",
        ),
        f"the sum of numbers up to {a} that {p.doc}",
        (
            "total = 0",
            f"for x in range(1, {a} + 1):",
            f"    if {p('x')}:",
            "        total += x",
            "return total",
        ),
        lambda: (rng.choice(p.pool) + rng.randint(1, 20),),
        ((0,),),
        ("sum", "total", "add"),
    )


def _range_list(rng: random.Random) -> Draft:
    t, a = transform(rng, small=True), rng.choice(INT_NAMES)
    s = rng.choice([0, 1, 1, 2, 3])
    return Draft(
        f"{t.key}|{s}",
        (a,),
        (
            f"a list of {t.of('i')} for every i from {s} to `{a}` inclusive",
            f"a list that holds {t.of('i')} for each integer i from {s} up to and including `{a}`",
        ),
        f"{t.doc_of('i')} for i from {s} to {a}",
        (f"return [{t('i')} for i in range({s}, {a} + 1)]",),
        lambda: (rng.randint(s, 7),),
        ((s - 1,),),
        ("list", "make", "build"),
    )


LABELS = (
    ("high", "medium", "low"), ("big", "middle", "small"), ("hot", "warm", "cold"),
    ("gold", "silver", "bronze"), ("A", "B", "C"), ("fast", "normal", "slow"),
)  # fmt: skip


def _grade(rng: random.Random) -> Draft:
    a, (x, y, z) = rng.choice(INT_NAMES), rng.choice(LABELS)
    low = rng.randint(2, 40)
    high = low + rng.randint(3, 50)
    op, word = rng.choice([(">", "greater than"), (">=", "at least")])
    return Draft(
        f"{op}|{low}|{high}|{x}",
        (a,),
        (
            f'"{x}" if `{a}` is {word} {high}, "{y}" if it is {word} {low}, and "{z}" otherwise',
            f'the label "{x}" when `{a}` is {word} {high}, else "{y}" when it is {word} {low}, '
            f'else "{z}"',
        ),
        f'"{x}", "{y}" or "{z}" depending on {a}',
        (
            f"if {a} {op} {high}:",
            f'    return "{x}"',
            f"elif {a} {op} {low}:",
            f'    return "{y}"',
            f'return "{z}"',
        ),
        lambda: (rng.randint(-5, high + 20),),
        ((high,), (low,), (high + 1,), (low - 1,)),
        ("grade", "label", "classify"),
    )


def _two_way_label(rng: random.Random) -> Draft:
    a, p = rng.choice(INT_NAMES), predicate(rng)
    q = predicate(rng, avoid=p.key.split()[0])
    x, y, z = rng.choice(LABELS)
    return Draft(
        f"{p.key}|{q.key}|{x}",
        (a,),
        (
            f'"{x}" if `{a}` {p.sg}, "{y}" if it {q.sg}, and "{z}" otherwise',
            f'the string "{x}" when `{a}` {p.sg}; if not, "{y}" when it {q.sg}, else "{z}"',
        ),
        f'"{x}", "{y}" or "{z}" depending on {a}',
        (
            f"if {p(a)}:",
            f'    return "{x}"',
            f"elif {q(a)}:",
            f'    return "{y}"',
            f'return "{z}"',
        ),
        lambda: (rng.choice([*p.pool, *q.pool, rng.randint(-20, 40)]),),
        ((0,),),
        ("label", "classify", "name"),
    )


def _digits_sum(rng: random.Random) -> Draft:
    t, a = transform(rng, small=True), rng.choice(INT_NAMES)
    k = rng.choice([0, 0, 1, 5, 10])
    plus, text = (f" + {k}", f", plus {k}") if k else ("", "")
    return Draft(
        f"{t.key}|{k}",
        (a,),
        (
            f"the sum of {t.of('d')} for each digit d of the positive integer `{a}`{text}",
            f"the total of {t.of('d')} over all decimal digits d of `{a}`{text}",
        ),
        f"the sum of {t.doc_of('each digit')}{text}",
        (
            "total = 0",
            f"for d in map(int, str({a})):",
            f"    total += {t('d')}",
            f"return total{plus}",
        ),
        lambda: (rng.randint(1, 9999),),
        ((0,),),
        ("sum", "digits", "total"),
    )


def _count_steps(rng: random.Random) -> Draft:
    a = rng.choice(INT_NAMES)
    k, stop = rng.randint(3, 12), rng.randint(1, 20)
    op, verb = rng.choice([("-=", f"subtracting {k}"), ("//=", f"floor-dividing by {k}")])
    return Draft(
        f"{op}{k}|{stop}",
        (a,),
        (
            f"how many times one has to repeat {verb} until `{a}` is at most {stop}",
            f"the number of steps of {verb} while `{a}` is greater than {stop}",
        ),
        f"the number of steps until {a} is at most {stop}",
        (
            "steps = 0",
            f"while {a} > {stop}:",
            f"    {a} {op} {k}",
            "    steps += 1",
            "return steps",
        ),
        lambda: (rng.choice([rng.randint(stop, stop + 60), rng.randint(100, 900)]),),
        ((0,), (stop,)),
        ("count", "steps"),
    )


def _linear_two(rng: random.Random) -> Draft:
    a, b = rng.choice(TWO_INTS)
    k, m = rng.randint(2, 15), rng.randint(2, 15)
    sign, word = rng.choice([("+", "plus"), ("-", "minus")])
    return Draft(
        f"{k}{sign}{m}",
        (a, b),
        (
            f"{k} times `{a}` {word} {m} times `{b}`",
            f"the value of `{a}` multiplied by {k} {word} `{b}` multiplied by {m}",
        ),
        f"{k} times {a} {word} {m} times {b}",
        (f"return {k} * {a} {sign} {m} * {b}",),
        lambda: (rng.randint(-9, 20), rng.randint(-9, 20)),
        ((0, 0),),
        ("mix", "combine", "score"),
    )


def _branch_two(rng: random.Random) -> Draft:
    (a, b), t = rng.choice(TWO_INTS), transform(rng)
    u = transform(rng, avoid=t.key)
    op, word = rng.choice([(">", "greater than"), ("<", "less than"), ("==", "equal to")])
    return Draft(
        f"{op}|{t.key}|{u.key}",
        (a, b),
        (
            f"{t.of(f'`{a}`')} if `{a}` is {word} `{b}`, and {u.of(f'`{b}`')} otherwise",
            f"{t.of(f'`{a}`')} when `{a}` is {word} `{b}`, else {u.of(f'`{b}`')}",
        ),
        f"{t.doc_of(a)} or {u.doc_of(b)}",
        (f"if {a} {op} {b}:", f"    return {t(a)}", f"return {u(b)}"),
        lambda: (rng.randint(-5, 12), rng.randint(-5, 12)),
        ((4, 4), (0, 1)),
        ("choose", "decide", "pick"),
    )


def _draw_pairs(rng: random.Random, pool: tuple[int, ...]) -> list[tuple[str, int]]:
    values = int_list(rng, pool, 1, 3)
    return list(zip(rng.sample(KEYS, len(values)), values, strict=True))


def _pair_names(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(PAIR_LISTS)
    return Draft(
        p.key,
        (a,),
        (
            f"a list of the names in `{a}`, a list of (name, value) tuples, whose values {p.pl}",
            f"the name of each (name, value) pair in `{a}` whose value {p.sg}, as a list",
        ),
        f"the names whose values {p.doc}",
        (f"return [name for name, v in {a} if {p('v')}]",),
        lambda: (_draw_pairs(rng, p.pool),),
        EMPTY,
        ("names", "select", "list"),
    )


def _pair_sum(rng: random.Random) -> Draft:
    t, a = transform(rng), rng.choice(PAIR_LISTS)
    return Draft(
        t.key,
        (a,),
        (
            f"the sum of {t.of('v')} for each v in `{a}`, a list of (name, v) tuples",
            f"the total of {t.of('v')} over the (name, v) tuples in the list `{a}`",
        ),
        f"the sum of {t.doc_of('each value')}",
        (
            "total = 0",
            f"for name, v in {a}:",
            f"    total += {t('v')}",
            "return total",
        ),
        lambda: (_draw_pairs(rng, ()),),
        EMPTY,
        ("sum", "total", "add"),
    )


def _clamp(rng: random.Random) -> Draft:
    a, low = rng.choice(LIST_NAMES), rng.randint(-5, 12)
    high = low + rng.randint(3, 15)
    return Draft(
        f"{low}|{high}",
        (a,),
        (
            f"a list of the numbers in `{a}` limited to the range from {low} to {high}",
            f"a copy of `{a}` with numbers below {low} raised to {low} "
            f"and numbers above {high} lowered to {high}",
        ),
        f"the numbers limited to {low}..{high}",
        (f"return [min(max(x, {low}), {high}) for x in {a}]",),
        lambda: (int_list(rng, (low - 1, high + 1)),),
        EMPTY,
        ("clamp", "limit", "clip"),
    )


NUMBER_TEMPLATES = templates(
    _zip_lists,
    _slice_map,
    _range_sum,
    _range_list,
    _grade,
    _two_way_label,
    _digits_sum,
    _count_steps,
    _linear_two,
    _branch_two,
    _pair_names,
    _pair_sum,
    _clamp,
)
