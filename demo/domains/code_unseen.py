"""Templates of the code domain that only the test split uses."""

from __future__ import annotations

import random

from .code_parts import (
    DICT_NAMES,
    INT_NAMES,
    LIST_NAMES,
    TEXT_NAMES,
    TWO_LISTS,
    Draft,
    int_dict,
    int_list,
    predicate,
    templates,
    transform,
    word_func,
    word_pred,
    word_text,
)

EMPTY = (([],),)


def _all_positions(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"a list of the indices of the numbers in `{a}` that {p.pl}",
            f"a list with every index of `{a}` at which the number {p.sg}",
        ),
        f"the indices of numbers that {p.doc}",
        (f"return [i for i, x in enumerate({a}) if {p('x')}]",),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("locate", "index", "find"),
    )


def _sum_difference(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    q = predicate(rng, avoid=p.key.split()[0])
    return Draft(
        f"{p.key}|{q.key}",
        (a,),
        (
            f"the sum of the numbers in `{a}` that {p.pl} minus the sum of those that {q.pl}",
            f"the total of the numbers in `{a}` that {p.pl}, less the total of those that {q.pl}",
        ),
        f"the difference of the two sums of {a}",
        (
            f"left = sum(x for x in {a} if {p('x')})",
            f"right = sum(x for x in {a} if {q('x')})",
            "return left - right",
        ),
        lambda: (int_list(rng, p.pool + q.pool),),
        EMPTY,
        ("compare", "diff"),
    )


def _dict_any_all(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(DICT_NAMES)
    fn = rng.choice(["any", "all"])
    what = f"any value in the dictionary `{a}` {p.sg}"
    doc = f"any value {p.sg}"
    if fn == "all":
        what, doc = f"all values in the dictionary `{a}` {p.pl}", f"all values {p.doc}"
    return Draft(
        f"{fn}|{p.key}",
        (a,),
        (f"True if {what}, otherwise False", f"whether {what}"),
        f"whether {doc}",
        (f"return {fn}({p('v')} for v in {a}.values())",),
        lambda: (int_dict(rng, p.pool),),
        (({},),),
        ("check", "test"),
    )


def _dict_count_values(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(DICT_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"how many values in the dictionary `{a}` {p.pl}",
            f"the number of items of the dictionary `{a}` whose values {p.pl}",
        ),
        f"how many values {p.doc}",
        (
            "count = 0",
            f"for v in {a}.values():",
            f"    if {p('v')}:",
            "        count += 1",
            "return count",
        ),
        lambda: (int_dict(rng, p.pool),),
        (({},),),
        ("count", "tally"),
    )


def _max_of_map(rng: random.Random) -> Draft:
    t, a = transform(rng), rng.choice(LIST_NAMES)
    fn, adj = rng.choice([("max", "largest"), ("min", "smallest")])
    return Draft(
        f"{fn}|{t.key}",
        (a,),
        (
            f"the {adj} value of {t.of('x')} over all x in `{a}`, or 0 if `{a}` is empty",
            f"the {adj} result of computing {t.of('x')} for each x in `{a}` (0 for an empty list)",
        ),
        f"the {adj} value of {t.doc_of('x')}, or 0",
        (f"return {fn}(({t('x')} for x in {a}), default=0)",),
        lambda: (int_list(rng, (), 2, 5),),
        EMPTY,
        ("best", "find"),
    )


def _range_dict(rng: random.Random) -> Draft:
    t, a = transform(rng, small=True), rng.choice(INT_NAMES)
    return Draft(
        t.key,
        (a,),
        (
            f"a dictionary that maps each integer i from 1 to `{a}` to {t.of('i')}",
            f"a dictionary with the keys 1 to `{a}` in which key i has the value {t.of('i')}",
        ),
        f"a dictionary from i to {t.doc_of('i')}",
        (f"return {{i: {t('i')} for i in range(1, {a} + 1)}}",),
        lambda: (rng.randint(1, 6),),
        ((0,),),
        ("map", "build", "table"),
    )


def _text_branch(rng: random.Random) -> Draft:
    p, a = word_pred(rng), rng.choice(TEXT_NAMES)
    f, g = word_func(rng), word_func(rng)
    while g.key == f.key:
        g = word_func(rng)
    return Draft(
        f"{p.key}|{f.key}|{g.key}",
        (a,),
        (
            f"{f.of(f'`{a}`')} if `{a}` {p.sg}, and {g.of(f'`{a}`')} otherwise",
            f"{f.of(f'`{a}`')} when `{a}` {p.sg}, else {g.of(f'`{a}`')}",
        ),
        f"{f.doc_of(a)} or {g.doc_of(a)}",
        (f"if {p(a)}:", f"    return {f(a)}", f"return {g(a)}"),
        lambda: (word_text(rng, p.pool, 1, 1),),
        (("",),),
        ("format", "choose"),
    )


def _word_lengths(rng: random.Random) -> Draft:
    p, a = word_pred(rng), rng.choice(TEXT_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"a list of the lengths of the words in `{a}` that {p.pl}",
            f"a list with the length of each word of `{a}` that {p.sg}",
        ),
        f"the lengths of words that {p.doc}",
        (f"return [len(w) for w in {a}.split() if {p('w')}]",),
        lambda: (word_text(rng, p.pool),),
        (("",),),
        ("measure", "lengths"),
    )


def _first_word(rng: random.Random) -> Draft:
    p, a = word_pred(rng), rng.choice(TEXT_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"the first word in `{a}` that {p.sg}, or an empty string if there is none",
            f'the first word of `{a}` that {p.sg} ("" when no word does)',
        ),
        f"the first word that {p.sg}",
        (f"for w in {a}.split():", f"    if {p('w')}:", "        return w", 'return ""'),
        lambda: (word_text(rng, p.pool),),
        (("",),),
        ("first", "find"),
    )


def _range_count(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(INT_NAMES)
    while p.key.split()[0] in ("pos", "neg", "absgt"):
        p = predicate(rng)
    return Draft(
        p.key,
        (a,),
        (
            f"how many numbers from 1 to `{a}` {p.pl}",
            f"the number of integers from 1 up to and including `{a}` that {p.pl}",
        ),
        f"how many numbers up to {a} {p.doc}",
        (
            "count = 0",
            f"for x in range(1, {a} + 1):",
            f"    if {p('x')}:",
            "        count += 1",
            "return count",
        ),
        lambda: (rng.choice(p.pool) + rng.randint(1, 30),),
        ((0,),),
        ("count", "tally"),
    )


def _zip_filter(rng: random.Random) -> Draft:
    p, (a, b) = predicate(rng), rng.choice(TWO_LISTS)

    def draw() -> tuple[list[int], list[int]]:
        size = rng.randint(1, 3)
        return int_list(rng, p.pool, size, size), int_list(rng, (), size, size)

    return Draft(
        p.key,
        (a, b),
        (
            f"a list of the numbers in `{b}` whose partner at the same index of `{a}` {p.sg}",
            f"the elements of `{b}` for which the number at that position in `{a}` {p.sg}",
        ),
        f"numbers of {b} whose partner {p.sg}",
        (f"return [y for x, y in zip({a}, {b}) if {p('x')}]",),
        draw,
        (([], []),),
        ("filter", "match"),
    )


def _last_match(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    d = rng.choice(["None", "0", "-1"])
    return Draft(
        f"{p.key}|{d}",
        (a,),
        (
            f"the last number in `{a}` that {p.sg}, or {d} if there is none",
            f"the last element of `{a}` that {p.sg}; when no element does, {d}",
        ),
        f"the last number that {p.sg}, or {d}",
        (f"for x in reversed({a}):", f"    if {p('x')}:", "        return x", f"return {d}"),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("last", "find"),
    )


UNSEEN_TEMPLATES = templates(
    _all_positions,
    _sum_difference,
    _dict_any_all,
    _dict_count_values,
    _max_of_map,
    _range_dict,
    _text_branch,
    _word_lengths,
    _first_word,
    _range_count,
    _zip_filter,
    _last_match,
)
