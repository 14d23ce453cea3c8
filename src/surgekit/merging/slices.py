"""Slices of a mergekit configuration: which layers are taken, and whether there are such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from surgekit.findings import Finding

if TYPE_CHECKING:
    from mergekit.merge_methods import MergeMethod


def check_slices(config: Mapping[str, Any], method: MergeMethod) -> Iterator[Finding]:
    """What no model needs to be known for: ranges that are none, gaps and overlaps."""
    pieces = [piece for _, piece in entries_of(config.get("slices"))]
    for i, piece in enumerate(pieces):
        for j, source in entries_of(piece.get("sources")):
            layers = _range(source)
            if layers is not None and not 0 <= layers[0] < layers[1]:
                yield Finding(
                    "error",
                    f"slices[{i}].sources[{j}].layer_range: expected [first, last + 1] of at least "
                    f"one layer, found {list(layers)}",
                )
    if method.spec.name == "passthrough":
        return  # taking layers twice, or none of them, is what it is for
    ranges = [_range(s) for piece in pieces for _, s in _first_source(piece)]
    ranges = [r for r in ranges if r is not None]
    for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False):
        if start != end:
            what = "leave layers out" if start > end else "take layers twice"
            yield Finding(
                "warning",
                f"slices {what}: one ends before layer {end}, the next begins with {start}; the "
                "merged model has another depth than its experts",
            )


def check_slice_bounds(
    config: Mapping[str, Any], depths: Mapping[str, Any], names: Mapping[str, str]
) -> list[Finding]:
    """Slices against the number of layers of the models they name.

    Args:
        config: with models resolved to folders.
        depths: folder → number of layers.
        names: folder → what the user calls that model.
    """
    found: list[Finding] = []
    pieces = entries_of(config.get("slices"))
    for i, piece in pieces:
        for j, source in entries_of(piece.get("sources")):
            layers, depth = _range(source), depths.get(str(source.get("model")))
            if layers is not None and isinstance(depth, int) and layers[1] > depth:
                found.append(
                    Finding(
                        "error",
                        f"slices[{i}].sources[{j}].layer_range: {list(layers)} of a model of "
                        f"{depth} layers",
                    )
                )
    ends = [(_range(s), str(s.get("model"))) for _, p in pieces for _, s in _first_source(p)]
    first, last = (ends[0], ends[-1]) if ends else ((None, ""), (None, ""))
    if config.get("merge_method") == "passthrough" or first[0] is None or last[0] is None:
        return found
    so = "the merged model has another depth than its experts"
    if first[0][0] > 0:
        found.append(Finding("warning", f"slices begin with layer {first[0][0]}; {so}"))
    depth = depths.get(last[1])
    if isinstance(depth, int) and last[0][1] < depth:
        found.append(
            Finding(
                "warning",
                f"slices end before layer {last[0][1]} of the {depth} of {names.get(last[1])}; "
                f"{so}",
            )
        )
    return found


def entries_of(value: Any) -> list[tuple[int, Mapping[str, Any]]]:
    """The mappings in a list with their places; what is none is mergekit's to refuse."""
    listed = value if isinstance(value, list) else []
    return [(i, v) for i, v in enumerate(listed) if isinstance(v, Mapping)]


def _first_source(piece: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """The source of a slice that says how deep it is; all others must agree with it."""
    return entries_of(piece.get("sources"))[:1]


def _range(source: Mapping[str, Any]) -> tuple[int, int] | None:
    value = source.get("layer_range")
    if isinstance(value, (list, tuple)) and len(value) == 2:
        first, last = value
        if isinstance(first, int) and isinstance(last, int):
            return first, last
    return None
