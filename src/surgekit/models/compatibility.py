"""Whether models belong together: an expert and its base, a merged model and its experts.

Levels go by what happens to the result. What a merge would die of, or silently turn into another
thing than was asked for, is an error; what has honest uses is a warning that names its
consequence; what only should be known is a note.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from surgekit.findings import Finding, Level
from surgekit.models.checkpoint import Checkpoint, TensorInfo, expected_tensors
from surgekit.models.values import Distance
from surgekit.models.vocabulary import Vocabulary

FAR = 0.9
"""Relative distance from which on a model is no fine-tune of the base: models that share nothing
stand at √(1 + s²) ≥ 1 (s: the ratio of their norms), fine-tunes far below."""

_ROWS = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|embed_in|word_embeddings|lm_head|embed_out)\.weight"
)
# Buffers that old checkpoints carry along, and that follow from the configuration.
_BUFFERS = re.compile(r"rotary_emb\.inv_freq$|\.masked_bias$|\.attn\.bias$|\.attention\.bias$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight$")

_KEPT = "the merged model keeps the base's, and this model's weights were trained with its own"
# What sets the shape of a model or what its weights mean: (keys, what happens otherwise).
_FORM: tuple[tuple[tuple[str, ...], str], ...] = (
    (("hidden_size", "n_embd"), "their weights cannot be averaged"),
    (("num_hidden_layers", "n_layer"), "their layers do not stand for each other"),
    (("intermediate_size", "n_inner", "ffn_dim"), "their weights cannot be averaged"),
    (
        ("num_attention_heads", "n_head"),
        "the same rows of their weights belong to different heads",
    ),
    (("num_key_value_heads",), "the same rows of their weights belong to different heads"),
    (("head_dim",), "the same rows of their weights belong to different heads"),
    (("num_local_experts", "num_experts"), "their weights cannot be averaged"),
    (
        ("hidden_act", "hidden_activation", "activation_function"),
        f"{_KEPT}, so it computes another function",
    ),
)
_FUNCTION = (
    "rope_parameters",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "sliding_window",
    "partial_rotary_factor",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_bias",
    "mlp_bias",
)
_LENGTH = ("max_position_embeddings", "n_positions")


def check_model(model: Checkpoint, vocabulary: Vocabulary | None = None) -> list[Finding]:
    """What is wrong with one model by itself: weights against configuration and tokenizer."""
    found = [Finding("warning", f"{model.name}: {line}") for line in model.remarks]
    found += [Finding("unverified", f"{model.name}: {line}") for line in model.unverified]
    found += _weights_and_config(model)
    rows = embedding_rows(model)
    if rows is not None and vocabulary is not None:
        beyond = sorted((i, t) for t, i in vocabulary.ids.items() if i >= rows)
        if beyond:
            token, only_pad = beyond[0][1], [t for _, t in beyond] == [vocabulary.pad]
            found.append(
                Finding(
                    "warning" if only_pad else "error",
                    f"{model.name}: token {token!r} has id {beyond[0][0]}, and the embedding has "
                    f"{rows} rows"
                    + (
                        "; it only pads, which attention hides"
                        if only_pad
                        else f" ({len(beyond)} tokens are beyond it); resize the model's "
                        "embeddings, or take the tokenizer that belongs to it"
                    ),
                )
            )
    if rows is not None:
        for key in ("bos", "eos", "pad"):
            ids = _ids(model.config.get(f"{key}_token_id"))
            if any(i >= rows for i in ids):
                found.append(
                    Finding(
                        "warning",
                        f"{model.name}: {key}_token_id {max(ids)} of config.json is beyond the "
                        f"embedding's {rows} rows",
                    )
                )
    return found


def embedding_rows(model: Checkpoint) -> int | None:
    """Rows of the input embedding; by the configuration where no weight of that name is known."""
    for name, info in model.tensors.items():
        if _ROWS.search(name) and not _HEAD.search(name) and len(info.shape) == 2:
            return info.shape[0]
    size = model.config.get("vocab_size")
    return size if isinstance(size, int) else None


def compare_models(
    base: Checkpoint,
    other: Checkpoint,
    *,
    averaged: bool = True,
    sliced: bool = False,
    aligned: bool = False,
) -> list[Finding]:
    """How another model differs from its base, and what comes of it.

    Args:
        base: what gives the merged model its configuration.
        other: an expert.
        averaged: their weights are merged; else they are only compared by their states.
        sliced: the merge takes layers by name, so their number may differ.
        aligned: the merge brings vocabularies into line (``tokenizer:`` in the configuration).
    """
    severe: Level = "error" if averaged else "warning"
    one, two = _settled(base.config), _settled(other.config)
    kind = _differing(one, two, ("model_type",)) or _architecture(base, other)
    if kind is not None:
        return [_finding(severe, other, base, kind, "experts of one base are needed")]
    found: list[Finding] = []
    for keys, consequence in _FORM:
        if sliced and keys[0] == "num_hidden_layers":
            continue
        difference = _differing(one, two, keys)
        if difference is not None:
            found.append(_finding(severe, other, base, difference, consequence))
    shaped = bool(found)
    for key in _FUNCTION:
        difference = _differing(one, two, (key,))
        if difference is not None:
            found.append(_finding("warning", other, base, difference, _KEPT))
    difference = _differing(one, two, _LENGTH)
    if difference is not None:
        found.append(_finding("note", other, base, difference, "the merged model keeps the base's"))
    if averaged:
        found += _tied(base, other)
        found += _quantised(base, other)
        if not shaped and base.tensors and other.tensors:
            found += _compare_tensors(base, other, sliced=sliced, aligned=aligned)
    return found


def check_distance(name: str, base: str, distance: Distance | None) -> list[Finding]:
    """Whether a model is so far from its base that it is no expert of it, or not moved at all."""
    if distance is None or distance.relative < FAR:
        return []
    return [
        Finding(
            "warning",
            f"{name}: is it an expert of {base}? Its weights stand {distance.relative:.2f} times "
            f"the base's norm away ({distance.tensors} matrices sampled); two models that share "
            "nothing stand at 1 or more, fine-tunes far below",
        )
    ]


def _weights_and_config(model: Checkpoint) -> list[Finding]:
    if not model.tensors or any(i.dtype == "GGUF" for i in model.tensors.values()):
        return []
    expected = expected_tensors(model.config)
    if expected is None:
        reason = next(
            (
                why
                for key, why in (
                    ("auto_map", "its code comes with it"),
                    ("quantization_config", "it is quantised"),
                )
                if model.config.get(key)
            ),
            "transformers knows no such model, or renames its weights while it loads them",
        )
        return [Finding("unverified", f"{model.name}: weights against config.json ({reason})")]
    have = model.tensors
    known = {name for names in expected for name in names}
    missing = [names[0] for names in expected if not any(n in have for n in names)]
    found: list[Finding] = []
    if missing and any(n not in known and not _BUFFERS.search(n) for n in have):
        # What looks missing may be there by another name, which loading knows how to read.
        return [Finding("unverified", f"{model.name}: weights against config.json (other names)")]
    if missing:
        found.append(
            Finding(
                "error",
                f"{model.name}: {len(missing)} weights that config.json asks for are not in the "
                f"files, e.g. {missing[0]}; fetch the checkpoint again",
            )
        )
    wrong = [
        (n, shape)
        for names, shape in expected.items()
        for n in names
        if n in have and have[n].shape != shape
    ]
    if wrong:
        name, shape = wrong[0]
        found.append(
            Finding(
                "error",
                f"{model.name}: {name} should be {shape} by its config.json, found "
                f"{have[name].shape}; weights and configuration do not belong together",
            )
        )
    return found


def _settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the defaults of its kind filled in, and in the form of today."""
    if config.get("auto_map"):
        return dict(config)
    from transformers import AutoConfig

    settings = {k: v for k, v in config.items() if k != "quantization_config"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {**AutoConfig.for_model(**settings).to_dict()}
    except Exception:  # noqa: BLE001 - what is wrong with a configuration is said elsewhere
        return dict(config)


def _differing(
    one: Mapping[str, Any], two: Mapping[str, Any], keys: Iterable[str]
) -> tuple[str, Any, Any] | None:
    """(key, its values) of the first key that both have and that differs."""
    for key in keys:
        a, b = one.get(key), two.get(key)
        if a is None or b is None:
            if a is not b and key in ("sliding_window", "rope_parameters"):
                return key, a, b
            continue
        if not _alike(a, b):
            if isinstance(a, dict) and isinstance(b, dict):
                for part in sorted({*a, *b}):
                    if not _alike(a.get(part), b.get(part)):
                        return f"{part}", a.get(part), b.get(part)
            return key, a, b
    return None


def _alike(a: Any, b: Any) -> bool:
    number = (int, float)
    if isinstance(a, number) and isinstance(b, number):
        return abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return all(_alike(a.get(k), b.get(k)) for k in {*a, *b})
    return a == b


def _architecture(base: Checkpoint, other: Checkpoint) -> tuple[str, Any, Any] | None:
    a, b = base.config.get("architectures"), other.config.get("architectures")
    if not a or not b or list(a) == list(b):
        return None
    return "architecture", ", ".join(map(str, a)), ", ".join(map(str, b))


def _finding(
    level: Level, other: Checkpoint, base: Checkpoint, found: tuple[str, Any, Any], so: str
) -> Finding:
    key, mine, theirs = found
    return Finding(level, f"{other.name}: {key} is {theirs}, that of {base.name} is {mine}; {so}")


def _tied(base: Checkpoint, other: Checkpoint) -> list[Finding]:
    tied = {m.name: bool(_settled(m.config).get("tie_word_embeddings")) for m in (base, other)}
    if tied[base.name] == tied[other.name]:
        return []
    if tied[base.name]:
        own = any(_HEAD.search(n) for n in other.tensors)
        said = "it has a head of its own, which the merged model, tied as the base, drops"
        return [Finding("warning", f"{other.name}: {said}")] if own else []
    return [
        Finding(
            "warning",
            f"{other.name}: its head is its embedding (tie_word_embeddings), {base.name} has one "
            "of its own; the merge averages that embedding into the head",
        )
    ]


def _quantised(base: Checkpoint, other: Checkpoint) -> list[Finding]:
    return [
        Finding(
            "error",
            f"{model.name}: its weights are quantised, and mergekit would mix the packed numbers; "
            "give the model as it was before, in bfloat16 or the like",
        )
        for model in (base, other)
        if model.config.get("quantization_config")
    ]


def _compare_tensors(
    base: Checkpoint, other: Checkpoint, *, sliced: bool, aligned: bool
) -> list[Finding]:
    found: list[Finding] = []
    mine, theirs = _own(base.tensors), _own(other.tensors)
    missing = [n for n in mine if n not in theirs]
    if missing and not sliced:
        found.append(
            Finding(
                "error",
                f"{other.name}: {len(missing)} weights of {base.name} are not in it, e.g. "
                f"{missing[0]}; it is incomplete, or of another base",
            )
        )
    surplus = [n for n in theirs if n not in mine]
    if surplus and not sliced:
        found.append(
            Finding(
                "warning",
                f"{other.name}: {len(surplus)} of its weights are not in {base.name}, e.g. "
                f"{surplus[0]}; the merge drops them without a word",
            )
        )
    rows = embedding_rows(base), embedding_rows(other)
    if None not in rows and rows[0] != rows[1] and not aligned:
        found.append(
            Finding(
                "error",
                f"{other.name}: its embedding has {rows[1]} rows, that of {base.name} has "
                f"{rows[0]}, and mergekit averages equal sizes only; add tokenizer: "
                "{source: base} to the merge configuration, which goes by tokens",
            )
        )
    wrong = [
        n
        for n, info in mine.items()
        if n in theirs and theirs[n].shape != info.shape and not _ROWS.search(n)
    ]
    if wrong:
        name = wrong[0]
        found.append(
            Finding(
                "error",
                f"{other.name}: {name} is {theirs[name].shape}, in {base.name} it is "
                f"{mine[name].shape}"
                + (f" ({len(wrong)} weights differ so)" if len(wrong) > 1 else "")
                + "; it is of another base",
            )
        )
    return found


def _own(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Weights less heads, which may be tied, and buffers that follow from the configuration."""
    return {n: i for n, i in tensors.items() if not _HEAD.search(n) and not _BUFFERS.search(n)}


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
