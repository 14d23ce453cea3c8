"""Word problem templates of every split: stocks, packing, sharing and comparing things."""

from __future__ import annotations

from random import Random

from .math_words import (
    BAKED,
    COLLECTED,
    CONTAINERS,
    FEW,
    FRUIT,
    GOODS,
    GROUPS,
    SHOPS,
    STATIONERY,
    Item,
    a,
    add,
    div,
    make_item,
    mul,
    people,
    person,
    plural,
    sub,
    thing,
    things,
)
from .splits import Template


def _bake_pack(r: Random) -> Item:
    w, x, box = person(r), things(r, BAKED), thing(r, CONTAINERS)
    trays, each = r.randint(3, 8), r.choice([6, 8, 9, 10, 12])
    total = trays * each
    size = r.randint(3, 6)
    boxes = r.randint(2, (total - 2) // size)
    left = size * boxes
    given = total - left
    prompt = r.choice(
        [
            f"{w.name} bakes {trays} batches of {each} {x}. {w.he_up} gives {given} of them away "
            f"and packs "
            f"the rest into {plural(box)} of {size}. How many {plural(box)} does {w.he} fill?",
            f"In the morning {w.name} makes {trays} batches of {x} with {each} in every batch. "
            f"{given} are eaten at once, and the others go into {plural(box)} that hold {size} "
            f"each. "
            f"How many {plural(box)} are needed?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"{w.name} bakes {mul(trays, each)} {x}.",
                    f"There are {mul(trays, each)} {x} at first.",
                ]
            ),
            r.choice(
                [
                    f"After that {sub(total, given)} {x} are left.",
                    f"{sub(total, given)} {x} remain.",
                ]
            ),
            r.choice(
                [
                    f"They fill {div(left, size)} {plural(box)}.",
                    f"That makes {div(left, size)} {plural(box)}.",
                ]
            ),
        ],
        boxes,
    )


def _stock(r: Random) -> Item:
    w, shop, x, box = (
        person(r),
        thing(r, SHOPS),
        things(r, GOODS),
        r.choice(["box", "crate", "carton", "case"]),
    )
    start, sold = r.randint(30, 90), r.randint(5, 28)
    k, c = r.randint(2, 7), r.choice([5, 6, 8, 10, 12])
    mid = start - sold
    prompt = r.choice(
        [
            f"{a(shop).capitalize()} has {start} {x} in stock. It sells {sold} of them on "
            f"Monday, and on Tuesday "
            f"{k} {plural(box)} with {c} {x} each arrive. How many {x} does it have now?",
            f"{w.name} runs {a(shop)} and starts the week with {start} {x}. {sold} are sold, "
            f"then {k} "
            f"{plural(box)} of {c} {x} are delivered. How many {x} are there after that?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"After the sale there are {sub(start, sold)} {x}.",
                    f"{sub(start, sold)} {x} are left after the sale.",
                ]
            ),
            r.choice([f"The delivery brings {mul(k, c)} {x}.", f"{mul(k, c)} new {x} arrive."]),
            r.choice(
                [
                    f"Now there are {add(mid, k * c)} {x}.",
                    f"That makes {add(mid, k * c)} {x} in stock.",
                ]
            ),
        ],
        mid + k * c,
    )


def _share_pool(r: Random) -> Item:
    w, v = people(r, 2)
    x, g = things(r, FRUIT, COLLECTED), plural(thing(r, GROUPS))
    k, each = r.randint(3, 8), r.randint(4, 12)
    total = k * each
    first = r.randint(5, total - 5)
    prompt = r.choice(
        [
            f"{w.name} gathers {first} {x} and {v.name} gathers {total - first}. They put them "
            f"together "
            f"and share them equally among {k} {g}. How many {x} does each one get?",
            f"{v.name} brings {total - first} {x} to a party, and {w.name} brings {first} more. "
            f"All of "
            f"them are divided equally among {k} {g}. How many {x} are there for each?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"Together they have {add(first, total - first)} {x}.",
                    f"In all there are {add(first, total - first)} {x}.",
                ]
            ),
            r.choice(
                [
                    f"Each one gets {div(total, k)} {x}.",
                    f"Shared among {k}, that is {div(total, k)} {x} each.",
                ]
            ),
        ],
        each,
    )


def _more_than(r: Random) -> Item:
    w, v, u = people(r, 3)
    x = things(r, COLLECTED, FRUIT, STATIONERY)
    n, d = r.randint(5, 30), r.randint(3, 20)
    second = n + d
    third = 2 * second
    prompt = r.choice(
        [
            f"{w.name} has {n} {x}. {v.name} has {d} more than {w.name}, and {u.name} has twice "
            f"as many "
            f"as {v.name}. How many {x} do the three have altogether?",
            f"{w.name}, {v.name} and {u.name} compare their {x}. {w.name} has {n}, {v.name} has "
            f"{d} more "
            f"than that, and {u.name} has two times as many as {v.name}. How many are there in "
            f"all?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [f"{v.name} has {add(n, d)} {x}.", f"The number for {v.name} is {add(n, d)}."]
            ),
            r.choice(
                [
                    f"{u.name} has {mul(second, 2)} {x}.",
                    f"The number for {u.name} is {mul(second, 2)}.",
                ]
            ),
            r.choice(
                [
                    f"Altogether they have {add(n, second, third)} {x}.",
                    f"The total is {add(n, second, third)} {x}.",
                ]
            ),
        ],
        n + second + third,
    )


def _half_rest(r: Random) -> Item:
    w, v, u = people(r, 3)
    x = things(r, FEW)
    half = r.randint(6, 45)
    k = r.randint(2, half - 2)
    prompt = r.choice(
        [
            f"{w.name} has {2 * half} {x}. {w.he_up} gives half of them to {v.name} and then {k} "
            f"of "
            f"the "
            f"rest to {u.name}. How many {x} does {w.name} still have?",
            f"Of {w.his} {2 * half} {x}, {w.name} hands one half to {v.name}. {u.name} gets "
            f"another {k}. "
            f"How many {x} are left for {w.name}?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [f"{v.name} gets {div(2 * half, 2)} {x}.", f"Half of them is {div(2 * half, 2)}."]
            ),
            r.choice(
                [
                    f"Then {sub(2 * half, half)} {x} are left.",
                    f"So {w.name} has {sub(2 * half, half)} {x} at that point.",
                ]
            ),
            r.choice(
                [
                    f"After the gift to {u.name}, {sub(half, k)} {x} remain.",
                    f"In the end {w.he} has {sub(half, k)} {x}.",
                ]
            ),
        ],
        half - k,
    )


def _pack_left(r: Random) -> Item:
    w, x, box = person(r), things(r, FRUIT, COLLECTED), thing(r, CONTAINERS)
    k, c = r.randint(3, 9), r.randint(4, 9)
    loose, extra = r.randint(2, 15), r.randint(3, 20)
    total = k * c + loose
    prompt = r.choice(
        [
            f"{w.name} picks out {total} {x} and fills {k} {plural(box)} with {c} each. The "
            f"loose ones "
            f"go into a bin that already holds {extra} {x}. How many {x} are in the bin then?",
            f"There are {total} {x} on a table. {w.name} puts {c} into each of {k} {plural(box)} "
            f"and "
            f"drops the rest into a bin with {extra} {x} in it. How many {x} does the bin hold "
            f"now?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The {plural(box)} take {mul(k, c)} {x}.",
                    f"{mul(k, c)} {x} go into the {plural(box)}.",
                ]
            ),
            r.choice(
                [
                    f"The loose ones are {sub(total, k * c)} {x}.",
                    f"{sub(total, k * c)} {x} are left over.",
                ]
            ),
            r.choice(
                [
                    f"Then the bin holds {add(loose, extra)} {x}.",
                    f"In the bin there are {add(loose, extra)} {x}.",
                ]
            ),
        ],
        loose + extra,
    )


def _third_of(r: Random) -> Item:
    w, x = person(r), things(r, GOODS, FEW)
    k, word = r.choice([(3, "third"), (4, "quarter"), (5, "fifth"), (2, "half")])
    part = r.randint(5, 20)
    total = k * part
    c, d = r.sample(["red", "blue", "green", "yellow", "white", "brown", "grey", "purple"], 2)
    other = r.randint(2, total - part - 2)
    share = "Half" if k == 2 else f"One {word}"
    prompt = r.choice(
        [
            f"{w.name} sorts {total} paper cut-outs of {x} by colour. {share} of them are {c}, and "
            f"{other} are {d}. How many are neither {c} nor {d}?",
            f"There are {total} paper {x} on the classroom wall. {share} of them are {c}, "
            f"{other} are "
            f"{d}, and {w.name} painted the others. How many did {w.name} paint?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice([f"The {c} ones are {div(total, k)}.", f"{div(total, k)} of them are {c}."]),
            r.choice(
                [f"{sub(total, part)} are not {c}.", f"Without these there are {sub(total, part)}."]
            ),
            r.choice(
                [
                    f"Then {sub(total - part, other)} are left.",
                    f"Without the {d} ones there are {sub(total - part, other)}.",
                ]
            ),
        ],
        total - part - other,
    )


def _recipe(r: Random) -> Item:
    w = person(r)
    food, part = r.choice(
        [
            ("omelette", "eggs"),
            ("soup", "carrots"),
            ("salad", "tomatoes"),
            ("stew", "potatoes"),
            ("curry", "onions"),
            ("fruit salad", "apples"),
            ("punch", "oranges"),
            ("pie", "pears"),
            ("sauce", "peppers"),
            ("lemonade", "lemons"),
            ("casserole", "leeks"),
            ("apple cake", "apples"),
        ]
    )
    p, k, e, have = r.randint(2, 6), r.randint(2, 8), r.randint(2, 9), r.randint(2, 12)
    have = min(have, k * e - 2)
    art = a(food) if food not in ("punch", "lemonade") else food
    prompt = r.choice(
        [
            f"A recipe for {art} for {p} people needs {e} {part}. {w.name} cooks for {p * k} "
            f"people and "
            f"has {have} {part} at home. How many {part} must {w.he} buy?",
            f"{w.name} makes {art} for {p * k} people. The recipe is for {p} people and takes {e} "
            f"{part}. {w.he_up} has {have} {part}. How many more does {w.he} need?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The recipe is made {div(p * k, p)} times.",
                    f"{w.he_up} needs the recipe {div(p * k, p)} times.",
                ]
            ),
            r.choice([f"That takes {mul(k, e)} {part}.", f"So {mul(k, e)} {part} are needed."]),
            r.choice(
                [
                    f"{w.he_up} must buy {sub(k * e, have)} {part}.",
                    f"{sub(k * e, have)} {part} are missing.",
                ]
            ),
        ],
        k * e - have,
    )


AMOUNTS = tuple(
    Template(build.__name__.lstrip("_"), build)
    for build in (
        _bake_pack,
        _stock,
        _share_pool,
        _more_than,
        _half_rest,
        _pack_left,
        _third_of,
        _recipe,
    )
)
