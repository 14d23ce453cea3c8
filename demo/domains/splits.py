"""Seeded drawing of train, calibration, validation and test items from templates.

A template is a named function that turns a random generator into one item. The splits of a domain
never share a prompt, and a marked part of the test split comes from templates that no other split
has, so that one can tell a learned skill from a learned template.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = {"train": 3600, "calibration": 80, "validation": 50, "test": 200}
"""Number of items per split."""

UNSEEN_SHARE = 0.3
"""Part of the test items that come from templates no other split has."""

MAX_TRIES = 400
"""Draws in a row that may repeat an earlier prompt before a template counts as exhausted."""


@dataclass(frozen=True)
class Template:
    """A named builder of items; ``build`` returns an item without id, template and unseen keys."""

    name: str
    build: Callable[[random.Random], dict[str, Any]]


def normalise(prompt: str) -> str:
    """Return ``prompt`` casefolded with every run of white space as one blank."""
    return " ".join(prompt.casefold().split())


def _fresh(template: Template, rng: random.Random, used: set[str]) -> dict[str, Any]:
    for _ in range(MAX_TRIES):
        item = template.build(rng)
        key = normalise(item["prompt"])
        if key not in used:
            used.add(key)
            return item
    raise RuntimeError(f"template {template.name!r} makes no fresh prompt in {MAX_TRIES} draws")


def _draw(
    templates: Sequence[Template], count: int, unseen: bool, rng: random.Random, used: set[str]
) -> list[dict[str, Any]]:
    if count and not templates:
        raise ValueError(
            f"no {'unseen' if unseen else 'seen'} templates to draw {count} items from"
        )
    # A shuffled cycle: when count is no multiple of the number of templates, the extra items do
    # not always go to the templates listed first.
    order = list(templates)
    rng.shuffle(order)
    items = []
    for index in range(count):
        template = order[index % len(order)]
        fields = _fresh(template, rng, used)
        items.append({"template": template.name, "unseen": unseen, **fields})
    return items


def make_splits(
    domain: str,
    seen: Sequence[Template],
    unseen: Sequence[Template],
    seed: int,
    sizes: Mapping[str, int] = SIZES,
    unseen_share: float = UNSEEN_SHARE,
) -> dict[str, list[dict[str, Any]]]:
    """Return one list of items per key of ``sizes``, the same for the same arguments.

    Every item is ``{"id": "<domain>-<split>-0007", "template": name, "unseen": flag}`` plus what
    its template built. No two items of the result share a prompt after ``normalise``. Only the
    split called ``test`` has unseen items: ``unseen_share`` of it, rounded to whole items.

    Raises ValueError for template names that occur twice, a share outside 0..1 or templates that
    are missing, and RuntimeError, naming the template, when one makes no more fresh prompts.
    """
    names = [template.name for template in (*seen, *unseen)]
    if len(set(names)) != len(names):
        raise ValueError(f"template names of {domain!r} are not unique")
    if not 0.0 <= unseen_share <= 1.0:
        raise ValueError(f"unseen_share must lie in 0..1, got {unseen_share}")
    rng = random.Random(f"{domain}-{seed}")
    used: set[str] = set()
    drawn: dict[str, list[dict[str, Any]]] = {}
    # The train split is drawn last, so that its size does not change what the others hold.
    for split in sorted(sizes, key=lambda name: name == "train"):
        held_back = round(sizes[split] * unseen_share) if split == "test" else 0
        items = _draw(seen, sizes[split] - held_back, False, rng, used)
        items += _draw(unseen, held_back, True, rng, used)
        rng.shuffle(items)
        drawn[split] = [
            {"id": f"{domain}-{split}-{index:04d}", **item} for index, item in enumerate(items)
        ]
    return {split: drawn[split] for split in sizes}
