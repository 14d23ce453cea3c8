"""Pre-flight: what can be wrong with a recipe, found before any work."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from surgekit.errors import InputError
from surgekit.merging import check_method, read_merge_config
from surgekit.models.loading import is_plain_folder
from surgekit.models.source import gguf_path, resolve_folder, split_lora_folder
from surgekit.pipeline.models import merged_models, source_files
from surgekit.pipeline.prompts import DomainPrompts, read_domain, read_plain
from surgekit.pipeline.surgery import module_config
from surgekit.recipe import Recipe
from surgekit.states.prompts import Prompt, check_format

_CHARACTERS_PER_TOKEN = 3.5


@dataclass(frozen=True)
class Finding:
    """One thing worth telling.

    Attributes:
        level: an ``error`` stops a run, a ``warning`` does not, a ``note`` is information.
        message: what was expected, what was found, the way out.
    """

    level: Literal["error", "warning", "note"]
    message: str

    def __str__(self) -> str:
        return self.message if self.level == "note" else f"{self.level}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def preflight(recipe: Recipe) -> list[Finding]:
    """Everything that can be found without loading weights, the errors first."""
    findings: list[Finding] = []
    domains: dict[str, DomainPrompts] = {}
    for name, domain in recipe.domains.items():
        prompts = _try(findings, lambda n=name, d=domain: read_domain(n, d, recipe.seeds))
        _try(findings, lambda n=name, d=domain, p=prompts: _format(n, d.format, p))
        if prompts is not None:
            domains[name] = prompts
            findings += _shared_prompts(name, prompts)
            findings += _missing_responses(name, prompts, recipe)
        if domain.tasks:
            findings.append(
                Finding(
                    "warning",
                    f"domains.{name}.tasks: this version runs no lm-eval tasks; they are left out",
                )
            )
    _try(findings, lambda: read_plain(recipe))
    findings += _models(recipe)
    if recipe.merged_folder is None:
        names = {name: Path(name) for name in ("base", *recipe.domains)}
        _try(findings, lambda: merged_models(recipe, names))
        _try(findings, lambda: check_method(read_merge_config(recipe.merge)))
    _try(findings, lambda: _device(recipe.device))
    if not any(f.level == "error" for f in findings):
        findings += _cost(recipe, domains)
    order = ("error", "warning", "note")
    return sorted(findings, key=lambda f: order.index(f.level))


def _try(findings: list[Finding], work: Callable[[], Any]) -> Any:
    try:
        return work()
    except InputError as error:
        findings.append(Finding("error", str(error)))
        return None


def _format(name: str, format: str, prompts: DomainPrompts | None) -> None:
    """A format that does not parse, or that some prompts cannot be put into."""
    try:
        check_format(format)
    except InputError as error:
        raise InputError(f"domains.{name}: {error}") from error
    items = [] if prompts is None else [p for split in prompts.splits.values() for p in split]
    if format == "plain" and any(p.messages for p in items):
        raise InputError(
            f"domains.{name}: format 'plain' takes 'prompt', found 'messages'; use format chat"
        )


def _device(name: str) -> None:
    import torch

    try:
        if name != "auto":
            torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0]
        raise InputError(f"device {name!r}: expected cpu, cuda, cuda:N or auto ({said})") from error


def _shared_prompts(name: str, prompts: DomainPrompts) -> list[Finding]:
    """The same prompt in two sets: what is reported would have been tuned on."""
    seen: dict[str, dict[str, int]] = {
        split: {_normalised(p): i for i, p in enumerate(items)}
        for split, items in prompts.splits.items()
    }
    findings: list[Finding] = []
    for one, other in (
        ("calibration", "test"),
        ("validation", "test"),
        ("calibration", "validation"),
    ):
        shared = seen[one].keys() & seen[other].keys()
        if shared:
            example = prompts.splits[other][seen[other][sorted(shared)[0]]]
            findings.append(
                Finding(
                    "error",
                    f"domains.{name}: {len(shared)} prompts stand in {one} and in {other}, e.g. "
                    f"{_normalised(example)[:60]!r}; the three sets must not share prompts",
                )
            )
    return findings


def _missing_responses(name: str, prompts: DomainPrompts, recipe: Recipe) -> list[Finding]:
    findings: list[Finding] = []
    for split, items in prompts.splits.items():
        without = sum(p.turns()[1] is None for p in items)
        if not without:
            continue
        texts = {m.calibration.text for m in recipe.methods()}
        if split == "calibration" and without == len(items) and "response" in texts:
            findings.append(
                Finding(
                    "error",
                    f"domains.{name}.calibration: text 'response' is asked for, but no prompt in "
                    "the file has a response; add responses, or use text: prompt",
                )
            )
        else:
            findings.append(
                Finding("warning", f"domains.{name}.{split}: {without} prompts have no response")
            )
    return findings


def _models(recipe: Recipe) -> list[Finding]:
    findings: list[Finding] = []
    sizes: dict[str, tuple[int | None, int | None]] = {}
    sources = {"base": recipe.base} | {
        f"domains.{n}.expert": d.expert.over(recipe.base) for n, d in recipe.domains.items()
    }
    for where, source in sources.items():
        try:
            source_files(source)
            plain = split_lora_folder(source)
            if plain.lora and not (Path(plain.lora) / "adapter_config.json").is_file():
                raise InputError(
                    f"{plain.lora}: expected a PEFT adapter folder, found no adapter_config.json"
                )
            if plain.model is not None:
                sizes[where] = _sizes(resolve_folder(plain.model, plain.revision))
        except InputError as error:
            findings.append(Finding("error", f"{where}: {error}"))
    if recipe.merged_folder is not None:
        try:
            sizes["merge"] = _sizes(resolve_folder(recipe.merged_folder))
        except InputError as error:
            findings.append(Finding("error", f"merge: {error}"))
    widths = {where: size[0] for where, size in sizes.items() if size[0] is not None}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{where} {width}" for where, width in widths.items())
        findings.append(Finding("error", f"models of one hidden size are needed, found {found}"))
    for method in recipe.methods():
        for width in set(widths.values()):
            _try(findings, lambda m=method, w=width: module_config(m, w))
    rows = {where: size[1] for where, size in sizes.items() if size[1] is not None}
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{where} {count}" for where, count in rows.items())
        findings.append(
            Finding(
                "warning",
                f"vocabularies differ ({found}); fidelity is measured on the common part",
            )
        )
    return findings


def _sizes(folder: Path) -> tuple[int | None, int | None]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}/config.json: not readable as JSON ({error})") from error
    text = config.get("text_config") or config
    return text.get("hidden_size") or text.get("n_embd"), text.get("vocab_size")


def _cost(recipe: Recipe, domains: dict[str, DomainPrompts]) -> list[Finding]:
    """Rough sizes: disk for what a run writes, memory for one model at a time."""
    weights = sum(p.stat().st_size for p in source_files(recipe.base))
    gguf = gguf_path(split_lora_folder(recipe.base)) is not None
    # GGUF blocks unpack to two bytes a weight from about half a byte (4 bits) to one (8 bits).
    model_bytes = weights * 4 if gguf else weights
    written = sum(
        not is_plain_folder(s)
        for s in (recipe.base, *(d.expert.over(recipe.base) for d in recipe.domains.values()))
    )
    written += recipe.merged_folder is None
    characters = {
        name: {split: sum(len(_text(p)) for p in items) for split, items in prompts.splits.items()}
        for name, prompts in domains.items()
    }
    tokens = int(
        sum(
            counts["calibration"] * 2 + counts["validation"] * 2 + counts["test"] * 3
            for counts in characters.values()
        )
        / _CHARACTERS_PER_TOKEN
    )
    # A forward pass takes two operations a weight and token; about a third of the processor's
    # matrix speed is reached, and the judging of methods takes as long again.
    minutes = 2 * 2 * (model_bytes / 2) * tokens / (_matrix_speed() / 3) / 60
    # Twice the weights while a model is loaded or merged, and the interpreter with torch.
    memory = 2 * model_bytes + (1 << 30)
    disk = model_bytes * written
    findings = [
        Finding(
            "note",
            f"about {tokens:,} tokens to run through models, {disk / 2**30:.1f} GiB to write, "
            f"{memory / 2**30:.1f} GiB of memory, {_span(minutes)} on this processor "
            "(rough estimates)",
        )
    ]
    free = shutil.disk_usage(Path.cwd()).free
    if disk > free:
        findings.append(
            Finding(
                "warning",
                f"about {disk / 2**30:.1f} GiB will be written, {free / 2**30:.1f} GiB are free",
            )
        )
    import psutil

    total = psutil.virtual_memory().total
    if memory > total:
        findings.append(
            Finding(
                "warning",
                f"about {memory / 2**30:.1f} GiB of memory may be needed, this machine has "
                f"{total / 2**30:.1f} GiB",
            )
        )
    return findings


def _matrix_speed() -> float:
    """Operations a second of a bfloat16 matrix product here, measured in a moment."""
    import torch

    a, b = torch.ones(1024, 576, dtype=torch.bfloat16), torch.ones(576, 576, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        for _ in range(8):
            torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return 8 * 2 * 1024 * 576 * 576 / best


def _span(minutes: float) -> str:
    if minutes < 1:
        return "under a minute"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _text(prompt: Prompt) -> str:
    turns, response = prompt.turns()
    return "".join(t["content"] for t in turns) + (response or "")


def _normalised(prompt: Prompt) -> str:
    return " ".join(" ".join(t["content"] for t in prompt.turns()[0]).split()).casefold()
