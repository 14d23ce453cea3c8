"""Plain prose of no task domain: short paragraphs to measure general language modelling on."""

from __future__ import annotations

import random

from .plain_topics import FILLERS, TOPICS

NAME = "plain"
COUNT = 60
"""Number of paragraphs in the set."""

MIN_WORDS, MAX_WORDS = 60, 120
"""Bounds on the length of a paragraph, in words divided by blanks."""


def _paragraph(topic: int, rng: random.Random) -> str:
    openings, middles, endings = TOPICS[topic]
    chosen = sorted(rng.sample(range(len(middles)), rng.choice([3, 4, 5])))
    sentences = [rng.choice(openings), *(middles[index] for index in chosen), rng.choice(endings)]
    fillers = {key: rng.choice(choices) for key, choices in FILLERS.items()}
    return " ".join(sentences).format(**fillers)


def generate(seed: int = 0, count: int = COUNT) -> list[dict[str, str]]:
    """Return ``count`` different items ``{"prompt": paragraph}``, the same for the same seed.

    The topics take turns before the items are shuffled.
    """
    rng = random.Random(f"{NAME}-{seed}")
    texts: list[str] = []
    while len(texts) < count:
        text = _paragraph(len(texts) % len(TOPICS), rng)
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS and text not in texts:
            texts.append(text)
    rng.shuffle(texts)
    return [{"prompt": text} for text in texts]
