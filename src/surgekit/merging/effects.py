"""What comes of a mergekit configuration, by the merge of each tensor that mergekit planned."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from surgekit.findings import Finding
from surgekit.merging.settings import parameter_blocks
from surgekit.parsing import nearest

if TYPE_CHECKING:
    from mergekit.common import ModelReference
    from mergekit.merge_methods import MergeMethod
    from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

_LARGE = 2.0
"""A coefficient from which on it looks like a percentage, or like a mistake."""
_CONDITION = ("value", "filter")


def check_effects(
    tasks: Iterable[ExecuteMergeMethodTask],
    method: MergeMethod,
    names: Mapping[ModelReference, str],
    weights: Mapping[str, Any],
    config: Mapping[str, Any],
) -> list[Finding]:
    """What comes of the configuration, by the merge of each tensor that mergekit planned.

    Args:
        tasks: from ``weights.plan``.
        method: mergekit's, as registered.
        names: what each model is called.
        weights: from ``weights.effective_weights``.
        config: as read.
    """
    tasks = list(tasks)
    found = _filters(config, tasks)
    bounds = {n: b for n, w in weights.items() if (b := _bounds(w)) is not None}
    for name, (low, high) in bounds.items():
        if low == high == 0:
            found.append(Finding("warning", f"{name}: its weight is 0, so it has no part in it"))
        elif low < 0:
            found.append(
                Finding("note", f"{name}: its weight is {low:g}; what it learnt is taken away")
            )
        if max(abs(low), abs(high)) > _LARGE:
            found.append(
                Finding(
                    "warning",
                    f"{name}: enters {max(abs(low), abs(high)):g}-fold; is the weight a percentage?"
                    " Weights beyond 1 exaggerate what a model learnt",
                )
            )
    for name, given in weights.items():
        density = given.get("density") if isinstance(given, dict) else None
        if density is not None and _bounds(density) == (0.0, 0.0):
            found.append(
                Finding("warning", f"{name}: density 0 keeps nothing of it, so it has no part")
            )
    if bounds and all(b == (0.0, 0.0) for b in bounds.values()):
        found = [f for f in found if "has no part in it" not in f.message]
        what = "the base itself" if method.spec.name != "linear" else "nothing"
        found.append(Finding("warning", f"all weights are 0 (lambda 0?), so the merge is {what}"))
    return found + _normalised(tasks, method, names, bounds, config)


def _filters(config: Mapping[str, Any], tasks: list[ExecuteMergeMethodTask]) -> list[Finding]:
    """Filters that fit no weight: their value is used nowhere."""
    weights = [task.output_weight.name for task in tasks]
    inputs = weights + [info.name for task in tasks for info in _gathered(task).values()]
    found: list[Finding] = []
    for where, parameters, _ in parameter_blocks(config):
        for key, value in parameters.items():
            entries = value if isinstance(value, list) else [value]
            for i, entry in enumerate(entries):
                if not isinstance(entry, Mapping):
                    continue
                for strange in entry.keys() - set(_CONDITION):
                    found.append(
                        Finding(
                            "error",
                            f"{where}.{key}[{i}].{strange}: expected value and filter"
                            f"{nearest(strange, _CONDITION)}",
                        )
                    )
                wanted = entry.get("filter")
                if wanted in (None, "*") or any(str(wanted) in name for name in inputs):
                    continue
                parts = sorted({p for n in weights for p in n.split(".") if not p.isdigit()})
                found.append(
                    Finding(
                        "error"
                        if difflib.get_close_matches(str(wanted), parts, n=1)
                        else "warning",
                        f"{where}.{key}[{i}].filter: no weight has {wanted!r} in its name, so the "
                        f"value is used nowhere{nearest(wanted, parts)}",
                    )
                )
    return found


def _gathered(task: ExecuteMergeMethodTask) -> dict[Any, Any]:
    gather = task.gather_tensors
    inner = getattr(gather, "gather_tensors", gather)
    info = getattr(inner, "weight_info", None)
    return dict(info.items()) if info is not None else {}


def _bounds(weight: Any) -> tuple[float, float] | None:
    if isinstance(weight, (int, float)):
        return float(weight), float(weight)
    if isinstance(weight, dict) and set(weight) == {"min", "max"}:
        return float(weight["min"]), float(weight["max"])
    return _bounds(weight["weight"]) if isinstance(weight, dict) and "weight" in weight else None


def _normalised(
    tasks: list[ExecuteMergeMethodTask],
    method: MergeMethod,
    names: Mapping[ModelReference, str],
    bounds: Mapping[str, tuple[float, float]],
    config: Mapping[str, Any],
) -> list[Finding]:
    """Weights that do not come out as they were written, or should have been divided."""
    if not tasks or not bounds:
        return []
    task = tasks[0]
    shared = dict(task.parameters.items())
    raw = {
        names.get(model, str(model)): float(values["weight"])
        for model, given in task.input_parameters.items()
        if "weight" in (values := dict(given.items()))
    }
    total = sum(raw.values())
    effective = ", ".join(f"{n} {b[0]:.4g}" for n, b in bounds.items() if b[0] == b[1])
    if not shared.get("normalize"):
        if method.spec.name == "linear" and not math.isclose(total, 1, rel_tol=1e-3):
            return [
                Finding(
                    "warning",
                    f"the weights add up to {total:g} and normalize is false, so the merged "
                    f"weights are {total:g} times an average",
                )
            ]
        return []
    top = config.get("parameters") or {}
    uniform = "weight" in top and not any(
        "weight" in block for _, block, model in parameter_blocks(config) if model is not None
    )
    if uniform and effective and not math.isclose(total, 1, rel_tol=1e-3):
        if all(math.isclose(v, 1) for v in raw.values()):
            return []  # the usual way to say: all alike
        return [
            Finding(
                "warning",
                f"parameters.weight: the same for all and divided by the sum, so it does nothing "
                f"(normalize is true for {method.spec.name}"
                f"{'' if 'normalize' in top else ' by default'}); the models enter as {effective}",
            )
        ]
    said_so = "normalize" in top
    if not said_so and method.spec.name != "linear" and not math.isclose(total, 1, rel_tol=1e-3):
        return [
            Finding(
                "note",
                f"{method.spec.name} divides the weights by their sum, {total:g} (normalize is "
                f"true by default); the models enter as {effective or 'weights that vary'}",
            )
        ]
    return []
