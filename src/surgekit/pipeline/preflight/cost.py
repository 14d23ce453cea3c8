"""Pre-flight of the cost: memory, disk and time against what the machine has.

Sizes come from the models' files and the prompts' tokens. How long the pieces of work take was
fitted once, on two cores, to the stages of whole runs, relative to speeds that are measured anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgekit.errors import InputError
from surgekit.findings import Finding
from surgekit.merging import read_merge_config
from surgekit.models.loading import DTYPES, is_plain_folder
from surgekit.models.source import ModelSource
from surgekit.pipeline.capturing import NOISE_PROMPTS
from surgekit.pipeline.preflight.facts import ModelFacts, model_facts
from surgekit.pipeline.preflight.lengths import Counts, DomainCounts
from surgekit.pipeline.preflight.machine import (
    Memory,
    Speed,
    folder_size,
    free_disk,
    memory,
    speed,
)
from surgekit.pipeline.prompts import SPLITS, DomainPrompts, read_plain
from surgekit.recipe import Method, Recipe
from surgekit.states.prompts import Prompt
from surgekit.surgery.config import LOW_RANK, POSITIONAL

_CHARACTERS_PER_TOKEN = 3.5
_INTERPRETER = 600 << 20
"""Bytes that Python takes with torch, transformers and mergekit loaded."""
_SLACK = 1.3
"""What is freed and not given back, on top of what a stage holds at once."""
_START_SECONDS = 10.0
_FORWARD, _HEAD = 0.46, 0.4
"""Shares of the matrix speed that a forward pass and a head's products reach."""
_JUDGED, _ENTROPY = 1.7, 1.0
"""Passes of a softmax over the vocabulary that a judged token and an entropy cost."""
_UNPACKED, _FOLDED, _COPIED = 75e-9, 30e-9, 4e-9
"""Seconds a weight for reading GGUF, for folding a LoRA and writing, for reading a plain file."""
_MERGED = {"ties": 70e-9, "dare_ties": 50e-9, "dare_linear": 25e-9}
"""Seconds a weight and model; any other method: 5e-9."""


@dataclass(frozen=True)
class Cost:
    """What a run takes from its beginning.

    Attributes:
        tokens: that run through models.
        disk: bytes that it writes.
        memory: bytes that it holds at most, mapped files not counted.
        device_memory: the same of a GPU, where one is used.
        seconds: that it takes.
    """

    tokens: int
    disk: int
    memory: int
    device_memory: int
    seconds: float


def check_cost(
    recipe: Recipe,
    domains: Mapping[str, DomainPrompts],
    counted: Mapping[str, DomainCounts],
    out: Path | None,
) -> list[Finding]:
    """The estimate, and what the machine lacks for it.

    Args:
        domains: the prompts as read.
        counted: their tokens, where they were counted; for other domains they are guessed.
        out: the run directory; None where it is not known yet.
    """
    try:
        cost = estimate(recipe, domains, counted, speed())
    except InputError as error:
        return [Finding("unverified", f"disk, memory and time ({error})")]
    # How fast a GPU runs the models is not measured, so theirs is an upper bound.
    where = "on this processor" if recipe.device == "cpu" else "were all done on the processor"
    findings = [
        Finding(
            "note",
            f"about {cost.tokens:,} tokens to run through models, {_size(cost.disk)} to write, "
            f"{_size(cost.memory)} of memory, {_span(cost.seconds / 60)} {where} "
            "(rough estimates, with the machine as busy as it is now)",
        )
    ]
    findings += disk_findings(cost.disk, out)
    findings += memory_findings(cost.memory, memory(), recipe)
    if recipe.device.startswith("cuda"):
        import torch

        free, total = torch.cuda.mem_get_info(recipe.device)
        findings += device_findings(cost.device_memory, free, total, recipe)
    return findings


def disk_findings(needed: int, out: Path | None) -> list[Finding]:
    """What is to be said where the disk of the run directory has less than is needed."""
    place = Path.cwd() if out is None else out
    missing = max(0, needed - folder_size(place)) if out is not None else needed
    free = free_disk(place)
    if missing <= free:
        return []
    said = (
        f"about {_size(missing)} will be written to {place}, {_size(free)} are free there; "
        "name another folder with --out, give experts as whole checkpoints rather than LoRA or "
        "GGUF, or bring a merge (merge: {folder: PATH})"
    )
    # The estimate may be half as much again too high; at twice the room no doubt is left.
    return [Finding("error" if missing > 2 * free else "warning", said)]


def memory_findings(needed: int, found: Memory, recipe: Recipe) -> list[Finding]:
    """The same of memory. Never an error: a system with swap gets through, slowly."""
    whose = "this container may use" if found.container else "this machine has"
    way_out = "use a smaller max_length, fewer items"
    if recipe.batch_size > 1:
        way_out += f", batch_size: {max(1, recipe.batch_size // 2)}"
    if recipe.dtype == "float32":
        way_out += ", dtype: bfloat16"
    if needed > found.total:
        return [
            Finding(
                "warning",
                f"about {_size(needed)} of memory may be needed, {whose} {_size(found.total)}; "
                f"{way_out}",
            )
        ]
    if needed > found.free:
        return [
            Finding(
                "warning",
                f"about {_size(needed)} of memory may be needed, {_size(found.free)} of the "
                f"{_size(found.total)} that {whose} are free now; end other programs, or {way_out}",
            )
        ]
    return []


def device_findings(needed: int, free: int, total: int, recipe: Recipe) -> list[Finding]:
    """The same of the memory of a GPU, of which ``free`` bytes are to be had."""
    if needed <= free:
        return []
    return [
        Finding(
            "warning",
            f"about {_size(needed)} of memory may be needed on {recipe.device}, {_size(free)} of "
            f"its {_size(total)} are free; use a smaller batch_size or max_length, or device: auto",
        )
    ]


def estimate(
    recipe: Recipe,
    domains: Mapping[str, DomainPrompts],
    counted: Mapping[str, DomainCounts],
    reached: Speed,
) -> Cost:
    """The cost of a run of a recipe.

    Raises:
        InputError: a model whose size cannot be told.
    """
    base = model_facts(recipe.base)
    experts: dict[str, ModelFacts] = {}
    for name, domain in recipe.domains.items():
        own = domain.expert.over(recipe.base)
        lora_on_base = own.model_copy(update={"lora": None}) == recipe.base
        experts[name] = base if lora_on_base else model_facts(own)
    counts = {
        name: counted.get(name) or {s: _guess(p.splits[s]) for s in SPLITS}
        for name, p in domains.items()
    }
    plain = read_plain(recipe)
    work = _Work.of(recipe, counts, None if plain is None else _guess(plain))
    return Cost(
        work.forward,
        _disk(recipe, base, experts, work),
        _memory(recipe, base, work, on_device=False),
        _memory(recipe, base, work, on_device=True),
        _seconds(recipe, base, experts, work, reached),
    )


@dataclass(frozen=True)
class _Work:
    """Tokens of a run.

    Attributes:
        forward: through models, and kept as states.
        with_entropies: of these, with the expert's entropies.
        judged: through a head, once for each model and method.
        calibration: of each domain's calibration prompts.
        largest, longest: of the largest split, of the longest sequence.
    """

    forward: int
    with_entropies: int
    judged: int
    calibration: dict[str, int]
    largest: int
    longest: int

    @classmethod
    def of(cls, recipe: Recipe, counts: Mapping[str, DomainCounts], plain: Counts | None) -> _Work:
        limit, methods = recipe.max_length, len(recipe.methods()) * len(recipe.seeds)
        merged = experts = base = judged = 0
        largest = longest = 1
        for splits in counts.values():
            kept = {s: c.kept(limit) for s, c in splits.items()}
            test, validation = splits["test"], splits["validation"]
            merged += sum(kept.values())
            experts += sum(kept.values())
            experts += sum(min(n, limit) for n in test.whole[:NOISE_PROMPTS])
            base += kept["test"] + kept["validation"]
            judged += test.scored(limit) * (4 + methods)
            judged += validation.scored(limit) * (2 + methods + 3)
            judged += test.scored(limit) * (2 + len(counts))
            largest = max(largest, *kept.values())
            longest = max(longest, *(min(n, limit) for c in splits.values() for n in c.whole))
        if plain is not None:
            merged += plain.kept(limit)
            judged += plain.scored(limit) * (2 + len(counts))
        total = merged + experts + base
        calibration = {name: c["calibration"].kept(limit) for name, c in counts.items()}
        return cls(total, experts, judged, calibration, largest, longest)


def _disk(recipe: Recipe, base: ModelFacts, experts: Mapping[str, ModelFacts], work: _Work) -> int:
    width = DTYPES[recipe.dtype].itemsize
    sources: list[tuple[ModelSource, ModelFacts]] = [(recipe.base, base)]
    sources += [(recipe.domains[n].expert.over(recipe.base), f) for n, f in experts.items()]
    total = sum(f.parameters * width for source, f in sources if not is_plain_folder(source))
    if recipe.merged_folder is None:
        total += base.parameters * _merge_width(recipe, width)
    heads = (len(experts) + 2) * base.vocabulary * base.hidden * width
    states = work.forward * (base.hidden * width + 8) + work.with_entropies * 4
    runs = len(experts) * len(recipe.seeds)
    adapters = runs * sum(2 * _module_size(m, base.hidden) for m in recipe.methods())
    return total + heads + states + adapters


def _merge_width(recipe: Recipe, width: int) -> int:
    config: dict[str, Any] = read_merge_config(recipe.merge)
    named = config.get("out_dtype") or config.get("dtype")
    found = DTYPES.get(str(named))
    return width if found is None else found.itemsize


def _module_size(method: Method, hidden: int) -> int:
    config = method.config(1 << 30)
    rank, rows = config.rank or 0, config.max_positions or 0
    if method.module == "linear":
        return 2 * rank * hidden if rank else hidden * hidden
    return (2 * rank + rows + 1) * hidden


def _memory(recipe: Recipe, base: ModelFacts, work: _Work, *, on_device: bool) -> int:
    """The greatest of what the stages hold at once, on the host or on a GPU."""
    width = DTYPES[recipe.dtype].itemsize
    weights = base.parameters * width
    head = base.vocabulary * base.hidden
    batch = min(recipe.batch_size * work.longest, 2 * work.largest)
    # Of a forward pass: some states of all tokens, and a few times that inside the MLP.
    activations = batch * base.hidden * 24 * 4
    capture = weights + activations + head * 4 + 256 * 16_384 * 4 * 3
    states = 3 * work.largest * base.hidden * width
    fits = max(_fit_memory(m, base, work) for m in recipe.methods())
    if on_device:
        return int(_SLACK * max(capture, fits))
    folded = any(d.expert.lora is not None for d in recipe.domains.values())
    on_host = recipe.device == "cpu"
    stages = [
        base.parameters * (4 if folded else width) + head * 4,  # a LoRA is folded in float32
        (capture if on_host else weights) + states,
        # Heads of base, expert and merged model, as stored and in float32; logits of a chunk.
        3 * head * (width + 4) + 128 * base.vocabulary * 4 * 8 + states,
        (fits if on_host else 0) + states,
    ]
    if recipe.merged_folder is None:
        # An output shard, and the largest tensor of every model in float32.
        shard = min(base.parameters * _merge_width(recipe, width), 5 << 30)
        stages.append(shard + (len(recipe.domains) + 3) * head * 4)
    return int(_INTERPRETER + _SLACK * max(stages))


def _fit_memory(method: Method, base: ModelFacts, work: _Work) -> int:
    tokens, width = max(work.calibration.values(), default=0), base.hidden
    both = tokens * width * 2 * 4
    if method.module == "linear":
        return both + tokens * width * 8 * 5 + width * width * 8 * 5
    if method.calibration.loss is None:
        return both
    batch = min(method.calibration.batch_size * work.longest, tokens)
    needed = both + batch * width * 4 * 10 + 4 * 4 * _module_size(method, width)
    if method.calibration.loss in ("kl", "ce"):
        needed += base.vocabulary * (width * 4 + batch * 4 * 4)
    return needed


def _seconds(
    recipe: Recipe,
    base: ModelFacts,
    experts: Mapping[str, ModelFacts],
    work: _Work,
    reached: Speed,
) -> float:
    head = base.vocabulary * base.hidden
    body = max(base.parameters - head, base.parameters // 2)
    total = _START_SECONDS
    sources = [(recipe.base, base)]
    sources += [(recipe.domains[n].expert.over(recipe.base), f) for n, f in experts.items()]
    for source, facts in sources:
        a_weight = _COPIED
        if facts.packed:
            a_weight += _UNPACKED
        if not is_plain_folder(source):
            a_weight += _FOLDED
        total += facts.parameters * a_weight
    if recipe.merged_folder is None:
        method = str(read_merge_config(recipe.merge).get("merge_method"))
        total += base.parameters * (len(experts) + 1) * _MERGED.get(method, 5e-9)
    total += 2 * body * work.forward / (_FORWARD * reached.matrix)
    for tokens, passes in ((work.with_entropies, _ENTROPY), (work.judged, _JUDGED)):
        total += tokens * 2 * head / (_HEAD * reached.matrix)
        total += tokens * base.vocabulary * passes / reached.elements
    for method in recipe.methods():
        for tokens in work.calibration.values():
            total += len(recipe.seeds) * _fit_seconds(method, tokens, recipe, base, reached)
    return total


def _fit_seconds(
    method: Method, tokens: int, recipe: Recipe, base: ModelFacts, reached: Speed
) -> float:
    width, settings = base.hidden, method.calibration
    if settings.text != "both":
        tokens //= 2
    if method.module == "linear":
        passes = 100 if isinstance(settings.ridge, str) else 8  # 25 ridges are tried
        return (passes * tokens * width**2 + 30 * width**3) / (0.45 * reached.double)
    if settings.loss is None:
        return 0.1
    items = next(iter(recipe.domains.values())).calibration.items
    share = 1.0 if not items else min(1.0, settings.batch_size / items)
    steps = settings.iterations * tokens * share
    passes = 2.3 if method.module in POSITIONAL else 1.5
    rank = method.config(1 << 30).rank or 0 if method.module in LOW_RANK else 0
    seconds = steps * width * passes * (1 + rank / 256) / reached.elements
    if settings.loss in ("kl", "ce"):
        seconds += steps * 6 * base.vocabulary * width / (_HEAD * reached.matrix)
        seconds += steps * base.vocabulary * 3 / reached.elements
    return seconds


def _guess(prompts: list[Prompt]) -> Counts:
    heads: list[int] = []
    wholes: list[int] = []
    for prompt in prompts:
        turns, response = prompt.turns()
        characters = sum(len(t["content"]) for t in turns)
        heads.append(max(1, int(characters / _CHARACTERS_PER_TOKEN)))
        wholes.append(heads[-1] + int(len(response or "") / _CHARACTERS_PER_TOKEN))
    return Counts(heads, wholes)


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 27 else f"{count / 2**20:.0f} MiB"


def _span(minutes: float) -> str:
    if minutes < 1:
        return "under a minute"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
