"""The math domain: word problems of two to five steps whose solutions write out every step."""

from __future__ import annotations

import re
from typing import Any

from .math_amounts import AMOUNTS
from .math_groups import GROUPS
from .math_measures import MEASURES
from .math_money import MONEY
from .math_places import PLACES
from .math_unseen import UNSEEN
from .splits import Template, make_splits

NAME = "math"
SEEN: tuple[Template, ...] = MONEY + AMOUNTS + MEASURES + GROUPS + PLACES

# The markup characters may stand before, inside and behind the line, as in "**Answer:** $1,200.".
_ANSWER = re.compile(
    r"^[\s*_`#>]*answer[\s*_`]*:[\s*_`$]*(-?\s*(?:\d{1,3}(?:,\d{3})+|\d+))(?:\.0*)?[\s*_`$.]*$",
    re.IGNORECASE,
)


def generate(seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Return the items of every split; each has ``prompt``, ``response`` and ``answer``."""
    return make_splits(NAME, SEEN, UNSEEN, seed)


def final_answer(response: str) -> int | None:
    """Return the number in the last line of the form ``Answer: N``, or None without one."""
    for line in reversed(response.splitlines()):
        match = _ANSWER.match(line)
        if match:
            return int(re.sub(r"[,\s]", "", match.group(1)))
    return None


def check(item: dict[str, Any], response: str) -> bool:
    """Tell whether the last ``Answer: N`` line of ``response`` has the number ``item["answer"]``.

    Case, markup, dollar signs, thousands commas and a trailing period are ignored; a response
    without such a line is wrong.
    """
    return final_answer(response) == int(item["answer"])
