"""Seen templates of the code domain that work on lists of integers."""

from __future__ import annotations

import random

from .code_parts import (
    LIST_NAMES,
    Draft,
    int_list,
    predicate,
    templates,
    transform,
)

EMPTY = (([],),)


def _filter_list(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"a list of the numbers in `{a}` that {p.pl}",
            f"a list with every number of `{a}` that {p.sg}, in order",
            f"a new list that keeps only the numbers in `{a}` that {p.pl}",
        ),
        f"the numbers that {p.doc}",
        (f"return [x for x in {a} if {p('x')}]",),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("filter", "keep", "select", "pick"),
    )


def _drop_list(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"a list of the numbers in `{a}` without those that {p.pl}",
            f"a copy of `{a}` with every number removed that {p.sg}",
        ),
        f"the list without numbers that {p.doc}",
        (f"return [x for x in {a} if not {p('x')}]",),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("drop", "remove", "clean"),
    )


def _map_list(rng: random.Random) -> Draft:
    t, a = transform(rng), rng.choice(LIST_NAMES)
    return Draft(
        t.key,
        (a,),
        (
            f"a list with {t.of('x')} for each number x in `{a}`",
            f"a new list that holds {t.of('x')} for every element x of `{a}`",
        ),
        t.doc_of("each number"),
        (f"return [{t('x')} for x in {a}]",),
        lambda: (int_list(rng, (), 2, 5),),
        EMPTY,
        ("map", "change", "convert"),
    )


def _filter_map(rng: random.Random) -> Draft:
    p, t, a = predicate(rng), transform(rng), rng.choice(LIST_NAMES)
    return Draft(
        f"{p.key}|{t.key}",
        (a,),
        (
            f"a list with {t.of('x')} for each number x in `{a}` that {p.sg}",
            f"a list of {t.of('x')} for every x in `{a}` that {p.sg}",
        ),
        f"{t.doc_of('x')} for each x that {p.sg}",
        (f"return [{t('x')} for x in {a} if {p('x')}]",),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("map", "select", "convert"),
    )


def _sum_filter(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"the sum of the numbers in `{a}` that {p.pl}",
            f"the total of all elements of `{a}` that {p.pl}",
        ),
        f"the sum of numbers that {p.doc}",
        (f"return sum(x for x in {a} if {p('x')})",),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("sum", "total", "add"),
    )


def _sum_filter_map(rng: random.Random) -> Draft:
    p, t, a = predicate(rng), transform(rng), rng.choice(LIST_NAMES)
    return Draft(
        f"{p.key}|{t.key}",
        (a,),
        (
            f"the sum of {t.of('x')} for each number x in `{a}` that {p.sg}",
            f"the total of {t.of('x')} over every x in `{a}` that {p.sg}",
        ),
        f"the sum of {t.doc_of('x')} for each x that {p.sg}",
        (
            "total = 0",
            f"for x in {a}:",
            f"    if {p('x')}:",
            f"        total += {t('x')}",
            "return total",
        ),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("sum", "total", "add"),
    )


def _sum_map(rng: random.Random) -> Draft:
    t, a = transform(rng), rng.choice(LIST_NAMES)
    return Draft(
        t.key,
        (a,),
        (
            f"the sum of {t.of('x')} for each number x in `{a}`",
            f"the total of {t.of('x')} over all x in `{a}`",
        ),
        f"the sum of {t.doc_of('each number')}",
        (f"return sum({t('x')} for x in {a})",),
        lambda: (int_list(rng),),
        EMPTY,
        ("sum", "total", "add"),
    )


def _count_filter(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"how many numbers in `{a}` {p.pl}",
            f"the number of elements of `{a}` that {p.pl}",
        ),
        f"how many numbers {p.doc}",
        (
            "count = 0",
            f"for x in {a}:",
            f"    if {p('x')}:",
            "        count += 1",
            "return count",
        ),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("count", "tally"),
    )


def _extreme_filter(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    fn, adj = rng.choice([("max", "largest"), ("min", "smallest")])
    d = rng.choice([0, -1, 100])
    return Draft(
        f"{fn}|{p.key}|{d}",
        (a,),
        (
            f"the {adj} number in `{a}` that {p.sg}, or {d} if there is none",
            f"the {adj} of the numbers in `{a}` that {p.pl} ({d} when there are none)",
        ),
        f"the {adj} number that {p.sg}, or {d}",
        (f"return {fn}((x for x in {a} if {p('x')}), default={d})",),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("find", "best", "pick"),
    )


def _any_all(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    fn = rng.choice(["any", "all"])
    what = f"at least one number in `{a}` {p.sg}" if fn == "any" else f"all numbers in `{a}` {p.pl}"
    doc = f"at least one number {p.sg}" if fn == "any" else f"all numbers {p.doc}"
    return Draft(
        f"{fn}|{p.key}",
        (a,),
        (f"True if {what}, otherwise False", f"whether {what}"),
        f"whether {doc}",
        (f"return {fn}({p('x')} for x in {a})",),
        lambda: (int_list(rng, p.pool, 1, 3),),
        EMPTY,
        ("check", "has", "test"),
    )


def _product_filter(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"the product of the numbers in `{a}` that {p.pl} (1 if there are none)",
            f"the result of multiplying all numbers in `{a}` that {p.pl}, starting from 1",
        ),
        f"the product of numbers that {p.doc}",
        (
            "result = 1",
            f"for x in {a}:",
            f"    if {p('x')}:",
            "        result *= x",
            "return result",
        ),
        lambda: (int_list(rng, p.pool, 2, 4),),
        EMPTY,
        ("multiply", "product"),
    )


def _two_conditions(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    q = predicate(rng, avoid=p.key.split()[0])
    word = rng.choice(["and", "or"])
    return Draft(
        f"{p.key}|{word}|{q.key}",
        (a,),
        (
            f"a list of the numbers in `{a}` that {p.pl} {word} {q.pl}",
            f"every number of `{a}` that {p.sg} {word} {q.sg}, as a list",
        ),
        f"the numbers that {p.doc} {word} {q.doc}",
        (f"return [x for x in {a} if {p('x')} {word} {q('x')}]",),
        lambda: (int_list(rng, p.pool + q.pool, 4, 7),),
        EMPTY,
        ("filter", "select", "pick"),
    )


def _if_else_map(rng: random.Random) -> Draft:
    p, t, a = predicate(rng), transform(rng), rng.choice(LIST_NAMES)
    u = transform(rng, avoid=t.key)
    return Draft(
        f"{p.key}|{t.key}|{u.key}",
        (a,),
        (
            f"a list with {t.of('x')} for each x in `{a}` that {p.sg} and {u.of('x')} otherwise",
            f"a list where each x of `{a}` becomes {t.of('x')} if it {p.sg}, else {u.of('x')}",
        ),
        f"{t.doc_of('x')} if x {p.sg}, else {u.doc_of('x')}",
        (f"return [{t('x')} if {p('x')} else {u('x')} for x in {a}]",),
        lambda: (int_list(rng, p.pool, 2, 5),),
        EMPTY,
        ("map", "adjust", "convert"),
    )


def _replace_matching(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    k = rng.choice([0, 1, -1, 50, 99])
    return Draft(
        f"{p.key}|{k}",
        (a,),
        (
            f"a copy of `{a}` in which every number that {p.sg} is replaced by {k}",
            f"a list like `{a}`, but with {k} in place of the numbers that {p.pl}",
        ),
        f"the list with {k} for numbers that {p.doc}",
        (f"return [{k} if {p('x')} else x for x in {a}]",),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("replace", "mask", "swap"),
    )


def _filter_sorted(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    down = rng.random() < 0.5
    order = "descending" if down else "ascending"
    tail = ", reverse=True" if down else ""
    first = f"(x for x in {a} if {p('x')})" if down else f"x for x in {a} if {p('x')}"
    return Draft(
        f"{p.key}|{order}",
        (a,),
        (
            f"the numbers in `{a}` that {p.pl}, sorted in {order} order",
            f"a sorted list ({order}) of every number in `{a}` that {p.sg}",
        ),
        f"numbers that {p.doc}, in {order} order",
        (f"return sorted({first}{tail})",),
        lambda: (int_list(rng, p.pool, 4, 7),),
        EMPTY,
        ("sort", "order", "arrange"),
    )


def _partition(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"a tuple of two lists: the numbers in `{a}` that {p.pl}, and all others",
            f"a pair of lists, first the elements of `{a}` that {p.pl}, then the rest",
        ),
        f"numbers that {p.doc}, and the others",
        (
            "yes, no = [], []",
            f"for x in {a}:",
            f"    if {p('x')}:",
            "        yes.append(x)",
            "    else:",
            "        no.append(x)",
            "return yes, no",
        ),
        lambda: (int_list(rng, p.pool, 2, 5),),
        EMPTY,
        ("split", "partition", "divide"),
    )


def _first_match(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    d = rng.choice(["None", "0", "-1"])
    return Draft(
        f"{p.key}|{d}",
        (a,),
        (
            f"the first number in `{a}` that {p.sg}, or {d} if there is none",
            f"the first element of `{a}` that {p.sg}; when no element does, {d}",
        ),
        f"the first number that {p.sg}, or {d}",
        (f"for x in {a}:", f"    if {p('x')}:", "        return x", f"return {d}"),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("first", "find", "seek"),
    )


def _index_match(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"the index of the first number in `{a}` that {p.sg}, or -1 if there is none",
            f"the position of the first element of `{a}` that {p.sg} (-1 when none does)",
        ),
        f"the index of the first number that {p.sg}, or -1",
        (f"for i, x in enumerate({a}):", f"    if {p('x')}:", "        return i", "return -1"),
        lambda: (int_list(rng, p.pool),),
        EMPTY,
        ("index", "locate", "find"),
    )


LIST_TEMPLATES = templates(
    _filter_list,
    _drop_list,
    _map_list,
    _filter_map,
    _sum_filter,
    _sum_filter_map,
    _sum_map,
    _count_filter,
    _extreme_filter,
    _any_all,
    _product_filter,
    _two_conditions,
    _if_else_map,
    _replace_matching,
    _filter_sorted,
    _partition,
    _first_match,
    _index_match,
)
