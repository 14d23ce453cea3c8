"""What comes of a mergekit configuration, by the merge of each tensor that mergekit planned."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from surgekit.findings import Finding, Level
from surgekit.merging.ranges import range_of
from surgekit.merging.settings import parameter_blocks
from surgekit.parsing import nearest

if TYPE_CHECKING:
    from mergekit.common import ModelReference
    from mergekit.merge_methods import MergeMethod
    from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

_LARGE = 2.0
"""A coefficient from which on it looks like a percentage, or like a mistake."""
_CONDITION = ("value", "filter")
_WEIGHTS = ("weight", "scale")


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
    found += _together(tasks, method, names, config) + _nothing_left(tasks, method, names)
    bounds = {n: b for n, w in weights.items() if (b := _bounds(w)) is not None}
    if not bounds:
        shares, problems = _shares(tasks, method, names)
        bounds, found = shares, found + problems
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
        ignored = method.spec.contract.base.value == "ignored"
        based = not ignored and any(t.base_model is not None for t in tasks)
        what = "the base itself" if based else "nothing"
        lowered = " (lambda 0?)" if any(p.name == "lambda" for p in method.spec.parameters) else ""
        found.append(Finding("warning", f"all weights are 0{lowered}, so the merge is {what}"))
    return found + _normalised(tasks, method, names, bounds, config)


def _shares(
    tasks: list[ExecuteMergeMethodTask], method: MergeMethod, names: Mapping[ModelReference, str]
) -> tuple[dict[str, tuple[float, float]], list[Finding]]:
    """Least and greatest share of each model by methods that weight without being a weighted sum.

    Returns:
        By name; and what comes of weights that have no shares, for they add up to 0.
    """
    key = next((p.name for p in method.spec.input_parameters if p.name in _WEIGHTS), None)
    found: list[Finding] = []
    seen: dict[str, tuple[float, float]] = {}
    if key is None:
        return seen, found
    for task in tasks:
        given = {m: dict(v.items()) for m, v in task.input_parameters.items()}
        own = {names.get(m, str(m)): v[key] for m, v in given.items() if v.get(key) is not None}
        if key == "weight" and len(own) < 2:
            continue  # of one model nothing is weighted
        total = 1.0
        normalised = dict(task.parameters.items()).get("normalize_weights")
        if method.spec.name == "nuslerp" or normalised:
            total = sum(own.values())
        unpaired = method.spec.name == "multislerp" and len(own) > 2 and not any(own.values())
        if abs(total) < 1e-6 or unpaired:
            found = found or [_without_sum(task, method, normalised)]
            continue
        for name, value in own.items():
            low, high = seen.get(name, (math.inf, -math.inf))
            share = value / total
            seen[name] = (min(low, share), max(high, share))
    return seen, found


def _without_sum(task: ExecuteMergeMethodTask, method: MergeMethod, normalised: Any) -> Finding:
    said = f"the weights of {task.output_weight.name} add up to 0, and {method.spec.name} "
    if method.spec.name == "nuslerp":
        return Finding("warning", said + "then takes both models by half")
    why = "divides by their sum" if normalised else "finds no direction between the models"
    return Finding("error", f"{said}{why}; change them")


def _nothing_left(
    tasks: list[ExecuteMergeMethodTask], method: MergeMethod, names: Mapping[ModelReference, str]
) -> list[Finding]:
    """Parameters for all models that make the merge one of them."""
    found: list[Finding] = []
    for parameter in method.spec.shared_parameters:
        values = {dict(task.parameters.items()).get(parameter.name) for task in tasks}
        allowed = range_of(method.spec.name, parameter.name)
        if allowed is not None and allowed.nothing and values == {0}:
            found.append(Finding("warning", f"parameters.{parameter.name}: 0; {allowed.nothing}"))
        elif method.spec.name == "slerp" and parameter.name == "t" and values in ({0}, {1}):
            task = tasks[0]
            ends = [m for m in task.model_order if (m == task.base_model) is (values == {0})]
            whole = names.get(ends[0], str(ends[0])) if ends else "one model"
            said = f"parameters.t: {values.pop():g} throughout, so the merge is {whole} itself"
            found.append(Finding("warning", said))
    return found


def _together(
    tasks: list[ExecuteMergeMethodTask],
    method: MergeMethod,
    names: Mapping[ModelReference, str],
    config: Mapping[str, Any],
) -> list[Finding]:
    """Numbers that are each allowed and do not go together; once a model and kind."""
    told: dict[str, Finding] = {}
    given = {key for _, block, _ in parameter_blocks(config) for key in block}
    for task in tasks:
        for model, values in task.input_parameters.items():
            said = _contradiction(method.spec.name, dict(values.items()), given)
            if said is not None:
                name = names.get(model, str(model))
                told.setdefault(f"{said[0]} {name}", Finding(said[0], f"{name}: {said[1]}"))
    return list(told.values())


def _contradiction(
    method: str, own: Mapping[str, Any], given: set[str]
) -> tuple[Level, str] | None:
    """What is wrong with one model's parameters for one tensor; ``given`` are named somewhere."""
    density, epsilon, gamma = (own.get(key) for key in ("density", "epsilon", "gamma"))
    if density is None:
        return None
    # mergekit looks at the other number only where some entries are kept and some are not.
    thins = 0 < density < 1
    if epsilon is not None and thins and not 0 < density - epsilon <= density + epsilon < 1:
        default = "" if "epsilon" in given else " (the default)"
        return "error", (
            f"density {density:g} with epsilon {epsilon:g}{default}: expected density ± epsilon "
            f"between 0 and 1, for {method} keeps entries with that chance; give an epsilon below "
            f"{min(density, 1 - density):.4g}"
        )
    if gamma is None or "gamma" not in given:
        return None
    if thins and density + gamma > 1 + 1e-9:
        return "error", (
            f"density {density:g} with gamma {gamma:g}: expected at most 1 in sum; {method} drops "
            "a share gamma of the largest entries and keeps a share density of the rest"
        )
    if density >= 1 and gamma > 0:
        return "warning", (
            f"density 1 keeps every entry, so gamma {gamma:g} drops none; give a density below 1"
        )
    return None


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
