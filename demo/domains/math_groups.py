"""Word problem templates of every split: ages, rows, teams, animals and machines."""

from __future__ import annotations

from random import Random

from .math_words import (
    CONTAINERS,
    MADE,
    PLANTS,
    TOWNS,
    Item,
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


def _ages(r: Random) -> Item:
    w, v, u = people(r, 3)
    age, k = r.randint(4, 14), r.randint(2, 4)
    old = age * k
    d = r.randint(2, old - 3)
    third = old - d
    word = {2: "twice", 3: "three times", 4: "four times"}[k]
    prompt = r.choice(
        [
            f"{w.name} is {age} years old. {v.name} is {word} as old as {w.name}, and {u.name} "
            f"is {d} "
            f"years younger than {v.name}. How old are {u.name} and {w.name} together?",
            f"{v.name} is {word} as old as {w.name}, who is {age}. {u.name} is {d} years younger "
            f"than "
            f"{v.name}. What is the sum of the ages of {w.name} and {u.name}?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [f"{v.name} is {mul(age, k)} years old.", f"The age of {v.name} is {mul(age, k)}."]
            ),
            r.choice(
                [f"{u.name} is {sub(old, d)} years old.", f"The age of {u.name} is {sub(old, d)}."]
            ),
            r.choice(
                [
                    f"Together they are {add(third, age)} years old.",
                    f"The sum is {add(third, age)} years.",
                ]
            ),
        ],
        third + age,
    )


def _garden(r: Random) -> Item:
    w = person(r)
    x, y = (plural(noun) for noun in r.sample(PLANTS, 2))
    n, p, m, q = r.randint(3, 8), r.randint(4, 10), r.randint(2, 6), r.randint(3, 9)
    total = n * p + m * q
    dead = r.randint(2, 15)
    prompt = r.choice(
        [
            f"{w.name} plants {n} rows of {p} {x} and {m} rows of {q} {y}. A late frost kills "
            f"{dead} of "
            f"the plants. How many plants are still alive?",
            f"In {w.name}'s garden there are {n} rows with {p} {x} each and {m} rows with {q} "
            f"{y} each. "
            f"{w.he_up} removes {dead} weak plants. How many plants are left?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice([f"There are {mul(n, p)} {x}.", f"The number of {x} is {mul(n, p)}."]),
            r.choice([f"There are {mul(m, q)} {y}.", f"The number of {y} is {mul(m, q)}."]),
            r.choice(
                [
                    f"Together that is {add(n * p, m * q)} plants.",
                    f"The garden had {add(n * p, m * q)} plants at first.",
                ]
            ),
            r.choice(
                [f"{sub(total, dead)} plants are left.", f"Now there are {sub(total, dead)}."]
            ),
        ],
        total - dead,
    )


def _league(r: Random) -> Item:
    town = r.choice(TOWNS)
    sport = r.choice(["football", "hockey", "handball", "chess", "volleyball", "rugby", "curling"])
    won, drawn = r.randint(3, 15), r.randint(2, 9)
    points = 3 * won + drawn
    minus = r.randint(2, 6)
    prompt = r.choice(
        [
            f"The {sport} team of {town} wins {won} matches and draws {drawn}. A win gives 3 "
            f"points and "
            f"a draw 1 point. {minus} points are taken away for a late start. How many points "
            f"are left?",
            f"In a {sport} league a win is worth 3 points and a draw 1 point. {town} has {won} "
            f"wins and "
            f"{drawn} draws but loses {minus} points as a penalty. How many points does it have?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [f"The wins give {mul(won, 3)} points.", f"For wins it gets {mul(won, 3)} points."]
            ),
            r.choice(
                [
                    f"With the draws it has {add(3 * won, drawn)} points.",
                    f"The draws bring it to {add(3 * won, drawn)} points.",
                ]
            ),
            r.choice(
                [
                    f"After the penalty {sub(points, minus)} points are left.",
                    f"The penalty leaves {sub(points, minus)} points.",
                ]
            ),
        ],
        points - minus,
    )


def _legs(r: Random) -> Item:
    w = person(r)
    two = r.choice(["hens", "ducks", "geese", "turkeys", "ostriches", "peacocks"])
    four = r.choice(["cows", "goats", "sheep", "pigs", "horses", "donkeys", "rabbits", "llamas"])
    n, m, k = r.randint(3, 20), r.randint(4, 15), r.randint(2, 9)
    k = min(k, m - 2)
    prompt = r.choice(
        [
            f"{w.name} keeps {n} {two} with 2 legs each and {m} {four} with 4 legs each. {k} of "
            f"the "
            f"{four} are sold. How many legs do the other animals have?",
            f"On {w.name}'s farm there are {m} {four}, which have 4 legs, and {n} {two}, which "
            f"have 2. "
            f"After {k} {four} have left, how many legs are there in all?",
        ]
    )
    rest = m - k
    return make_item(
        prompt,
        [
            r.choice([f"There are {sub(m, k)} {four} left.", f"{sub(m, k)} {four} stay."]),
            r.choice([f"The {four} have {mul(rest, 4)} legs.", f"They have {mul(rest, 4)} legs."]),
            r.choice(
                [f"The {two} have {mul(n, 2)} legs.", f"On the {two} there are {mul(n, 2)} legs."]
            ),
            r.choice(
                [
                    f"In all there are {add(rest * 4, n * 2)} legs.",
                    f"The total is {add(rest * 4, n * 2)} legs.",
                ]
            ),
        ],
        rest * 4 + n * 2,
    )


def _machine(r: Random) -> Item:
    town, x, box = r.choice(TOWNS), things(r, MADE), thing(r, CONTAINERS)
    rate, hours, size = r.choice([8, 9, 10, 12, 15, 20]), r.randint(3, 8), r.randint(4, 10)
    total = rate * hours
    boxes = r.randint(2, (total - 2) // size)
    bad = total - boxes * size
    prompt = r.choice(
        [
            f"A machine in {town} makes {rate} {x} an hour and runs for {hours} hours. {bad} {x} "
            f"are "
            f"kept for tests. The others are put into {plural(box)} of {size}. How many "
            f"{plural(box)} "
            f"is that?",
            f"A workshop in {town} produces {rate} {x} every hour for {hours} hours. {bad} of "
            f"them stay "
            f"there, and the rest is sent out in {plural(box)} of {size}. How many {plural(box)} "
            f"leave?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"In {hours} hours {mul(rate, hours)} {x} are made.",
                    f"The output is {mul(rate, hours)} {x}.",
                ]
            ),
            r.choice([f"{sub(total, bad)} {x} are packed.", f"The rest is {sub(total, bad)} {x}."]),
            r.choice(
                [
                    f"They fill {div(boxes * size, size)} {plural(box)}.",
                    f"That makes {div(boxes * size, size)} {plural(box)}.",
                ]
            ),
        ],
        boxes,
    )


GROUPS = tuple(
    Template(build.__name__.lstrip("_"), build)
    for build in (
        _ages,
        _garden,
        _league,
        _legs,
        _machine,
    )
)
