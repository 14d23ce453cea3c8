"""Fillers and small helpers for the word problems: names, objects, places, equations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Item = dict[str, Any]
"""One problem: ``prompt``, ``response`` and ``answer``."""


def _list(text: str) -> tuple[str, ...]:
    """Return the entries of ``text``, which are divided by bars; line ends do not matter."""
    return tuple(entry.strip() for entry in text.split("|"))


WOMEN = _list("""
    Ada|Aisha|Alma|Amara|Anika|Anna|Astrid|Aylin|Beatriz|Bela|Brigid|Carla|Carmen|
    Celia|Chiara|Clara|Daria|Delia|Dina|Edith|Elena|Elif|Emma|Esther|Eva|Farah|
    Fatima|Fiona|Freya|Gemma|Greta|Hana|Hazel|Helga|Ida|Ines|Ingrid|Iris|Isla|
    Ivana|Jana|Jasmin|Joan|Julia|June|Kaori|Katya|Kira|Lara|Laila|Lena|Leonie|Lina|
    Lucia|Mabel|Maeve|Maria|Marta|Maya|Mei|Mila|Mina|Nadia|Naomi|Nina|Nora|Olga|
    Olivia|Paula|Petra|Priya|Rania|Rosa|Ruth|Sara|Selma|Sofia|Tara|Tessa|Uma|Vera|
    Wanda|Yara|Yuki|Zara|Zoe
""")
MEN = _list("""
    Adam|Ahmed|Akira|Alan|Anders|Anton|Arjun|Arthur|Ben|Bjorn|Boris|Bruno|Carlos|
    Cyril|Daniel|Dario|David|Diego|Dmitri|Eamon|Edgar|Emil|Enzo|Erik|Felix|Finn|
    Frank|Gabriel|Georg|Gustav|Hans|Hassan|Hector|Henry|Hugo|Ian|Igor|Ivan|Jack|
    Jakob|James|Jamal|Jonas|Jorge|Karl|Kenji|Kofi|Lars|Leo|Liam|Lorenzo|Luca|
    Magnus|Malik|Marco|Martin|Mateo|Max|Milan|Nabil|Neil|Nico|Noah|Oleg|Omar|Oscar|
    Otto|Pablo|Patrick|Paul|Pedro|Peter|Rafael|Rashid|Ravi|Robert|Rohan|Samuel|
    Simon|Stefan|Sven|Theo|Tomas|Victor|Viktor|Walter|Yusuf
""")

STATIONERY = _list("""
    pencil|marker|notebook|eraser|ruler|crayon|folder|sticker|postcard|envelope|
    paintbrush|calendar|stapler|sketchbook|bookmark|highlighter|fountain pen|glue stick|
    notepad|poster|map|greeting card|comic book|puzzle book|pencil case|ballpoint pen
""")
HOUSEHOLD = _list("""
    mug|plate|bowl|candle|towel|basket|lamp|cushion|vase|teapot|broom|bucket|spoon|
    fork|napkin|doormat|picture frame|clothes hanger|light bulb|flower pot|sponge|
    cutting board|pillowcase|tablecloth|jug|soap bar|coaster|oven glove|mirror|blanket|
    coat hook
""")
CLOTHES = _list("""
    scarf|hat|belt|shirt|cap|sweater|raincoat|apron|necktie|headband|bracelet|dress|
    skirt|vest|backpack|wallet|umbrella|sun hat|hair clip|bow tie
""")
FRUIT = _list("""
    apple|pear|orange|lemon|plum|peach|apricot|fig|mango|kiwi|banana|melon|cherry|
    strawberry|tomato|potato|carrot|onion|cucumber|pepper|radish|turnip|chestnut|
    walnut|pumpkin|avocado|lime|nectarine|cabbage|beetroot
""")
BAKED = _list("""
    muffin|cookie|biscuit|scone|pretzel|bread roll|waffle|cupcake|doughnut|pancake|
    bagel|croissant|brownie|cheese stick|meat pie|apple tart|cinnamon bun|dumpling|
    honey cake|sandwich|oatcake|macaroon|flatbread|jam tart
""")
COLLECTED = _list("""
    stamp|marble|coin|shell|badge|button|toy car|trading card|pebble|model plane|
    keyring|bottle cap|feather|fossil|bead|dice set|figurine|magnet|train ticket|acorn|
    pine cone|lapel pin|crystal|tin soldier|pressed flower
""")
MADE = _list("""
    toy|bolt|bottle|brick|chair|clock|kite|lantern|paper bag|battery|bell|cable|
    drum|whistle|screw|hinge|tile|zip|spring|padlock|wooden spoon|plastic cup|
    bicycle bell|door handle|wheel|fuse|gear|shoelace
""")
PLANTS = _list("""
    tulip|rose|daisy|lily|sunflower|lavender bush|bean plant|lettuce|pepper plant|
    basil plant|tomato plant|daffodil|marigold|pansy|mint plant|apple tree|berry bush|
    fern|iris|peony|violet|orchid|olive tree|thyme plant
""")
OBJECTS = (*STATIONERY, *HOUSEHOLD, *CLOTHES, *FRUIT, *BAKED, *COLLECTED, *MADE, *PLANTS)
GOODS = (*STATIONERY, *HOUSEHOLD, *CLOTHES)
FEW = (*FRUIT, *BAKED, *COLLECTED, *STATIONERY)

CONTAINERS = ("box", "bag", "crate", "basket", "tray", "carton", "sack", "tub", "case", "packet")
SHOPS = _list("""
    market stall|corner shop|village store|supermarket|gift shop|department store|
    museum shop|school shop|online shop|warehouse|charity shop|station kiosk|garden centre
""")
TOWNS = _list("""
    Ashford|Belmont|Brookfield|Calder|Dunmore|Eastvale|Fairhaven|Glenwood|Harwick|
    Kingsbury|Lakeside|Marlow|Northgate|Oakham|Pinehurst|Quarry|Ridgeway|Stonebridge|
    Thornton|Westbrook|Windham|Redcliff|Elmwood|Hollyport
""")
JOBS = _list("""
    gardener|waiter|painter|cleaner|tutor|cook|driver|guide|carpenter|tailor|cashier|
    baker|lifeguard|librarian|mechanic|florist|plumber|barista|receptionist|dog walker
""")
GROUPS = _list("""
    friend|cousin|neighbour|classmate|teammate|colleague|guest|helper|child|visitor
""")
VEHICLES = ("bus", "train", "van", "truck", "car", "coach", "motorbike", "lorry")
TREATS = _list("""
    a new bicycle|a guitar|a tent|a pair of skates|a camera|a desk|a telescope|
    a keyboard|a winter coat|a drum|a sewing machine|a fishing rod|a chess set|
    a surfboard|a sleeping bag|a microscope|a violin|a garden bench
""")

_IRREGULAR = {"child": "children", "scarf": "scarves", "tomato": "tomatoes", "potato": "potatoes"}


@dataclass(frozen=True)
class Person:
    """A character: name and pronouns, ``he`` and ``he_up`` being "she" and "She" for a woman."""

    name: str
    he: str
    his: str

    @property
    def he_up(self) -> str:
        """The subject pronoun at the start of a sentence."""
        return self.he.capitalize()


def people(rng: random.Random, count: int) -> list[Person]:
    """Return ``count`` characters with different names."""
    return [
        Person(name, "she", "her") if name in WOMEN else Person(name, "he", "his")
        for name in rng.sample(WOMEN + MEN, count)
    ]


def person(rng: random.Random) -> Person:
    """Return one character."""
    return people(rng, 1)[0]


def thing(rng: random.Random, *lists: Sequence[str]) -> str:
    """Return a singular noun of one of ``lists``."""
    return rng.choice([noun for nouns in lists for noun in nouns])


def things(rng: random.Random, *lists: Sequence[str]) -> str:
    """Return a plural noun of one of ``lists``."""
    return plural(thing(rng, *lists))


def plural(noun: str) -> str:
    """Return the plural of a noun of this module."""
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def a(noun: str) -> str:
    """Return ``noun`` with its indefinite article."""
    return f"an {noun}" if noun[0] in "aeio" or noun.startswith("umb") else f"a {noun}"


def add(*terms: int) -> str:
    """Return the equation of a sum."""
    return f"{' + '.join(map(str, terms))} = {sum(terms)}"


def sub(first: int, second: int) -> str:
    """Return the equation of a difference."""
    return f"{first} - {second} = {first - second}"


def mul(first: int, second: int) -> str:
    """Return the equation of a product."""
    return f"{first} x {second} = {first * second}"


def div(first: int, second: int) -> str:
    """Return the equation of a quotient; ValueError when it is no whole number."""
    if first % second:
        raise ValueError(f"{first} / {second} is no whole number")
    return f"{first} / {second} = {first // second}"


def make_item(prompt: str, steps: list[str], answer: int) -> Item:
    """Return the item of a problem: one line per step, then the line with the answer."""
    return {
        "prompt": f'{prompt} End with the line "Answer: N".',
        "response": "\n".join([*steps, f"Answer: {answer}"]),
        "answer": str(answer),
    }
