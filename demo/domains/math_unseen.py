"""Word problem templates of the test split alone."""

from __future__ import annotations

from random import Random

from .math_words import (
    BAKED,
    COLLECTED,
    FEW,
    GOODS,
    PLANTS,
    TOWNS,
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


def _taxi(r: Random) -> Item:
    w, v = people(r, 2)
    town, base, rate, far = r.choice(TOWNS), r.randint(3, 10), r.randint(2, 4), r.randint(4, 15)
    k = r.choice([2, 4, 5])
    base += -(base + rate * far) % k
    fare = base + rate * far
    prompt = (
        f"A taxi to {town} costs {base} dollars plus {rate} dollars for each kilometre. {w.name}, "
        f"{v.name} and their friends, {k} people in all, go {far} kilometres and share the "
        f"fare equally. How many dollars does each one pay?"
    )
    if k == 2:
        prompt = prompt.replace(
            f"{w.name}, {v.name} and their friends, 2 people in all, go",
            f"{w.name} and {v.name} go",
        )
    return make_item(
        prompt,
        [
            f"The kilometres cost {mul(rate, far)} dollars.",
            r.choice(
                [
                    f"The fare is {add(base, rate * far)} dollars.",
                    f"With the base price it is {add(base, rate * far)} dollars.",
                ]
            ),
            f"Each one pays {div(fare, k)} dollars.",
        ],
        fare // k,
    )


def _average(r: Random) -> Item:
    w, game = person(r), r.choice(["bowling", "darts", "archery", "mini golf", "a quiz", "pinball"])
    mean = r.randint(20, 40)
    x, y = mean + r.randint(-8, 8), mean + r.randint(-8, 8)
    z = 3 * mean - x - y
    prompt = (
        f"{w.name} plays three rounds of {game.removeprefix('a ')} and scores {x}, {y} and {z} "
        f"points. What is {w.his} average score per round?"
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The sum is {add(x, y, z)} points.",
                    f"In all {w.he} scores {add(x, y, z)} points.",
                ]
            ),
            r.choice(
                [
                    f"The average is {div(3 * mean, 3)} points.",
                    f"Per round that is {div(3 * mean, 3)} points.",
                ]
            ),
        ],
        mean,
    )


def _growth(r: Random) -> Item:
    w, x = person(r), thing(r, PLANTS)
    start, rate, weeks = r.randint(5, 30), r.randint(2, 6), r.randint(3, 9)
    tall = start + rate * weeks
    cut = r.randint(2, tall - 5)
    prompt = (
        f"{a(x).capitalize()} in {w.name}'s garden is {start} centimetres tall and grows {rate} "
        f"centimetres a week. After {weeks} weeks {w.he} cuts off the top {cut} centimetres. How "
        f"tall is it then, in centimetres?"
    )
    return make_item(
        prompt,
        [
            f"It grows {mul(rate, weeks)} centimetres.",
            f"Before the cut it is {add(start, rate * weeks)} centimetres tall.",
            r.choice(
                [
                    f"After the cut it is {sub(tall, cut)} centimetres tall.",
                    f"Then it measures {sub(tall, cut)} centimetres.",
                ]
            ),
        ],
        tall - cut,
    )


def _slices(r: Random) -> Item:
    w = person(r)
    food = r.choice(["pizza", "cake", "quiche", "watermelon", "apple pie", "lasagne"])
    n, s, g = r.randint(3, 9), r.choice([6, 8, 10, 12]), r.randint(4, 9)
    each = r.randint(2, 5)
    if g * each > n * s - 2:
        g, each = 4, 2
    prompt = (
        f"For a party {w.name} cuts {n} {plural(food)} into {s} slices each. {g} guests eat {each} "
        f"slices each. How many slices are left over?"
    )
    return make_item(
        prompt,
        [
            r.choice([f"There are {mul(n, s)} slices.", f"{w.name} cuts {mul(n, s)} slices."]),
            f"The guests eat {mul(g, each)} slices.",
            r.choice(
                [
                    f"{sub(n * s, g * each)} slices are left over.",
                    f"So {sub(n * s, g * each)} slices remain.",
                ]
            ),
        ],
        n * s - g * each,
    )


def _nested(r: Random) -> Item:
    w, x = person(r), things(r, GOODS)
    outer, inner, each = r.randint(2, 5), r.randint(2, 5), r.randint(3, 8)
    total = outer * inner * each
    bad = r.randint(2, min(12, total - 2))
    prompt = (
        f"{w.name} receives {outer} crates. In every crate there are {inner} boxes, and in every "
        f"box "
        f"there are {each} {x}. {bad} of the {x} are damaged. How many are in good condition?"
    )
    return make_item(
        prompt,
        [
            f"There are {mul(outer, inner)} boxes.",
            r.choice(
                [
                    f"They hold {mul(outer * inner, each)} {x}.",
                    f"In all that is {mul(outer * inner, each)} {x}.",
                ]
            ),
            f"{sub(total, bad)} of them are in good condition.",
        ],
        total - bad,
    )


def _two_savers(r: Random) -> Item:
    w, v = people(r, 2)
    weeks, s, t = r.randint(2, 8), r.randint(4, 9), r.randint(2, 3)
    start, other = r.randint(10, 40), r.randint(3, 9)
    one, two = start + weeks * s, other + weeks * t
    prompt = (
        f"{w.name} has {start} dollars and saves {s} dollars a week. {v.name} has {other} dollars "
        f"and saves {t} dollars a week. How many dollars more does {w.name} have after {weeks} "
        f"weeks?"
    )
    return make_item(
        prompt,
        [
            f"{w.name} saves {mul(weeks, s)} dollars and has {add(start, weeks * s)} dollars.",
            f"{v.name} saves {mul(weeks, t)} dollars and has {add(other, weeks * t)} dollars.",
            r.choice(
                [
                    f"The difference is {sub(one, two)} dollars.",
                    f"{w.name} has {sub(one, two)} dollars more.",
                ]
            ),
        ],
        one - two,
    )


def _fuel(r: Random) -> Item:
    w, town = person(r), r.choice(TOWNS)
    start, each, trips, more = r.randint(40, 60), r.randint(3, 6), r.randint(3, 6), r.randint(5, 20)
    rest = start - each * trips
    prompt = (
        f"The tank of {w.name}'s car holds {start} litres of fuel. One trip to {town} uses {each} "
        f"litres. After {trips} trips {w.he} adds {more} litres. How many litres are in the tank?"
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The trips use {mul(each, trips)} litres.",
                    f"{mul(each, trips)} litres are used.",
                ]
            ),
            f"{sub(start, each * trips)} litres are left.",
            r.choice(
                [
                    f"Now there are {add(rest, more)} litres.",
                    f"With the new fuel it is {add(rest, more)} litres.",
                ]
            ),
        ],
        rest + more,
    )


def _at_first(r: Random) -> Item:
    w, v, u = people(r, 3)
    x = things(r, FEW)
    start, lost, got = r.randint(15, 60), r.randint(3, 12), r.randint(3, 30)
    now = start - lost + got
    prompt = (
        f"{w.name} gave {lost} {x} to {v.name} and later got {got} {x} from {u.name}. Now {w.he} "
        f"has "
        f"{now} {x}. How many {x} did {w.name} have at first?"
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"Before the gift from {u.name}, {w.he} had {sub(now, got)} {x}.",
                    f"Without the new ones there were {sub(now, got)} {x}.",
                ]
            ),
            f"Before giving to {v.name}, {w.he} had {add(now - got, lost)} {x}.",
        ],
        start,
    )


def _posts(r: Random) -> Item:
    w, place = person(r), r.choice(["pasture", "orchard", "playground", "camp site", "paddock"])
    gap, price = r.randint(2, 5), r.randint(2, 6)
    side = gap * r.randint(3, 8)
    around = 4 * side
    count = around // gap
    prompt = (
        f"{w.name} puts posts around a square {place} with sides of {side} metres. There is one "
        f"post "
        f"every {gap} metres along the border, and a post costs {price} dollars. How many dollars "
        f"do the posts cost?"
    )
    return make_item(
        prompt,
        [
            f"The border is {mul(side, 4)} metres long.",
            r.choice(
                [f"That takes {div(around, gap)} posts.", f"There are {div(around, gap)} posts."]
            ),
            f"The posts cost {mul(count, price)} dollars.",
        ],
        count * price,
    )


def _swap(r: Random) -> Item:
    w, v = people(r, 2)
    x, y = (plural(noun) for noun in r.sample(COLLECTED, 2))
    k, times, m, had = r.randint(2, 6), r.randint(3, 9), r.randint(2, 5), r.randint(3, 30)
    if m == k:
        m += 1
    prompt = (
        f"{v.name} gives {m} {y} for every {k} {x}. {w.name} trades all of {w.his} {k * times} {x} "
        f"in this way and already has {had} {y}. How many {y} does {w.name} have afterwards?"
    )
    return make_item(
        prompt,
        [
            f"{w.name} can trade {div(k * times, k)} times.",
            r.choice([f"{w.he_up} gets {mul(times, m)} {y}.", f"That brings {mul(times, m)} {y}."]),
            f"Then {w.he} has {add(times * m, had)} {y}.",
        ],
        times * m + had,
    )


def _quiz(r: Random) -> Item:
    w, subject = person(r), r.choice(["geography", "spelling", "history", "music", "biology"])
    pct, part = r.choice([(10, 10), (20, 5), (25, 4), (50, 2)])
    wrong = r.randint(2, 40 // part)
    total = wrong * part
    each = r.randint(2, 5)
    prompt = (
        f"A {subject} test has {total} questions. {w.name} gets {pct} percent of them wrong and "
        f"all "
        f"the others right. Each right answer gives {each} points. How many points does {w.he} get?"
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"{div(total, part)} answers are wrong.",
                    f"{pct} percent of {total} is {div(total, part)} questions.",
                ]
            ),
            f"{sub(total, wrong)} answers are right.",
            f"{w.he_up} gets {mul(total - wrong, each)} points.",
        ],
        (total - wrong) * each,
    )


def _evening(r: Random) -> Item:
    w = person(r)
    chore = r.choice(["cooking", "ironing", "cleaning", "gardening", "shopping", "packing"])
    k, m, long = r.randint(2, 5), r.randint(6, 12), r.choice([100, 120, 150])
    x = things(r, BAKED)
    first = r.randint(10, 30)
    busy = k * m + first
    prompt = (
        f"{w.name} has {long} minutes of free time. {w.he_up} needs {first} minutes for {chore} "
        f"and "
        f"bakes {k} trays of {x}, which take {m} minutes each, one tray at a time. How many "
        f"minutes does {w.he} have left?"
    )
    return make_item(
        prompt,
        [
            f"The {x} take {mul(k, m)} minutes.",
            f"With {chore} that is {add(k * m, first)} minutes.",
            r.choice(
                [
                    f"{sub(long, busy)} minutes are left.",
                    f"{w.he_up} has {sub(long, busy)} minutes left.",
                ]
            ),
        ],
        long - busy,
    )


UNSEEN = tuple(
    Template(build.__name__.lstrip("_"), build)
    for build in (
        _taxi,
        _average,
        _growth,
        _slices,
        _nested,
        _two_savers,
        _fuel,
        _at_first,
        _posts,
        _swap,
        _quiz,
        _evening,
    )
)
