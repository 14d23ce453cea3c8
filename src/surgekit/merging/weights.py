"""What a mergekit configuration comes to: how much of each model enters the merge.

The numbers are read off the tasks that mergekit plans for each tensor, with its own defaults,
filters and gradients; nothing here knows the default of any parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from surgekit.errors import InputError

if TYPE_CHECKING:
    from mergekit.common import ModelReference
    from mergekit.config import MergeConfiguration
    from mergekit.merge_methods import MergeMethod
    from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
    from mergekit.options import MergeOptions

# What each way of thinning out a task vector does to one tensor; mergekit's names.
_THINNING = {
    "magnitude": "in each tensor only the share `density` of its largest entries is kept",
    "random": "in each tensor each entry is kept with probability `density`",
    "magnitude_outliers": "in each tensor the share `gamma` of its largest entries is dropped, "
    "and of the rest the largest are kept up to the share `density`",
    "della_magprune": "in each tensor each entry is kept with probability `density` ± `epsilon`, "
    "a large one more often",
}
_RESCALED = "what is kept is scaled up to the tensor's L1 norm"
_VOTE = "entries against the weighted majority of signs are left out"
_NORMALIZED_VOTE = "`weight` holds where all models agree and is larger where some are left out"


def plan(config: MergeConfiguration, options: MergeOptions) -> list[ExecuteMergeMethodTask]:
    """The merge of each output tensor as mergekit would run it; reads no weights.

    mergekit rewrites the ``config`` it plans, so give it one that is not used again.
    """
    from mergekit.architecture import get_architecture_info
    from mergekit.io.tasks import LoaderCache, SaveTensor
    from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
    from mergekit.plan import MergePlanner

    LoaderCache().setup(options)
    first = config.base_model or config.referenced_models()[0]
    planner = MergePlanner(
        config,
        get_architecture_info(config, options),
        options,
        first.config(trust_remote_code=options.trust_remote_code),
    )
    return [
        save.tensor_task
        for save in planner.plan_to_disk("unused")
        if isinstance(save, SaveTensor) and isinstance(save.tensor_task, ExecuteMergeMethodTask)
    ]


def effective_weights(
    tasks: Iterable[ExecuteMergeMethodTask],
    method: MergeMethod,
    names: Mapping[ModelReference, str],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """The coefficient of each model's weights (linear) or task vector (task arithmetic and kin).

    Args:
        tasks: from ``plan``.
        method: mergekit's, as registered.
        names: what each model is called in the result.
        given: name → the parameters that the configuration gives that model.

    Returns:
        Per model one number; ``{"min", "max"}`` over the tensors where a filter or a gradient
        makes it vary; ``{"weight", "density", "note"}`` where the task vector is thinned out or
        put to the vote; ``{"note", "parameters"}`` where the method has no fixed coefficients.

    Raises:
        InputError: a density that is no share, or weights that cannot be normalised.
    """
    from mergekit.merge_methods import GeneralizedTaskArithmeticMerge

    tasks = list(tasks)
    if isinstance(method, GeneralizedTaskArithmeticMerge):
        thinning = method.sparsification_method
        weights = _ranges(_task_vector_weights(tasks, method.consensus_method is None), names)
        if thinning is None and method.consensus_method is None:
            return weights
        densities = _ranges(_densities(tasks, names), names)
        return {
            name: {"weight": weight, "density": densities[name], "note": _note(method, tasks)}
            for name, weight in weights.items()
        }
    if method.spec.name == "linear":
        return _ranges(_linear_weights(tasks), names)
    note = f"{method.spec.name} has no fixed weight per model"
    return {name: {"note": note, "parameters": values} for name, values in given.items()}


def _task_vector_weights(
    tasks: list[ExecuteMergeMethodTask], whole_tensors: bool
) -> Iterator[tuple[ModelReference, float]]:
    for task in tasks:
        shared = dict(task.parameters.items())
        weights = _values(task, "weight")
        total = sum(weights.values()) if shared["normalize"] else 1.0
        # mergekit divides by 1 instead of by a sum that vanishes.
        vanishes = abs(total) < 1e-8 if whole_tensors else total == 0
        for model, weight in weights.items():
            yield model, shared["lambda"] * weight / (1.0 if vanishes else total)


def _linear_weights(tasks: list[ExecuteMergeMethodTask]) -> Iterator[tuple[ModelReference, float]]:
    for task in tasks:
        weights = _values(task, "weight")
        total = sum(weights.values()) if dict(task.parameters.items())["normalize"] else 1.0
        if total == 0:
            raise InputError(
                f"the weights of {task.output_weight.name} add up to 0, and linear divides by "
                "their sum; change them or set parameters: {normalize: false}"
            )
        for model, weight in weights.items():
            yield model, weight / total


def _densities(
    tasks: list[ExecuteMergeMethodTask], names: Mapping[ModelReference, str]
) -> Iterator[tuple[ModelReference, float]]:
    for task in tasks:
        for model, density in _values(task, "density").items():
            if not 0 <= density <= 1:
                raise InputError(
                    f"density {density:g} of {names.get(model, model)} for "
                    f"{task.output_weight.name}: expected a share from 0 to 1"
                )
            yield model, density


def _values(task: ExecuteMergeMethodTask, parameter: str) -> dict[ModelReference, float]:
    """One parameter of one tensor's merge, for the models that have it (the base often has not)."""
    found = {model: dict(values.items()) for model, values in task.input_parameters.items()}
    return {m: float(found[m][parameter]) for m in task.model_order if parameter in found[m]}


def _ranges(
    values: Iterable[tuple[ModelReference, float]], names: Mapping[ModelReference, str]
) -> dict[str, Any]:
    """Per model its value, or its least and greatest where it varies from tensor to tensor."""
    seen: dict[str, tuple[float, float]] = {}
    for model, value in values:
        name = names.get(model, str(model))
        low, high = seen.get(name, (value, value))
        seen[name] = (min(low, value), max(high, value))
    return {
        name: low if low == high else {"min": low, "max": high}
        for name, (low, high) in seen.items()
    }


def _note(method: Any, tasks: list[ExecuteMergeMethodTask]) -> str:
    """In words, what happens to a task vector besides being weighted."""
    shared = [dict(task.parameters.items()) for task in tasks]
    thinning = method.sparsification_method
    parts = [_THINNING[thinning.value]] if thinning is not None else []
    if any(p["rescale"] for p in shared):
        parts.append(_RESCALED)
    if method.consensus_method is not None:
        parts.append(_VOTE)
        if any(p["normalize"] for p in shared):
            parts.append(_NORMALIZED_VOTE)
    return "; ".join(parts)
