"""Damage to files: bits flipped, bytes changed, put in, left out, doubled, cut off."""

from __future__ import annotations

from hypothesis import strategies as st

Damage = tuple[str, int, int, bytes]


def damages() -> st.SearchStrategy[list[Damage]]:
    """One to three changes: (kind, place, length, filling); places count modulo the length."""
    kind = st.sampled_from(["bit", "byte", "insert", "delete", "copy", "cut"])
    place, length = st.integers(0, 1 << 20), st.integers(1, 40)
    change = st.tuples(kind, place, length, st.binary(min_size=1, max_size=12))
    return st.lists(change, min_size=1, max_size=3)


def damaged(content: bytes, changes: list[Damage]) -> bytes:
    """The content after all changes."""
    data = bytearray(content)
    for kind, place, length, filling in changes:
        at = place % (len(data) + 1)
        if kind == "bit" and at < len(data):
            data[at] ^= 1 << length % 8
        elif kind == "byte" and at < len(data):
            data[at] = filling[0]
        elif kind == "insert":
            data[at:at] = filling
        elif kind == "delete":
            del data[at : at + length]
        elif kind == "copy":
            data[at:at] = data[at : at + length]
        elif kind == "cut":
            del data[at:]
    return bytes(data)
