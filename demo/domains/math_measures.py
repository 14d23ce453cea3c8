"""Word problem templates of every split: distances, lengths, areas, times and temperatures."""

from __future__ import annotations

from random import Random

from .math_words import TOWNS, VEHICLES, Item, add, div, make_item, mul, people, person, sub, thing
from .splits import Template


def _travel(r: Random) -> Item:
    (p, q), v = r.sample(TOWNS, 2), thing(r, VEHICLES)
    t, s = r.randint(2, 5), r.randint(2, 3)
    fast, slow = r.choice([30, 40, 50, 60]), r.choice([10, 20, 25, 30])
    prompt = r.choice(
        [
            f"A {v} from {p} travels {t} hours at {fast} kilometres per hour and then {s} hours at "
            f"{slow} kilometres per hour until it reaches {q}. How many kilometres is that in all?",
            f"On the way to {q}, a {v} leaves {p} and goes {fast} kilometres per hour for {t} "
            f"hours. "
            f"After that it does {slow} kilometres per hour for {s} hours. How far does it go in "
            f"all?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The first part is {mul(t, fast)} kilometres.",
                    f"In the first {t} hours it goes {mul(t, fast)} kilometres.",
                ]
            ),
            r.choice(
                [
                    f"The second part is {mul(s, slow)} kilometres.",
                    f"In the next {s} hours it goes {mul(s, slow)} kilometres.",
                ]
            ),
            r.choice(
                [
                    f"In all that is {add(t * fast, s * slow)} kilometres.",
                    f"The whole way is {add(t * fast, s * slow)} kilometres.",
                ]
            ),
        ],
        t * fast + s * slow,
    )


def _fence(r: Random) -> Item:
    w, place = person(r), r.choice(["garden", "field", "yard", "vegetable patch", "meadow", "park"])
    long, wide, gate = r.randint(8, 40), r.randint(4, 20), r.randint(2, 6)
    half = long + wide
    prompt = r.choice(
        [
            f"{w.name} wants a fence around a rectangular {place} that is {long} metres long and "
            f"{wide} "
            f"metres wide. A gate of {gate} metres needs no fence. How many metres of fence are "
            f"needed?",
            f"A rectangular {place} is {wide} metres wide and {long} metres long. {w.name} "
            f"fences it on "
            f"all sides except for a gate of {gate} metres. How long is the fence in metres?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"Length and width make {add(long, wide)} metres.",
                    f"One long and one short side are {add(long, wide)} metres.",
                ]
            ),
            r.choice(
                [
                    f"The perimeter is {mul(half, 2)} metres.",
                    f"All the way around it is {mul(half, 2)} metres.",
                ]
            ),
            r.choice(
                [
                    f"Without the gate that is {sub(2 * half, gate)} metres.",
                    f"The fence is {sub(2 * half, gate)} metres long.",
                ]
            ),
        ],
        2 * half - gate,
    )


def _tiles(r: Random) -> Item:
    w, room = person(r), r.choice(["kitchen", "hall", "bathroom", "porch", "cellar", "workshop"])
    cover, packs, price = r.randint(2, 5), r.randint(3, 9), r.randint(3, 9)
    wide = r.choice([k for k in range(2, 10) if (cover * packs) % k == 0 and cover * packs > k])
    long = cover * packs // wide
    wide, long = sorted((wide, long))
    prompt = r.choice(
        [
            f"The floor of a {room} is {long} metres long and {wide} metres wide. One pack of "
            f"tiles "
            f"covers {cover} square metres and costs {price} dollars. What does {w.name} pay for "
            f"tiles?",
            f"{w.name} tiles the floor of a {room}, {wide} metres by {long} metres. Each pack is "
            f"enough "
            f"for {cover} square metres. How many dollars are the tiles at {price} dollars a pack?",
        ]
    )
    area = long * wide
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The floor has {mul(long, wide)} square metres.",
                    f"The area is {mul(long, wide)} square metres.",
                ]
            ),
            r.choice(
                [
                    f"That takes {div(area, cover)} packs.",
                    f"{w.name} needs {div(area, cover)} packs.",
                ]
            ),
            r.choice(
                [
                    f"The tiles cost {mul(packs, price)} dollars.",
                    f"{w.he_up} pays {mul(packs, price)} dollars.",
                ]
            ),
        ],
        packs * price,
    )


def _lessons(r: Random) -> Item:
    w, subject = person(r), r.choice(["music", "dance", "swimming", "drawing", "chess", "riding"])
    k, m, b = r.randint(3, 6), r.choice([15, 20, 25, 30, 40]), r.choice([4, 5, 6, 8, 10])
    prompt = r.choice(
        [
            f"{w.name} teaches {k} {subject} lessons of {m} minutes, one after another. Between "
            f"two "
            f"lessons there is a break of {b} minutes. How many minutes pass from start to end?",
            f"There are {k} {subject} lessons on {w.name}'s plan, each {m} minutes long, with a "
            f"break "
            f"of {b} minutes between one lesson and the next. How many minutes does it all take?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [f"The lessons take {mul(k, m)} minutes.", f"Teaching lasts {mul(k, m)} minutes."]
            ),
            r.choice([f"There are {sub(k, 1)} breaks.", f"The number of breaks is {sub(k, 1)}."]),
            r.choice(
                [
                    f"The breaks take {mul(k - 1, b)} minutes.",
                    f"Resting lasts {mul(k - 1, b)} minutes.",
                ]
            ),
            r.choice(
                [
                    f"In all that is {add(k * m, (k - 1) * b)} minutes.",
                    f"From start to end it is {add(k * m, (k - 1) * b)} minutes.",
                ]
            ),
        ],
        k * m + (k - 1) * b,
    )


def _tank(r: Random) -> Item:
    w, kind = (
        person(r),
        r.choice(["rain barrel", "water tank", "pool", "pond", "trough", "cistern"]),
    )
    start, rate, time = r.randint(10, 60), r.randint(3, 12), r.randint(4, 12)
    used = r.randint(5, start + rate * time - 4)
    full = start + rate * time
    prompt = r.choice(
        [
            f"A {kind} holds {start} litres of water. {w.name} lets {rate} litres a minute run "
            f"in for "
            f"{time} minutes and then takes out {used} litres. How many litres are in it now?",
            f"For {time} minutes {w.name} fills a {kind} with {rate} litres of water a minute. "
            f"At first "
            f"it held {start} litres, and later {used} litres are used. How many litres remain?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [f"The tap adds {mul(rate, time)} litres.", f"{mul(rate, time)} litres run in."]
            ),
            r.choice(
                [
                    f"Then there are {add(start, rate * time)} litres.",
                    f"This makes {add(start, rate * time)} litres.",
                ]
            ),
            r.choice(
                [
                    f"In the end {sub(full, used)} litres are left.",
                    f"After that {sub(full, used)} litres remain.",
                ]
            ),
        ],
        full - used,
    )


def _ribbon(r: Random) -> Item:
    w, stuff = person(r), r.choice(["ribbon", "rope", "wire", "string", "cloth", "pipe", "cable"])
    k, c, m, each = r.randint(2, 7), r.randint(3, 9), r.randint(2, 6), r.randint(3, 12)
    total = k * c + m * each
    prompt = r.choice(
        [
            f"{w.name} has {total} metres of {stuff}. {w.he_up} cuts off {k} pieces of {c} metres "
            f"and then "
            f"cuts the rest into {m} equal parts. How many metres long is each of these parts?",
            f"From {total} metres of {stuff}, {w.name} takes {k} lengths of {c} metres. What "
            f"remains is "
            f"divided into {m} equal pieces. How long is one of these pieces in metres?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"{w.he_up} first cuts off {mul(k, c)} metres.",
                    f"The first pieces take {mul(k, c)} metres.",
                ]
            ),
            r.choice(
                [
                    f"{sub(total, k * c)} metres are left.",
                    f"The rest is {sub(total, k * c)} metres.",
                ]
            ),
            r.choice(
                [
                    f"Each part is {div(m * each, m)} metres long.",
                    f"Divided by {m}, that is {div(m * each, m)} metres.",
                ]
            ),
        ],
        each,
    )


def _laps(r: Random) -> Item:
    w, v = people(r, 2)
    how = r.choice([("runs", "run"), ("walks", "walk"), ("cycles", "cycle"), ("rows", "row")])
    laps, far, days = r.randint(2, 5), r.randint(2, 5), r.randint(2, 7)
    other = r.randint(3, 40)
    total = laps * far * days
    prompt = r.choice(
        [
            f"{w.name} {how[0]} {laps} laps of {far} kilometres a day, and does so for {days} "
            f"days. "
            f"{v.name} {how[0]} {other} kilometres. How many kilometres do they {how[1]} in all?",
            f"On each of {days} days {w.name} {how[0]} around a lake {laps} times, {far} "
            f"kilometres "
            f"each time. {v.name} {how[0]} only once, {other} kilometres. How many kilometres is "
            f"that "
            f"together?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"In a day {w.name} {how[0]} {mul(laps, far)} kilometres.",
                    f"One day is {mul(laps, far)} kilometres.",
                ]
            ),
            r.choice(
                [
                    f"In {days} days that is {mul(laps * far, days)} kilometres.",
                    f"{days} days make {mul(laps * far, days)} kilometres.",
                ]
            ),
            r.choice(
                [
                    f"Together they {how[1]} {add(total, other)} kilometres.",
                    f"With {v.name} it is {add(total, other)} kilometres.",
                ]
            ),
        ],
        total + other,
    )


def _temperature(r: Random) -> Item:
    town, w = r.choice(TOWNS), person(r)
    start, rate, hours = r.randint(2, 14), r.randint(2, 4), r.randint(2, 6)
    peak = start + rate * hours
    fall = r.randint(2, peak - 2)
    prompt = r.choice(
        [
            f"At dawn it is {start} degrees in {town}. It gets {rate} degrees warmer every hour "
            f"for "
            f"{hours} hours, and by night {w.name} sees that it is {fall} degrees colder again. "
            f"How "
            f"many degrees is it at night?",
            f"{w.name} reads {start} degrees on a thermometer in {town}. For {hours} hours it "
            f"rises by "
            f"{rate} degrees an hour, then it drops by {fall} degrees. What does it show now?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"It rises by {mul(rate, hours)} degrees.",
                    f"The rise is {mul(rate, hours)} degrees.",
                ]
            ),
            r.choice(
                [
                    f"Then it is {add(start, rate * hours)} degrees.",
                    f"The highest value is {add(start, rate * hours)} degrees.",
                ]
            ),
            r.choice(
                [
                    f"In the end it is {sub(peak, fall)} degrees.",
                    f"After the drop it is {sub(peak, fall)} degrees.",
                ]
            ),
        ],
        peak - fall,
    )


MEASURES = tuple(
    Template(build.__name__.lstrip("_"), build)
    for build in (
        _travel,
        _fence,
        _tiles,
        _lessons,
        _tank,
        _ribbon,
        _laps,
        _temperature,
    )
)
