"""Word problem templates of every split: buying, wages, saving and tickets."""

from __future__ import annotations

from random import Random

from .math_words import (
    GOODS,
    JOBS,
    SHOPS,
    TOWNS,
    TREATS,
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
)
from .splits import Template


def _buy_change(r: Random) -> Item:
    w, shop = person(r), thing(r, SHOPS)
    x, y = r.sample(GOODS, 2)
    x, y = x, y
    n, p, m, q = r.randint(2, 9), r.randint(2, 9), r.randint(2, 6), r.randint(2, 9)
    one, two = n * p, m * q
    total = one + two
    paid = ((total + 1) // 10 + r.randint(1, 3)) * 10
    prompt = r.choice(
        [
            f"At the {shop}, {w.name} buys {n} {plural(x)} at {p} dollars each and {m} {plural(y)} "
            f"at {q} dollars each. {w.he_up} pays with {paid} dollars. How much change does {w.he} "
            f"get?",
            f"{a(x).capitalize()} costs {p} dollars and {a(y)} costs {q} dollars at the {shop}. "
            f"{w.name} takes {n} {plural(x)} and {m} {plural(y)} and hands over {paid} dollars. "
            f"How many dollars does {w.he} get back?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The {plural(x)} cost {mul(n, p)} dollars.",
                    f"For the {plural(x)} {w.he} pays {mul(n, p)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"The {plural(y)} cost {mul(m, q)} dollars.",
                    f"For the {plural(y)} {w.he} pays {mul(m, q)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"Together that is {add(one, two)} dollars.",
                    f"The total is {add(one, two)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"The change is {sub(paid, total)} dollars.",
                    f"{w.he_up} gets back {sub(paid, total)} dollars.",
                ]
            ),
        ],
        paid - total,
    )


def _wage(r: Random) -> Item:
    w, job, treat = person(r), thing(r, JOBS), r.choice(TREATS)
    hours, days, rate = r.randint(2, 4), r.randint(2, 5), r.choice([5, 6, 8, 9, 10, 12])
    worked = hours * days
    pay = worked * rate
    price = r.randint(8, pay - 4)
    prompt = r.choice(
        [
            f"{w.name} works as {a(job)} for {hours} hours a day on {days} days and earns {rate} "
            f"dollars "
            f"an hour. {w.he_up} then spends {price} dollars on {treat}. How much money is left?",
            f"As {a(job)}, {w.name} earns {rate} dollars an hour. {w.he_up} works {days} days with "
            f"{hours} "
            f"hours each and buys {treat} for {price} dollars. How many dollars does {w.he} keep?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"{w.name} works {mul(hours, days)} hours.",
                    f"The working time is {mul(hours, days)} hours.",
                ]
            ),
            r.choice(
                [
                    f"{w.he_up} earns {mul(worked, rate)} dollars.",
                    f"The pay is {mul(worked, rate)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"After buying {treat}, {w.he} has {sub(pay, price)} dollars.",
                    f"{sub(pay, price)} dollars are left.",
                ]
            ),
        ],
        pay - price,
    )


def _percent_off(r: Random) -> Item:
    w, shop, treat = person(r), thing(r, SHOPS), r.choice(TREATS)[2:]
    pct, part = r.choice([(10, 10), (20, 5), (25, 4), (50, 2)])
    price = part * r.randint(20 // part, 90 // part)
    off = price // part
    extra = r.randint(3, 25)
    prompt = r.choice(
        [
            f"A {treat} costs {price} dollars, but the {shop} takes {pct} percent off. {w.name} "
            f"buys it "
            f"and also pays {extra} dollars for delivery. How much does {w.he} pay in all?",
            f"{w.name} sees a {treat} for {price} dollars. There is a discount of {pct} percent, "
            f"and "
            f"delivery from the {shop} costs {extra} dollars. How many dollars does {w.he} pay?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"{pct} percent of {price} is {div(price, part)} dollars.",
                    f"The discount is {div(price, part)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"The lower price is {sub(price, off)} dollars.",
                    f"So the price falls to {sub(price, off)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"With delivery {w.he} pays {add(price - off, extra)} dollars.",
                    f"In all that is {add(price - off, extra)} dollars.",
                ]
            ),
        ],
        price - off + extra,
    )


def _notes(r: Random) -> Item:
    w, x = person(r), thing(r, GOODS)
    fives, tens, n, p = r.randint(2, 9), r.randint(2, 6), r.randint(2, 6), r.randint(2, 9)
    total = fives * 5 + tens * 10
    if n * p > total - 2:
        n, p = 2, 3
    prompt = r.choice(
        [
            f"{w.name} has {fives} five-dollar notes and {tens} ten-dollar notes. {w.he_up} buys "
            f"{n} "
            f"{plural(x)} for {p} dollars each. How much money does {w.he} have left?",
            f"In {w.his} purse {w.name} finds {tens} ten-dollar notes and {fives} five-dollar "
            f"notes. "
            f"{w.he_up} pays for {n} {plural(x)} at {p} dollars each. How many dollars remain?",
        ]
    )
    return make_item(
        prompt,
        [
            f"The five-dollar notes are worth {mul(fives, 5)} dollars.",
            f"The ten-dollar notes are worth {mul(tens, 10)} dollars.",
            r.choice(
                [
                    f"Together that is {add(fives * 5, tens * 10)} dollars.",
                    f"So {w.he} has {add(fives * 5, tens * 10)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"The {plural(x)} cost {mul(n, p)} dollars.",
                    f"For the {plural(x)} {w.he} pays {mul(n, p)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"{sub(total, n * p)} dollars are left.",
                    f"{w.he_up} keeps {sub(total, n * p)} dollars.",
                ]
            ),
        ],
        total - n * p,
    )


def _save_weeks(r: Random) -> Item:
    w, treat = person(r), r.choice(TREATS)
    weeks, rate, had = r.randint(3, 12), r.randint(3, 12), r.randint(5, 40)
    price = weeks * rate + had
    prompt = r.choice(
        [
            f"{w.name} wants to buy {treat} for {price} dollars. {w.he_up} already has {had} "
            f"dollars and "
            f"saves {rate} dollars every week. After how many weeks can {w.he} buy it?",
            f"The price of {treat} is {price} dollars. {w.name} has {had} dollars so far and "
            f"puts aside "
            f"{rate} dollars a week. How many weeks does {w.he} need to save?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"{w.he_up} still needs {sub(price, had)} dollars.",
                    f"The missing sum is {sub(price, had)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"At {rate} dollars a week this takes {div(weeks * rate, rate)} weeks.",
                    f"{w.he_up} needs {div(weeks * rate, rate)} weeks.",
                ]
            ),
        ],
        weeks,
    )


def _earn_more(r: Random) -> Item:
    w, v = people(r, 2)
    j, k = r.sample(JOBS, 2)
    rows = sorted((r.randint(3, 9), r.randint(5, 12)) for _ in range(2))
    (n, p), (m, q) = rows
    if n * p >= m * q - 1:
        m, q = n + 2, p + 1
    prompt = r.choice(
        [
            f"{w.name}, {a(k)}, works {m} hours at {q} dollars an hour. {v.name}, "
            f"{a(j)}, works {n} hours at {p} dollars an hour. How many dollars more does "
            f"{w.name} earn?",
            f"{v.name} works as {a(j)} for {n} hours and gets {p} dollars an hour. {w.name} "
            f"works {m} hours as {a(k)} for {q} dollars an hour. By how many dollars is the "
            f"pay of {w.name} higher?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [f"{w.name} earns {mul(m, q)} dollars.", f"{w.name} gets {mul(m, q)} dollars."]
            ),
            r.choice(
                [f"{v.name} earns {mul(n, p)} dollars.", f"{v.name} gets {mul(n, p)} dollars."]
            ),
            r.choice(
                [
                    f"The difference is {sub(m * q, n * p)} dollars.",
                    f"{w.name} earns {sub(m * q, n * p)} dollars more.",
                ]
            ),
        ],
        m * q - n * p,
    )


def _tickets(r: Random) -> Item:
    town, show = r.choice(TOWNS), r.choice(["play", "concert", "circus", "film", "fair", "ballet"])
    n, p, m, q = r.randint(4, 12), r.randint(6, 12), r.randint(4, 12), r.randint(2, 5)
    total = n * p + m * q
    rent = r.randint(10, total - 8)
    prompt = r.choice(
        [
            f"For a {show} in {town}, {n} adults pay {p} dollars each and {m} children pay {q} "
            f"dollars "
            f"each. The hall costs {rent} dollars. How many dollars remain?",
            f"{town} holds a {show}. {n} tickets for adults are sold at {p} dollars and {m} "
            f"tickets for "
            f"children at {q} dollars. After {rent} dollars of costs, how much money is left?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [f"The adults pay {mul(n, p)} dollars.", f"From adults come {mul(n, p)} dollars."]
            ),
            r.choice(
                [
                    f"The children pay {mul(m, q)} dollars.",
                    f"From children come {mul(m, q)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"Together that is {add(n * p, m * q)} dollars.",
                    f"The income is {add(n * p, m * q)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"After the costs {sub(total, rent)} dollars are left.",
                    f"{sub(total, rent)} dollars remain.",
                ]
            ),
        ],
        total - rent,
    )


def _donation(r: Random) -> Item:
    w, shop, town = person(r), thing(r, SHOPS), r.choice(TOWNS)
    n, each, k = r.randint(4, 12), r.randint(3, 9), r.randint(5, 40)
    got = n * each + k
    target = got + r.randint(5, 60)
    cause = r.choice(["a playground", "a new roof", "a bench", "a cat shelter", "a bridge"])
    prompt = r.choice(
        [
            f"{w.name} collects money for {cause} in {town}. {n} people give {each} dollars "
            f"each, and "
            f"{a(shop)} adds {k} dollars. The goal is {target} dollars. How many dollars are "
            f"missing?",
            f"The goal for {cause} in {town} is {target} dollars. {w.name} gets {each} dollars "
            f"from each "
            f"of {n} people and {k} dollars from {a(shop)}. How much money is still needed?",
        ]
    )
    return make_item(
        prompt,
        [
            r.choice(
                [
                    f"The people give {mul(n, each)} dollars.",
                    f"From the people come {mul(n, each)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"With the shop it is {add(n * each, k)} dollars.",
                    f"In all there are {add(n * each, k)} dollars.",
                ]
            ),
            r.choice(
                [
                    f"{sub(target, got)} dollars are missing.",
                    f"To reach the goal, {sub(target, got)} dollars are needed.",
                ]
            ),
        ],
        target - got,
    )


MONEY = tuple(
    Template(build.__name__.lstrip("_"), build)
    for build in (
        _buy_change,
        _wage,
        _percent_off,
        _notes,
        _save_weeks,
        _earn_more,
        _tickets,
        _donation,
    )
)
