"""What a mergekit configuration says that mergekit passes over in silence, or takes literally.

mergekit ignores what it does not know, takes any number, and finds some mistakes only when half
the merge is written. Levels go by the result: what was plainly meant and would not happen is an
error; what has an honest use is a warning.
"""

from __future__ import annotations

import difflib
import importlib.resources
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from surgekit.findings import Finding, Level
from surgekit.merging.ranges import check_number
from surgekit.merging.slices import check_slices, entries_of
from surgekit.parsing import nearest

if TYPE_CHECKING:
    from mergekit.merge_methods import MergeMethod

DTYPES = ("float32", "bfloat16", "float16", "float64")
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_RANDOM = ("dare_", "della")
_AMOUNTS = ("weight", "lambda", "t", "density", "gamma", "select_topk", "epsilon", "eps", "tol")
_MODEL = ("model", "parameters")
_SOURCE = (*_MODEL, "layer_range")
_SLICE = ("sources", "base_model", "residual_weight", "parameters")
_MODULE = ("slices", "models", "parameters")
_TOKENIZER = ("source", "tokens", "pad_to_multiple_of")


def check_settings(config: Mapping[str, Any], method: MergeMethod) -> list[Finding]:
    """What can be told from the configuration alone, without any of its models.

    Args:
        config: as read, before anything is filled in.
        method: mergekit's, as registered.
    """
    found = [
        *_unknown_keys(config, method),
        *_parameters(config, method),
        *_dtypes(config),
        *_padding(config),
        *check_slices(config, method),
        *_template(config),
    ]
    if method.spec.name.startswith(_RANDOM):
        found.append(
            Finding(
                "note",
                f"{method.spec.name} draws random masks; the seed is part of the result "
                "(surgekit sets it, mergekit alone leaves it open)",
            )
        )
    return found


def check_input_dtypes(config: Mapping[str, Any], dtypes: Mapping[str, str]) -> list[Finding]:
    """What the dtype of the computation does, given those of the models.

    Args:
        config: the configuration.
        dtypes: model → ``BF16``, ``F16``, ``F32``: of most of its weights.
    """
    halves = {n: d for n, d in dtypes.items() if d in ("BF16", "F16")}
    advice = "write dtype: float32 and out_dtype: bfloat16 to round once, at the end"
    if config.get("dtype") in ("bfloat16", "float16"):
        return [
            Finding(
                "warning",
                f"dtype: {config['dtype']} computes the merge in that precision, which moves many "
                f"weights by a rounding step; {advice}",
            )
        ]
    if config.get("dtype") is not None or not halves:
        return []
    if len(set(dtypes.values())) == 1:
        return [
            Finding(
                "warning",
                f"no dtype is given, so the merge is computed in the models' own "
                f"({next(iter(halves.values()))}), which moves many weights by a rounding step; "
                f"{advice}",
            )
        ]
    # Each weight is computed, and written, in the least dtype that holds all that enter it.
    if config.get("out_dtype") is not None or config.get("merge_method") == "passthrough":
        return []
    widest = "float64" if "F64" in dtypes.values() else "float32"
    shown = ", ".join(f"{n} {d}" for n, d in dtypes.items())
    return [
        Finding(
            "warning",
            f"no dtype is given and the models' differ ({shown}), so what is written is {widest}, "
            f"larger than {', '.join(halves)}; {advice}",
        )
    ]


# --- keys ---------------------------------------------------------------------------------------


def _unknown_keys(config: Mapping[str, Any], method: MergeMethod) -> Iterator[Finding]:
    from mergekit.config import MergeConfiguration

    parameters = _all_parameters()
    for where, holder, known in _holders(config, tuple(MergeConfiguration.model_fields)):
        for key in holder:
            if key in known:
                continue
            place = f"{where}{key}"
            if key in parameters:
                shared = {p.name for p in method.spec.shared_parameters}
                home = "parameters" if not where or key in shared else f"{where}parameters"
                yield Finding(
                    "error", f"{place}: mergekit does not read it here; put it under {home}"
                )
            elif near := _near(key, [*known, *parameters]):
                yield Finding(
                    "error",
                    f"{place}: no key of a mergekit configuration; did you mean {near!r}?",
                )
            else:
                yield Finding(
                    "warning", f"{place}: no key of a mergekit configuration; it is ignored"
                )


def _holders(
    config: Mapping[str, Any], top: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, Any], tuple[str, ...]]]:
    """(where it stands, a mapping, the keys that mergekit reads of it)."""
    yield "", config, top
    whole, *modules = _sections(config)
    for where, module in modules:
        yield where, module, _MODULE
    for where, section in (whole, *modules):
        for place, entry, known in _entries(where, section):
            yield place, entry, known
    tokenizer = config.get("tokenizer")
    if isinstance(tokenizer, Mapping):
        yield "tokenizer.", tokenizer, _TOKENIZER
        tokens = tokenizer.get("tokens")
        for token, entry in tokens.items() if isinstance(tokens, Mapping) else ():
            if isinstance(entry, Mapping):
                yield f"tokenizer.tokens.{token}.", entry, ("source", "force")


def _all_parameters() -> set[str]:
    from mergekit.merge_methods import registered_methods

    return {p.name for m in registered_methods() for p in m.spec.parameters}


# --- parameters ---------------------------------------------------------------------------------


def _parameters(config: Mapping[str, Any], method: MergeMethod) -> Iterator[Finding]:
    shared = {p.name: p for p in method.spec.shared_parameters}
    by_model = {p.name: p for p in method.spec.input_parameters}
    known = {*shared, *by_model}
    base = config.get("base_model")
    for where, parameters, model in parameter_blocks(config):
        of_base = model is not None and model == base
        if of_base and parameters and by_model and method.spec.contract.base.value == "required":
            yield Finding(
                "warning",
                f"{where}: of the base, and mergekit does not read them; its task vector is 0",
            )
        for key, value in parameters.items():
            place = f"{where}.{key}"
            if key not in known:
                yield _unknown_parameter(place, key, known, method)
            elif model is not None and key in shared:
                effective = (config.get("parameters") or {}).get(key, shared[key].default)
                level: Level = "note" if value == effective else "error"
                yield Finding(
                    level,
                    f"{place}: {method.spec.name} reads it for all models; put it under parameters",
                )
            else:
                yield from _values(place, method.spec.name, key, value)
                # The family of task arithmetic shares its parameters; not all thin vectors out.
                whole = getattr(method, "sparsification_method", ...) is None
                if whole and key == "density" and _number(value) != 1:
                    yield Finding(
                        "warning",
                        f"{place}: {method.spec.name} keeps every entry, so it changes nothing; "
                        "ties and dare_linear are methods that thin out",
                    )


def _unknown_parameter(place: str, key: str, known: set[str], method: MergeMethod) -> Finding:
    has = ", ".join(sorted(known)) or "none"
    if key in _all_parameters():
        return Finding(
            "warning",
            f"{place}: {method.spec.name} has no such parameter, so it changes nothing "
            f"(it has {has})",
        )
    near = _near(key, known)
    if near is not None:
        return Finding(
            "error", f"{place}: {method.spec.name} has no such parameter; did you mean {near!r}?"
        )
    return Finding(
        "warning",
        f"{place}: {method.spec.name} has no such parameter (it has {has}); it is ignored",
    )


def _near(word: object, known: Iterable[str]) -> str | None:
    """What a word is nearly, so that nothing else can have been meant by it."""
    found = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.72)
    return found[0] if found else None


def _values(place: str, method: str, key: str, value: Any) -> Iterator[Finding]:
    for where, part in _conditions(place, value):
        if isinstance(part, list) and not part:
            yield Finding(
                "error", f"{where}: an empty list, which mergekit takes for nothing at all"
            )
        for number in part if isinstance(part, list) else [part]:
            amount = _number(number)
            if isinstance(number, bool) and key in _AMOUNTS:
                yield Finding("error", f"{where}: expected a number, found {str(number).lower()}")
            elif amount is not None and not math.isfinite(amount):
                yield Finding("error", f"{where}: expected a finite number, found {number}")
            elif amount is not None:
                yield from check_number(where, method, key, amount, number)


def _conditions(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(where, value) of a setting: itself, or each of its values by filter."""
    listed = value if isinstance(value, list) else [value]
    if not any(isinstance(v, Mapping) for v in listed):
        yield place, value
        return
    for i, entry in enumerate(listed):
        if isinstance(entry, Mapping):
            yield f"{place}[{i}]", entry.get("value")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def parameter_blocks(
    config: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Each ``parameters`` block: where it stands, what it holds, whose it is (None: of all)."""
    for where, section in _sections(config):
        found: list[tuple[str, Any, Any]] = [(where, section, None)]
        for place, entry, known in _entries(where, section):
            found.append((place, entry, entry.get("model") if "model" in known else None))
        for place, holder, model in found:
            parameters = holder.get("parameters")
            if isinstance(parameters, Mapping):
                yield f"{place}parameters", dict(parameters), model


def _sections(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(where it stands, what may list models or slices): the whole first, then its modules."""
    modules = config.get("modules")
    named = modules.items() if isinstance(modules, Mapping) else ()
    return [("", config), *((f"modules.{k}.", v) for k, v in named if isinstance(v, Mapping))]


def _entries(
    where: str, section: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], tuple[str, ...]]]:
    """(place, entry, the keys that mergekit reads of it) of what a section lists."""
    for i, entry in entries_of(section.get("models")):
        yield f"{where}models[{i}].", entry, _MODEL
    for i, piece in entries_of(section.get("slices")):
        yield f"{where}slices[{i}].", piece, _SLICE
        for j, source in entries_of(piece.get("sources")):
            yield f"{where}slices[{i}].sources[{j}].", source, _SOURCE


# --- dtype, template --------------------------------------------------------------------


def _dtypes(config: Mapping[str, Any]) -> Iterator[Finding]:
    for key in ("dtype", "out_dtype"):
        value = config.get(key)
        if value is None or str(value).removeprefix("torch.") in DTYPES:
            continue
        meant = _SHORT.get(str(value).lower()) or _near(str(value).lower(), DTYPES)
        near = f"; did you mean {meant!r}?" if meant else ""
        yield Finding(
            "error",
            f"{key}: expected one of {', '.join(DTYPES)}, found {value!r}{near}",
        )


def _padding(config: Mapping[str, Any]) -> Iterator[Finding]:
    tokenizer = config.get("tokenizer")
    value = tokenizer.get("pad_to_multiple_of") if isinstance(tokenizer, Mapping) else None
    amount = _number(value)
    if value is not None and (amount is None or amount < 1 or amount % 1):
        said = f"expected a whole number from 1 on, found {value!r}"
        yield Finding("error", f"tokenizer.pad_to_multiple_of: {said}")


def _template(config: Mapping[str, Any]) -> Iterator[Finding]:
    """A template that mergekit would only log, or refuse when the weights are written."""
    template = config.get("chat_template")
    if not isinstance(template, str) or template in ("", "auto"):
        return
    from mergekit._data import chat_templates

    known = sorted(
        f.name.removesuffix(".jinja")
        for f in importlib.resources.files(chat_templates).iterdir()
        if f.name.endswith(".jinja")
    )
    if template in known:
        return
    if "{" not in template or len(template) < 20:
        yield Finding(
            "error",
            f"chat_template: expected 'auto', a jinja text, or one of {', '.join(known)}; found "
            f"{template!r}{nearest(template, known)}",
        )
        return
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateError as error:
        if "Encountered unknown tag" not in str(error):  # transformers adds tags of its own
            yield Finding("error", f"chat_template: does not parse as jinja ({error})")
