"""Items of public benchmarks among a recipe's prompts, found by hashes of their words.

The package carries no benchmark, only a sketch of each item: a hash of the whole text, the least
hashes of its word pairs (a bottom-k MinHash), and short hashes of its names and numbers. No text
can be had back from them. ``tools/benchmark_sketches.py`` makes the file.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from surgekit.errors import InputError
from surgekit.pipeline.preflight.text import Text

Hashes = TypeVar("Hashes", NDArray[np.uint32], NDArray[np.uint16])

SKETCHES = Path(__file__).with_name("benchmarks.npz")
SKETCH_SIZE = 16
"""Hashes kept of an item's word pairs."""
MOST_MARKS = 6
"""Hashes kept of its names and numbers."""
CONTAINED = 0.7
"""Share of an item's sketch that a prompt must hold to hold the item."""
CONTAINED_SHORT = 0.8
"""The same for items of fewer pairs than a sketch has room for, which one word tells apart."""
FEWEST = 6
"""Items of fewer word pairs are found by their whole text alone."""


@dataclass(frozen=True)
class Sketches:
    """Sketches of the items of some benchmarks.

    Attributes:
        titles: of the benchmarks.
        owners: (n,) index into ``titles`` of each item.
        whole: (n,) uint64, hash of the normalised text.
        pairs: the least hashes of each item's word pairs.
        marks: hashes of each item's names and numbers.
    """

    titles: tuple[str, ...]
    owners: NDArray[np.uint8]
    whole: NDArray[np.uint64]
    pairs: Sequence[NDArray[np.uint32]]
    marks: Sequence[NDArray[np.uint16]]

    @cached_property
    def _by_whole(self) -> dict[int, int]:
        return {int(h): i for i, h in enumerate(self.whole)}

    @cached_property
    def _by_pair(self) -> dict[int, list[int]]:
        index: defaultdict[int, list[int]] = defaultdict(list)
        for i, hashes in enumerate(self.pairs):
            if len(hashes) >= FEWEST:
                for h in hashes.tolist():
                    index[h].append(i)
        return dict(index)

    def find(self, text: Text) -> set[str]:
        """Titles of the benchmarks of which ``text`` is, or holds, an item."""
        found = {i for i in [self._by_whole.get(_hash(text.same, 8))] if i is not None}
        hits = Counter(
            i for h in {_hash(p, 4) for p in text.pairs} for i in self._by_pair.get(h, ())
        )
        near = [i for i, n in hits.items() if n >= _wanted(len(self.pairs[i]))]
        if near:
            words = {_hash(w, 2) for w in text.words}
            found |= {i for i in near if words.issuperset(self.marks[i].tolist())}
        return {self.titles[self.owners[i]] for i in found}


def make_sketches(benchmarks: Mapping[str, Sequence[str]]) -> Sketches:
    """Sketch the items of each benchmark: {title: texts}."""
    texts = [Text(item) for items in benchmarks.values() for item in items]
    owners = [k for k, items in enumerate(benchmarks.values()) for _ in items]
    return Sketches(
        tuple(benchmarks),
        np.asarray(owners, dtype=np.uint8),
        np.asarray([_hash(t.same, 8) for t in texts], dtype=np.uint64),
        [_least(t.pairs, 4, SKETCH_SIZE, np.uint32) for t in texts],
        [_least(t.marks, 2, MOST_MARKS, np.uint16) for t in texts],
    )


def save_sketches(sketches: Sketches, path: Path) -> None:
    """Write sketches as a compressed ``.npz`` of plain arrays."""
    np.savez_compressed(
        path,
        titles=np.asarray(sketches.titles),
        owners=sketches.owners,
        whole=sketches.whole,
        pairs=np.concatenate(sketches.pairs),
        pair_counts=np.asarray([len(p) for p in sketches.pairs], dtype=np.uint8),
        marks=np.concatenate(sketches.marks),
        mark_counts=np.asarray([len(m) for m in sketches.marks], dtype=np.uint8),
    )


def load_sketches(path: Path = SKETCHES) -> Sketches:
    """Read sketches back; raises InputError where the file is missing or no such file."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            return Sketches(
                tuple(str(t) for t in file["titles"]),
                file["owners"],
                file["whole"],
                _split(file["pairs"], file["pair_counts"]),
                _split(file["marks"], file["mark_counts"]),
            )
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:
        raise InputError(f"{path}: expected sketches of benchmarks ({error})") from error


def _wanted(pairs: int) -> float:
    return (CONTAINED if pairs == SKETCH_SIZE else CONTAINED_SHORT) * pairs


def _split(values: Hashes, counts: NDArray[np.uint8]) -> list[Hashes]:
    ends = np.cumsum(counts.astype(np.int64)).tolist()
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _least(
    parts: frozenset[str], width: int, count: int, kind: type[np.unsignedinteger]
) -> NDArray[np.unsignedinteger]:
    return np.asarray(sorted({_hash(p, width) for p in parts})[:count], dtype=kind)


def _hash(text: str, width: int) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=width)
    return int.from_bytes(digest.digest(), "big")
