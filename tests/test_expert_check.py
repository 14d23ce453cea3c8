"""An expert that is worse than the base, or than the merge already, is told before surgery."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from surgekit.errors import InputError
from surgekit.fidelity import Candidate, measure_fidelity
from surgekit.models.anatomy import Head, find_anatomy
from surgekit.pipeline.expert_check import compare_losses, expert_warnings, prompt_losses
from surgekit.pipeline.preflight import preflight
from surgekit.pipeline.preflight.experts import check_experts
from surgekit.states.capture import capture
from surgekit.states.prompts import Prompt, tokenize_prompts

from .runs import SPLITS, document, make_world, recipe, watched
from .tiny import checkpoint, jsonl, llama, prompts, tokenizer


def sharpened(model: LlamaForCausalLM, factor: float) -> LlamaForCausalLM:
    """The same model, surer of what it predicts; being wrong, it loses by that."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        copy.lm_head.weight.mul_(factor)
    return copy.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the usual experts: ``modest``, better than the base, and ``boastful``, worse."""
    root = make_world(tmp_path_factory.mktemp("experts"))
    checkpoint(root / "modest", sharpened(llama(0), 0.3))
    checkpoint(root / "boastful", sharpened(llama(0), 2.0))
    return root


def of(expert: str, **changes: Any) -> dict[str, Any]:
    domains = {"math": document()["domains"]["math"] | {"expert": f"./{expert}"}}
    surgery = [{"module": "mean-shift"}]
    return {"domains": domains, "surgery": surgery, "seeds": [0]} | changes


def test_the_loss_is_that_of_the_metric(world: Path) -> None:
    items = [Prompt.model_validate(p) for p in prompts(12, "loss")]
    items.append(Prompt(prompt="no response at all"))
    tokens = tokenize_prompts(items, tokenizer())
    model = llama(3)
    states, head = capture(model, tokens), find_anatomy(model)[1]
    sums, numbers = prompt_losses(states, head)
    (figure,) = measure_fidelity(states, head, [Candidate(states.hidden, head)])
    expected, counts = figure.sums("loss")
    np.testing.assert_allclose(sums, expected, rtol=1e-6)
    np.testing.assert_array_equal(numbers, counts)


def test_a_token_beyond_the_head_is_named() -> None:
    tokens = tokenize_prompts([Prompt(prompt="a", response="b")], tokenizer())
    model = llama(3)
    states = capture(model, tokens)
    head = Head(find_anatomy(model)[1].weight[:100])
    with pytest.raises(InputError, match="outside a vocabulary of 100"):
        prompt_losses(states, head)


def losses(*means: float, spread: float = 0.1, count: int = 16) -> tuple[Any, Any]:
    """Losses of prompts of five tokens each, spread evenly about a mean."""
    steps = np.linspace(-spread, spread, count)
    return (np.array([means[0]] * count) + steps) * 5, np.full(count, 5.0)


@pytest.mark.parametrize(
    ("expert", "others", "said"),
    [
        (2.0, {"base": 1.0}, ["that of the base 1.000"]),
        (2.0, {"base": 1.0, "merged": 1.5}, ["that of the base", "nothing to repair"]),
        (1.2, {"base": 2.0, "merged": 1.0}, ["that of the merged model 1.000"]),
        (1.0, {"base": 2.0, "merged": 1.5}, []),
        (1.0, {"base": 1.0, "merged": 1.0}, []),
    ],
)
def test_only_an_expert_that_is_worse_is_told(
    expert: float, others: dict[str, float], said: list[str]
) -> None:
    given = {"expert": losses(expert)} | {n: losses(m) for n, m in others.items()}
    warnings = expert_warnings(compare_losses(given))
    assert len(warnings) == len(said)
    for warning, words in zip(warnings, said, strict=True):
        assert words in warning


def test_a_difference_that_may_be_chance_is_not_told() -> None:
    sums, numbers = losses(1.0)
    up_and_down = sums + np.where(np.arange(16) % 2, 3.0, -2.5)
    compared = compare_losses({"expert": (up_and_down, numbers), "base": (sums, numbers)})
    low, high = compared["difference"]["base"]["interval"]
    assert low < 0 < compared["difference"]["base"]["mean"] < high
    assert expert_warnings(compared) == []
    one = compare_losses({"expert": losses(2.0, count=1), "base": losses(1.0, count=1)})
    assert expert_warnings(one) == []  # one prompt has no interval


@pytest.mark.parametrize(("expert", "worse"), [("boastful", True), ("modest", False)])
def test_a_run_tells_it_before_surgery_and_keeps_it(
    world: Path, tmp_path: Path, expert: str, worse: bool
) -> None:
    results, watch = watched(recipe(world, **of(expert)), tmp_path / "run")
    check = results["domains"]["math"]["expert_check"]
    assert (check["loss"]["expert"] > check["loss"]["base"]) is worse
    assert check["prompts"] == 10
    assert bool(check["warnings"]) is worse
    assert any("is it the expert of this domain" in note for note in watch.notes) is worse
    assert watch.done.index("experts/math") < watch.done.index("surgery/math/mean-shift@both")
    kept = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert kept["domains"]["math"]["expert_check"] == check
    again = watched(recipe(world, **of(expert)), tmp_path / "run")[1]
    assert again.done == []
    assert [n for n in again.notes if "expert" in n] == [n for n in watch.notes if "expert" in n]


def test_the_check_reads_no_test_prompt(world: Path, tmp_path: Path) -> None:
    given = of("boastful")
    before = watched(recipe(world, **given), tmp_path / "run")[0]
    other = jsonl(tmp_path / "other.jsonl", prompts(10, "another test"))
    given["domains"]["math"]["test"] = str(other)
    after, watch = watched(recipe(world, **given), tmp_path / "run")
    assert "experts/math" in watch.reused
    checks = [r["domains"]["math"]["expert_check"] for r in (before, after)]
    assert checks[0] == checks[1]


@pytest.mark.parametrize(("expert", "level"), [("boastful", "warning"), ("modest", "note")])
def test_check_deep_tells_the_same(world: Path, expert: str, level: str) -> None:
    (finding,) = check_experts(recipe(world, **of(expert)), trust_remote_code=False)
    assert finding.level == level
    assert finding.message.startswith("domains.math: ")
    said = [f.message for f in preflight(recipe(world, **of(expert)), deep=True)]
    assert finding.message in said
    assert not any("--deep" in message for message in said)


def test_check_deep_looks_at_a_merge_that_is_brought(world: Path) -> None:
    given = of("math", merge={"folder": "./modest"})
    findings = check_experts(recipe(world, **given), trust_remote_code=False)
    assert any("nothing to repair" in f.message for f in findings if f.level == "warning")


def test_check_deep_looks_at_few_prompts_and_none_of_test(world: Path) -> None:
    given = of("modest")
    files = {s: jsonl(world / f"{s}40.jsonl", prompts(40, s)) for s in SPLITS}
    files["test"] = jsonl(world / "odd.jsonl", [{"prompt": "\x00", "response": ""}] * 3)
    given["domains"]["math"] |= {s: str(f) for s, f in files.items()}
    (finding,) = check_experts(recipe(world, **given), trust_remote_code=False)
    assert "loss on 16 validation prompts: expert" in finding.message


def test_plain_check_says_that_experts_are_not_verified(world: Path) -> None:
    findings = preflight(recipe(world, **of("boastful")))
    (open_point,) = [f for f in findings if f.level == "unverified"]
    assert "whether each expert is better than the base" in open_point.message


def test_a_model_that_cannot_be_run_is_an_error(world: Path, tmp_path: Path) -> None:
    broken = checkpoint(tmp_path / "broken", llama(1))
    (broken / "model.safetensors").write_bytes(b"nothing")
    given = of("modest")
    given["domains"]["math"]["expert"] = str(broken)
    (finding,) = check_experts(recipe(world, **given), trust_remote_code=False)
    assert finding.level == "error"
    assert "domains.math" in finding.message
