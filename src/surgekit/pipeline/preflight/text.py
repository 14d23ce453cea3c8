"""Texts compared: which are the same, and which nearly so."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

NEAR = 0.7
"""Share of words and word pairs (Jaccard) from which on two texts are nearly the same, where one
has no word that the other lacks, or the other none: words left out, added or moved."""
NEAR_REPLACED = 0.85
"""The same where words were replaced; reached by one such word in 19, or two in 39. Short items of
one template ("the boiling point of neon", "of oxygen") stay below."""

_WORD = re.compile(r"\w+")
_APOSTROPHE = re.compile("['\u2019]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_SENTENCE_END = '.?!:\n"\u201c(*#'
# A text is judged by its beginning, so that one of book length costs no more than others.
_MOST_CHARACTERS = 20_000
_MOST_COMPARISONS = 1_000_000


def normalised(text: str) -> str:
    """The text as it is compared: NFKC, one space for all blanks, no upper case."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@dataclass(frozen=True)
class Text:
    """A text in the forms in which it is compared.

    Attributes:
        raw: as it was given.
    """

    raw: str

    @cached_property
    def same(self) -> str:
        """Equal for texts that count as the same."""
        return normalised(self.raw)

    @cached_property
    def words(self) -> list[str]:
        """Its words without punctuation; 1,000 and 1000 are one word."""
        return _WORD.findall(_plain(self.raw).casefold())

    @cached_property
    def marks(self) -> frozenset[str]:
        """Numbers and names (words with a capital inside a sentence), by which items differ."""
        plain = _plain(self.raw)
        found: set[str] = set()
        for match in _WORD.finditer(plain):
            word = match.group()
            if any(c.isdigit() for c in word) or (
                word[0].isupper() and _inside_sentence(plain, match.start())
            ):
                found.add(word.casefold())
        return frozenset(found - {"i"})

    @cached_property
    def pairs(self) -> frozenset[str]:
        """Its pairs of neighbouring words (the only word of a text of one)."""
        words = self.words
        if len(words) < 2:
            return frozenset(words)
        return frozenset(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))

    @cached_property
    def shingles(self) -> frozenset[str]:
        """Words and pairs."""
        return frozenset(self.words) | self.pairs


def nearly_same(one: Text, other: Text) -> bool:
    """Whether two texts differ in little, and not in a number or a name.

    Items made from a template differ just in those, and are items of their own.
    """
    shared = len(one.shingles & other.shingles)
    likeness = shared / max(1, len(one.shingles) + len(other.shingles) - shared)
    if likeness < NEAR:
        return False
    here, there = set(one.words), set(other.words)
    replaced = bool(here - there) and bool(there - here)
    if replaced and likeness < NEAR_REPLACED:
        return False
    return (here ^ there).isdisjoint(one.marks | other.marks)


def near_matches(searched: Sequence[Text], texts: Sequence[Text]) -> tuple[dict[int, int], bool]:
    """For each of ``texts`` that is nearly the same as one of ``searched``: {its index: that's}.

    Two sets with a Jaccard index of t share one of the rarest (1 − t)·n + 1 of their elements, so
    only texts that do are compared (the prefix filter of Chaudhuri et al. 2006): nothing is
    missed, and texts that merely share common words cost nothing.

    Returns:
        The matches, and whether all comparisons were made (False: there were too many).
    """
    frequency = Counter(s for text in (*searched, *texts) for s in text.shingles)

    def rarest(text: Text) -> list[str]:
        ordered = sorted(text.shingles, key=lambda s: (frequency[s], s))
        return ordered[: len(ordered) - math.ceil(NEAR * len(ordered)) + 1]

    index: defaultdict[str, list[int]] = defaultdict(list)
    for i, text in enumerate(searched):
        for shingle in rarest(text):
            index[shingle].append(i)
    matches: dict[int, int] = {}
    comparisons = 0
    for k, text in enumerate(texts):
        for i in dict.fromkeys(i for s in rarest(text) for i in index.get(s, ())):
            comparisons += 1
            if nearly_same(searched[i], text):
                matches[k] = i
                break
        if comparisons > _MOST_COMPARISONS:
            return matches, False
    return matches, True


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", text[:_MOST_CHARACTERS])
    return _THOUSANDS.sub("", _APOSTROPHE.sub("", text))


def _inside_sentence(text: str, start: int) -> bool:
    before = text[max(0, start - 50) : start]
    bare = before.rstrip()
    return bool(bare) and bare[-1] not in _SENTENCE_END and "\n" not in before[len(bare) :]
