"""Estimates of disk, memory and time, beside what runs take and what the machine has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surgekit.errors import InputError
from surgekit.models.source import ModelSource
from surgekit.pipeline.preflight import cost, machine
from surgekit.pipeline.preflight.cost import (
    check_cost,
    device_findings,
    disk_findings,
    estimate,
    memory_findings,
)
from surgekit.pipeline.preflight.facts import model_facts
from surgekit.pipeline.preflight.lengths import Counts, count_tokens
from surgekit.pipeline.preflight.machine import Memory, Speed, folder_size
from surgekit.pipeline.prompts import read_domain
from surgekit.recipe import Recipe

from .runs import document, make_world, recipe, watched
from .sources import lora
from .tiny import checkpoint, jsonl, llama, prompts

GIB = 1 << 30
SPEED = Speed(1e12, 1e11, 3e8)
SURGERY = [{"module": "linear"}, {"module": "darts", "max_positions": 64, "iterations": 2}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_world(tmp_path_factory.mktemp("cost"))
    lora(root / "lora", llama(0))
    return root


def of(made: Recipe) -> cost.Cost:
    domains = {n: read_domain(n, d, made.seeds) for n, d in made.domains.items()}
    counted, _ = count_tokens(made, domains, trust_remote_code=False)
    return estimate(made, domains, counted, SPEED)


def wide(root: Path, name: str = "wide") -> Path:
    """A model large enough that its files outweigh their headers."""
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 8}
    return checkpoint(root / name, llama(0, **sizes))


@pytest.mark.parametrize("expert", ["plain", "lora"])
def test_the_disk_that_is_estimated_is_written(world: Path, tmp_path: Path, expert: str) -> None:
    base = wide(tmp_path)
    domains = {"math": document()["domains"]["math"]}
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 8}
    if expert == "lora":
        lora(tmp_path / "lora", llama(0, **sizes))
        domains["math"]["expert"] = {"lora": str(tmp_path / "lora")}
    else:
        domains["math"]["expert"] = str(base)
    made = recipe(world, base=str(base), domains=domains, surgery=SURGERY)
    expected = of(made).disk
    out = tmp_path / "run"
    watched(made, out)
    assert folder_size(out) / 1.5 < expected < folder_size(out) * 1.5


def test_tokens_are_those_that_run(world: Path, tmp_path: Path) -> None:
    from surgekit.states.states import load_states

    made = recipe(world, plain_text="data/plain.jsonl", surgery=[{"module": "mean-shift"}])
    watched(made, tmp_path / "run")
    states = [
        p
        for p in (tmp_path / "run" / "states").rglob("*.safetensors")
        if p.parent.name != "heads" and p.parent.parent.name != "plain"
    ]
    run = sum(len(load_states(p).tokens.ids) for p in states)
    without_plain = recipe(world, surgery=[{"module": "mean-shift"}])
    assert of(without_plain).tokens == run
    assert of(made).tokens > run


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"seeds": [0, 1, 2, 3]}, ("seconds", "disk")),
        ({"surgery": [*SURGERY, {"module": "standard", "loss": "kl"}]}, ("seconds",)),
        ({"batch_size": 4096}, ("memory", "device_memory")),
        ({"dtype": "float32"}, ("disk",)),
        ({"merge": {"merge_method": "ties", "dtype": "float32"}}, ("seconds",)),
    ],
)
def test_what_asks_for_more_costs_more(
    world: Path, more: dict[str, Any], what: tuple[str, ...]
) -> None:
    common = {"surgery": SURGERY, "seeds": [0], "dtype": "bfloat16"}
    before, after = of(recipe(world, **common)), of(recipe(world, **(common | more)))
    for name in what:
        assert getattr(after, name) > getattr(before, name)


def test_a_faster_machine_takes_less_time(world: Path) -> None:
    made = recipe(world)
    domains = {n: read_domain(n, d, made.seeds) for n, d in made.domains.items()}
    slow = estimate(made, domains, {}, replace(SPEED, elements=SPEED.elements / 10))
    assert slow.seconds > estimate(made, domains, {}, SPEED).seconds


def test_a_merge_at_hand_and_whole_experts_are_not_written(world: Path) -> None:
    made = recipe(world, dtype="float32")
    brought = recipe(world, dtype="float32", merge={"folder": "./math"})
    weights = model_facts(ModelSource(model=str(world / "base"))).parameters * 4
    assert of(made).disk - of(brought).disk == weights
    domains = document()["domains"]
    domains["math"]["expert"] = {"lora": "./lora"}
    written = recipe(world, dtype="float32", domains=domains)
    assert of(written).disk - of(made).disk == weights


def test_facts_are_those_of_the_model(world: Path) -> None:
    facts = model_facts(ModelSource(model=str(world / "base")))
    model = llama(0)
    assert facts.parameters == sum(p.numel() for p in model.parameters())
    assert (facts.hidden, facts.vocabulary, facts.positions) == (32, 320, 2048)
    assert (facts.kind, facts.packed) == ("llama", False)


def test_a_model_of_no_size_leaves_the_cost_unverified(world: Path, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "odd", llama(0))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match="does not say its hidden_size"):
        model_facts(ModelSource(model=str(folder)))
    (finding,) = check_cost(recipe(world, base=str(folder)), {}, {}, None)
    assert finding.level == "unverified"
    assert finding.message.startswith("disk, memory and time")


@pytest.mark.parametrize(
    ("free", "kept", "level"),
    [
        (200, 0, None),
        (100, 0, None),
        (99, 0, "warning"),
        (60, 41, None),  # what an interrupted run left need not be written again
        (51, 0, "warning"),
        (49, 0, "error"),
    ],
)
def test_a_disk_that_is_too_small_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, kept: int, level: str | None
) -> None:
    monkeypatch.setattr(cost, "free_disk", lambda place: free * GIB)
    monkeypatch.setattr(cost, "folder_size", lambda folder: kept * GIB)
    findings = disk_findings(100 * GIB, tmp_path / "run")
    assert [f.level for f in findings] == ([level] if level else [])
    for finding in findings:
        assert str(tmp_path / "run") in finding.message
        assert "--out" in finding.message


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (Memory(32 * GIB, 20 * GIB), None),
        (Memory(16 * GIB, 16 * GIB), None),
        (Memory(15 * GIB, 15 * GIB), "this machine has 15.0 GiB"),
        (Memory(15 * GIB, 15 * GIB, container=True), "this container may use 15.0 GiB"),
        (Memory(32 * GIB, 15 * GIB), "15.0 GiB of the 32.0 GiB that this machine has are free"),
    ],
)
def test_memory_that_is_too_small_is_told(world: Path, memory: Memory, words: str | None) -> None:
    made = recipe(world, batch_size=8, dtype="float32")
    findings = memory_findings(16 * GIB, memory, made)
    assert [f.level for f in findings] == ["warning"] * bool(words)
    for finding in findings:
        assert words is not None
        assert words in finding.message
        assert "batch_size: 4, dtype: bfloat16" in finding.message


@pytest.mark.parametrize(("free", "told"), [(80, False), (16, False), (15, True)])
def test_a_gpu_that_is_too_small_is_told(world: Path, free: int, told: bool) -> None:
    made = recipe(world, device="cuda:1")
    findings = device_findings(16 * GIB, free * GIB, 80 * GIB, made)
    assert [f.level for f in findings] == ["warning"] * told
    assert all("on cuda:1, 15.0 GiB of its 80.0 GiB" in f.message for f in findings)


def groups(root: Path, lines: str, files: dict[str, str]) -> Path:
    """A machine's control groups as files."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(lines)
    for name, content in files.items():
        path = root / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


TINY = 1 << 20
HUGE = "9223372036854771712"


def second(limit: str, used: str, statistic: str = "", *, group: str = "box") -> dict[str, str]:
    """Files of a control group of version 2."""
    files = {"memory.max": limit, "memory.current": used, "memory.stat": statistic}
    return {f"{group}/{name}": content for name, content in files.items()}


def first(limit: str, used: str, *, group: str = "memory") -> dict[str, str]:
    """Files of a control group of version 1."""
    return {f"{group}/memory.limit_in_bytes": limit, f"{group}/memory.usage_in_bytes": used}


@pytest.mark.parametrize(
    ("lines", "files", "free"),
    [
        ("0::/box\n", second(f"{TINY}\n", "1000\n"), TINY - 1000),
        ("0::/box/in\n", second(f"{TINY}", "0") | second("max", "0", group="box/in"), TINY),
        ("0::/box\n", second(f"{TINY}", f"{TINY}", "anon 5\ninactive_file 700\n"), 700),
        ("4:memory:/box\n0::/\n", first(f"{TINY}", "2000", group="memory/box"), TINY - 2000),
        ("4:cpu,memory:/of/the/host\n", first(f"{TINY}", f"{2 * TINY}"), 0),
        ("4:memory:/\n", first(HUGE, "5"), None),
        ("0::/box\n", second("max", "5"), None),
        ("0::/box\n", second("not a number", "5"), None),
        ("", {}, None),
    ],
)
def test_the_limit_of_a_container_counts(
    tmp_path: Path, lines: str, files: dict[str, str], free: int | None
) -> None:
    found = machine.memory(groups(tmp_path, lines, files))
    if free is None:
        assert not found.container
        assert found.total == machine.memory(tmp_path / "nothing").total
    else:
        assert found == Memory(TINY, free, container=True)


def shares(quota: str) -> dict[str, str]:
    """Files of a processor quota of version 1."""
    return {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        ("0::/box\n", {"box/cpu.max": "25000 100000\n"}, 0.25),
        ("0::/box\n", {"box/cpu.max": "max 100000\n"}, None),
        ("3:cpu,cpuacct:/\n", shares("50000"), 0.5),
        ("3:cpu,cpuacct:/\n", shares("-1"), None),
        ("no control group", {}, None),
    ],
)
def test_the_processors_of_a_container_count(
    tmp_path: Path, lines: str, files: dict[str, str], quota: float | None
) -> None:
    found = machine.processors(groups(tmp_path, lines, files))
    assert found == (machine.processors(tmp_path / "nothing") if quota is None else quota)


def test_disk_is_looked_at_where_the_run_will_be(tmp_path: Path) -> None:
    assert machine.free_disk(tmp_path / "not" / "there" / "yet") > 0
    jsonl(tmp_path / "some" / "deep" / "file.jsonl", prompts(3))
    size = (tmp_path / "some" / "deep" / "file.jsonl").stat().st_size
    assert folder_size(tmp_path / "some") == size
    assert folder_size(tmp_path / "nothing") == 0


def test_a_guess_without_a_tokenizer_is_of_the_same_order(world: Path) -> None:
    made = recipe(world)
    domains = {n: read_domain(n, d, made.seeds) for n, d in made.domains.items()}
    guessed = estimate(made, domains, {}, SPEED).tokens
    assert guessed < of(made).tokens  # here a character is a token
    counts = Counts([10, 10], [20, 60])
    assert (counts.kept(30), counts.scored(30)) == (50, 30)
