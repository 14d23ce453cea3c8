"""What a LoRA says of itself, held against the base it is to lie on; the base is not loaded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from surgekit.errors import InputError
from surgekit.findings import Finding
from surgekit.models.checkpoint import Checkpoint, TensorInfo, open_bin, read_header
from surgekit.models.source import lora_config

_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<side>A|B|embedding_A|embedding_B)(?:\.weight)?")
_PLAIN = re.compile(r"[\w.-]*")
_OWN = re.compile(r".+\.lora_(?:magnitude_vector|[A-Za-z_]+)(?:\.weight|\.bias)?")


@dataclass(frozen=True)
class LoraHeader:
    """A PEFT adapter by its headers.

    Attributes:
        folder: where it lies.
        config: its ``adapter_config.json``.
        tensors: by name, less PEFT's prefix.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


def read_lora(folder: Path) -> LoraHeader | None:
    """Read an adapter folder; None where its weights show their names only when loaded.

    Raises:
        InputError: no adapter, no weights, or a damaged file.
    """
    config = lora_config(folder)
    file = next((folder / n for n in _FILES if (folder / n).is_file()), None)
    if file is None:
        raise InputError(f"{folder}: expected a PEFT adapter folder, found no adapter_model in it")
    header = read_header(file)
    if header is None:
        return None
    return LoraHeader(folder, config, {k.removeprefix(_PREFIX): v for k, v in header.items()})


def check_lora(lora: LoraHeader, base: Checkpoint, name: str) -> list[Finding]:
    """What keeps a LoRA from lying on this base, and what is odd about it.

    Errors are what loading would refuse; that it names another base is a warning.
    """
    name = f"{name}: {lora.folder}"
    findings = _named_base(lora, base, name)
    if lora.config.get("peft_type") != "LORA":
        return [
            *findings,
            Finding("unverified", f"{name}: whether a {lora.config['peft_type']} fits the base"),
        ]
    pairs, rest = _pairs(lora)
    if not base.tensors:
        return [*findings, Finding("unverified", f"{name}: whether the LoRA fits {base.name}")]
    findings += _ranks(lora, pairs, name)
    findings += _modules(lora, base, pairs, rest, name)
    values = lora_values(lora)
    if values is not None:
        bad = [k for k, v in values.items() if not bool(torch.isfinite(v.float()).all())]
        if bad:
            findings.append(
                Finding(
                    "error",
                    f"{name}: weight {bad[0]} of the LoRA holds NaN or infinity; it is damaged",
                )
            )
        elif _does_nothing(lora, values):
            findings.append(
                Finding(
                    "warning",
                    f"{name}: the LoRA changes nothing (lora_alpha 0, or all lora_B are zero), so "
                    "this expert is the base itself; was it trained and saved?",
                )
            )
    return findings


def lora_values(lora: LoraHeader) -> dict[str, torch.Tensor] | None:
    """The adapter's weights; they are small. None where the file shows them only when loaded."""
    found: dict[str, torch.Tensor] = {}
    for file in {info.file for info in lora.tensors.values()}:
        if file.suffix == ".safetensors":
            with safe_open(str(file), framework="pt") as tensors:
                found |= {k: tensors.get_tensor(k) for k in tensors.keys()}  # noqa: SIM118
        else:
            loaded = open_bin(file)
            if loaded is None:
                return None
            found |= loaded
    return found


def _does_nothing(lora: LoraHeader, values: Mapping[str, torch.Tensor]) -> bool:
    ups = [v for k, v in values.items() if ".lora_B" in k or ".lora_embedding_B" in k]
    others = [k for k in values if ".lora_" not in k]
    # float8 has no count_nonzero of its own.
    silent = lora.config.get("lora_alpha") == 0 or not any(bool(u.float().any()) for u in ups)
    return bool(ups) and silent and not others


def _named_base(lora: LoraHeader, base: Checkpoint, name: str) -> list[Finding]:
    said = lora.config.get("base_model_name_or_path")
    if not isinstance(said, str) or not said.strip("./"):
        return []
    wanted = _plain(said)
    known = {_plain(a) for a in (*base.aliases, str(base.folder)) if _plain(a)}
    if not wanted or any(wanted in k or k in wanted for k in known):
        return []
    return [
        Finding(
            "warning",
            f"{name}: the LoRA says it was trained on {said}, and is laid on {base.aliases[0]}; "
            "on another model its correction is noise",
        )
    ]


def _plain(name: str) -> str:
    """The last part of a name or path, in small letters and digits; hub caches by their owner's."""
    cached = re.search(r"models--[^/]+--([^/]+)/snapshots/", name)
    last = cached[1] if cached else name.rstrip("/").rsplit("/", 1)[-1]
    last = re.sub(r"(?i)[._-](?:i?q[0-9]\w*|f16|bf16|f32|gguf)$", "", last)
    return re.sub(r"[^a-z0-9]", "", last.lower())


def _pairs(lora: LoraHeader) -> tuple[dict[str, dict[str, tuple[int, ...]]], dict[str, TensorInfo]]:
    """({module: {side: shape}}, what is no half of a pair)."""
    pairs: dict[str, dict[str, tuple[int, ...]]] = {}
    rest: dict[str, TensorInfo] = {}
    for key, info in lora.tensors.items():
        match = _PAIR.fullmatch(key)
        if match and len(info.shape) > 1:
            pairs.setdefault(match["module"], {})[match["side"]] = info.shape
        elif not _OWN.fullmatch(key):
            rest[key] = info
    return pairs, rest


def _rank(shapes: Mapping[str, tuple[int, ...]]) -> int:
    down = shapes.get("A") or shapes.get("embedding_A")
    return down[0] if down else next(iter(shapes.values()))[-1]


def _ranks(
    lora: LoraHeader, pairs: Mapping[str, Mapping[str, tuple[int, ...]]], name: str
) -> list[Finding]:
    said = lora.config.get("r")
    own = lora.config.get("rank_pattern") or {}
    if not isinstance(own, dict) or not all(_PLAIN.fullmatch(p) for p in own):
        return []  # patterns of regular expressions are PEFT's to read: one can take for ever
    wrong: Counter[int] = Counter()
    for module, shapes in pairs.items():
        special = any(f".{module}".endswith(f".{p}") for p in own)
        if not special and isinstance(said, int) and _rank(shapes) != said:
            wrong[_rank(shapes)] += 1
    if not wrong:
        return []
    found = ", ".join(str(r) for r in sorted(wrong))
    return [
        Finding(
            "error",
            f"{name}: by its configuration the LoRA is of rank {said}, its weights are of rank "
            f"{found}; configuration and weights do not belong together",
        )
    ]


def _modules(
    lora: LoraHeader,
    base: Checkpoint,
    pairs: Mapping[str, Mapping[str, tuple[int, ...]]],
    rest: Mapping[str, TensorInfo],
    name: str,
) -> list[Finding]:
    absent = [m for m in pairs if _weight(base, m) is None]
    absent += [k for k in rest if _weight(base, k.rpartition(".")[0], k.rpartition(".")[2]) is None]
    if absent:
        return [
            Finding(
                "error",
                f"{name}: the LoRA is of another model: {len(absent)} of its "
                f"{len(pairs) + len(rest)} modules are not in {base.aliases[0]}, e.g. {absent[0]}",
            )
        ]
    wrong = []
    for module, shapes in pairs.items():
        weight = _weight(base, module)
        sizes = _outer(shapes)
        if weight is not None and sizes is not None and sizes not in (weight, weight[::-1]):
            wrong.append(f"{module} is {_text(weight)} there, and {_text(sizes)} for the LoRA")
    for key, info in rest.items():
        weight = _weight(base, key.rpartition(".")[0], key.rpartition(".")[2])
        if weight is not None and weight != info.shape:
            wrong.append(f"{key} is {_text(weight)} there, and {_text(info.shape)} in the LoRA")
    if wrong:
        return [
            Finding(
                "error",
                f"{name}: the LoRA does not fit {base.aliases[0]}: {wrong[0]}"
                + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
            )
        ]
    missing = _uncovered(lora, base, pairs)
    if missing:
        return [
            Finding(
                "error",
                f"{name}: the LoRA has no weights for {len(missing)} modules that it should "
                f"correct in {base.aliases[0]}, e.g. {missing[0]}; it is of another model, or "
                "incomplete",
            )
        ]
    return []


def _outer(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """(rows, columns) of the weight that a pair corrects."""
    if {"A", "B"} <= shapes.keys() and len(shapes["A"]) == len(shapes["B"]) == 2:
        return shapes["B"][0], shapes["A"][1]
    if {"embedding_A", "embedding_B"} <= shapes.keys():
        return shapes["embedding_A"][1], shapes["embedding_B"][0]
    return None


def _weight(base: Checkpoint, module: str, leaf: str = "weight") -> tuple[int, ...] | None:
    """The shape of a module's weight in the base; some checkpoints leave the outer name out."""
    for candidate in (module, module.partition(".")[2], f"model.{module}"):
        found = base.tensors.get(f"{candidate}.{leaf}")
        if found is not None:
            return found.shape
    if module.endswith("lm_head") and base.config.get("tie_word_embeddings"):
        tied = [i.shape for n, i in base.tensors.items() if "embed_tokens" in n or "wte" in n]
        return tied[0] if tied else None
    return None


def _uncovered(lora: LoraHeader, base: Checkpoint, pairs: Mapping[str, object]) -> list[str]:
    """Modules of the base that ``target_modules`` names and the LoRA has no weights for."""
    targets = lora.config.get("target_modules")
    narrowing = ("layers_to_transform", "layers_pattern", "exclude_modules")
    if not isinstance(targets, list) or any(lora.config.get(k) for k in narrowing):
        return []
    modules = [n.removesuffix(".weight") for n, i in base.tensors.items() if len(i.shape) == 2]
    named = [m for m in modules if any(m == t or m.endswith(f".{t}") for t in targets)]
    have = set(pairs)
    have |= {m.partition(".")[2] for m in pairs} | {f"model.{m}" for m in pairs}
    return [m for m in named if m not in have]


def _text(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
