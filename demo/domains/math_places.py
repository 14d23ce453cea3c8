"""Word problem templates of every split: pages, seats, shelves and passengers."""

from __future__ import annotations

from random import Random

from .math_words import (
    COLLECTED,
    TOWNS,
    Item,
    add,
    div,
    make_item,
    mul,
    people,
    person,
    sub,
    things,
)
from .splits import Template


def _reading(r: Random) -> Item:
    w, kind = person(r), r.choice(["novel", "history book", "travel book", "mystery", "biography"])
    d, n, k, each = r.randint(2, 6), r.randint(5, 20), r.randint(2, 6), r.randint(4, 15)
    total = d * n + k * each
    prompt = r.choice(
        [
            f"{w.name} has a {kind} of {total} pages. {w.he_up} reads {n} pages a day for {d} days "
            f"and "
            f"wants to finish in {k} more days. How many pages a day must {w.he} read then?",
            f"A {kind} has {total} pages. For {d} days {w.name} reads {n} pages each day. The "
            f"rest is "
            f"spread evenly over {k} days. How many pages is that on each of those days?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"In {d} days {w.he} reads {mul(d, n)} pages.",
                    f"{w.name} first reads {mul(d, n)} pages.",
                ]
            ),
            r.choice(
                [f"{sub(total, d * n)} pages are left.", f"The rest is {sub(total, d * n)} pages."]
            ),
            r.choice(
                [
                    f"That is {div(k * each, k)} pages a day.",
                    f"Each day {w.he} must read {div(k * each, k)} pages.",
                ]
            ),
        ],
        each,
    )


def _album(r: Random) -> Item:
    w, v = people(r, 2)
    x = things(r, COLLECTED)
    pages, each = r.randint(4, 12), r.randint(4, 9)
    room = pages * each
    have = r.randint(4, room - 6)
    gift = r.randint(2, room - have - 2)
    prompt = r.choice(
        [
            f"An album for pictures of {x} has {pages} pages with {each} places on each page. "
            f"{w.name} "
            f"has filled {have} places and gets {gift} pictures from {v.name}. How many places "
            f"will "
            f"still be free?",
            f"{w.name} draws {x} in a sketchbook of {pages} pages, and each page has {each} "
            f"frames. "
            f"{have} frames are full, and {v.name} fills {gift} more. How many frames are empty?",
        ]
    )
    kind = "places" if "places" in prompt else "frames"
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"There is room for {mul(pages, each)} pictures.",
                    f"There are {mul(pages, each)} {kind} in all.",
                ]
            ),
            r.choice(
                [
                    f"{add(have, gift)} {kind} are full.",
                    f"The number of full {kind} is {add(have, gift)}.",
                ]
            ),
            r.choice(
                [
                    f"So {sub(room, have + gift)} {kind} are free.",
                    f"{sub(room, have + gift)} {kind} are left.",
                ]
            ),
        ],
        room - have - gift,
    )


def _library(r: Random) -> Item:
    town, w = r.choice(TOWNS), person(r)
    shelves, each = r.randint(4, 9), r.choice([8, 9, 10, 12, 15, 20])
    total = shelves * each
    lent = r.randint(5, total - 5)
    back = r.randint(2, lent - 1)
    rest = total - lent
    prompt = r.choice(
        [
            f"The library of {town} has {shelves} shelves with {each} books each. {lent} books "
            f"are lent "
            f"out and later {back} come back. How many books are on the shelves then?",
            f"{w.name} fills {shelves} shelves in {town} with {each} books each. People borrow "
            f"{lent} of "
            f"them and return {back}. How many books are there now?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"At first there are {mul(shelves, each)} books.",
                    f"The shelves hold {mul(shelves, each)} books.",
                ]
            ),
            r.choice(
                [
                    f"{sub(total, lent)} books are left after lending.",
                    f"Without the lent ones there are {sub(total, lent)} books.",
                ]
            ),
            r.choice(
                [
                    f"With the returned ones it is {add(rest, back)} books.",
                    f"Now there are {add(rest, back)} books.",
                ]
            ),
        ],
        rest + back,
    )


def _seats(r: Random) -> Item:
    town, hall = r.choice(TOWNS), r.choice(["theatre", "cinema", "school hall", "tent", "arena"])
    rows, seats = r.randint(5, 12), r.choice([6, 8, 9, 10, 12, 15, 20])
    k, g = r.randint(2, 5), r.randint(4, 9)
    total = rows * seats
    if k * g > total - 2:
        k, g = 3, 5
    prompt = r.choice(
        [
            f"A {hall} in {town} has {rows} rows of {seats} seats. {k} groups of {g} people have "
            f"already "
            f"sat down. How many seats are still free?",
            f"There are {rows} rows with {seats} seats each in the {hall} of {town}. {g} people "
            f"from "
            f"each of {k} clubs take a seat. How many seats stay empty?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The {hall} has {mul(rows, seats)} seats.",
                    f"There are {mul(rows, seats)} seats.",
                ]
            ),
            r.choice([f"The groups take {mul(k, g)} seats.", f"{mul(k, g)} people sit down."]),
            r.choice(
                [f"So {sub(total, k * g)} seats are free.", f"{sub(total, k * g)} seats are left."]
            ),
        ],
        total - k * g,
    )


def _class_trip(r: Random) -> Item:
    town, v = r.choice(TOWNS), r.choice(["vans", "boats", "cabins", "rooms", "tents", "wagons"])
    size, count = r.randint(4, 9), r.randint(4, 10)
    total = size * count
    k = r.randint(2, 4)
    each = (total - r.randint(2, 8)) // k
    adults = total - k * each
    prompt = r.choice(
        [
            f"{k} clubs with {each} children each and {adults} adults go on a trip to {town}. "
            f"They use "
            f"{v} for {size} people. How many {v} do they fill?",
            f"A trip to {town} has {adults} adults and {k} groups of {each} children. Everyone "
            f"is put "
            f"into {v} with {size} places each. How many {v} are needed?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"There are {mul(k, each)} children.",
                    f"The number of children is {mul(k, each)}.",
                ]
            ),
            r.choice(
                [
                    f"With the adults there are {add(k * each, adults)} people.",
                    f"In all {add(k * each, adults)} people go.",
                ]
            ),
            r.choice([f"They need {div(total, size)} {v}.", f"That fills {div(total, size)} {v}."]),
        ],
        count,
    )


def _passengers(r: Random) -> Item:
    (p, q), v = r.sample(TOWNS, 2), r.choice(["train", "tram", "ferry"])
    cars, each = r.randint(2, 5), r.randint(6, 15)
    off = r.randint(3, cars * each - 4)
    on = r.randint(2, 20)
    total = cars * each
    part = "decks" if v == "ferry" else "carriages"
    prompt = r.choice(
        [
            f"A {v} with {cars} {part} leaves {p} with {each} people in each of them. In {q}, "
            f"{off} "
            f"people get off and {on} get on. How many people are on the {v} now?",
            f"There are {each} people in each of the {cars} {part} of a {v}. At {p} {off} of "
            f"them get "
            f"off, and at {q} {on} others get on. How many people does the {v} carry then?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"At first there are {mul(cars, each)} people.",
                    f"The {v} starts with {mul(cars, each)} people.",
                ]
            ),
            r.choice([f"{sub(total, off)} people stay on.", f"Then {sub(total, off)} are left."]),
            r.choice(
                [
                    f"Now there are {add(total - off, on)} people.",
                    f"With the new ones it is {add(total - off, on)} people.",
                ]
            ),
        ],
        total - off + on,
    )


PLACES = tuple(
    Template(build.__name__.lstrip("_"), build)
    for build in (
        _reading,
        _album,
        _library,
        _seats,
        _class_trip,
        _passengers,
    )
)
