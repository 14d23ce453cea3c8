"""A recipe's run: what it leaves, what its figures are, and what it recommends."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from surgekit.adapters.files import load_adapter
from surgekit.errors import InputError
from surgekit.models.loading import load_model
from surgekit.pipeline.run import run_recipe
from surgekit.recipe import load_recipe

from .oracle import Array, bias, correct, fidelity
from .results_schema import Results
from .runs import DOMAINS, document, make_world, recipe, watched
from .sources import lora
from .tiny import checkpoint, jsonl, llama, prompts, shifted, tokenizer

METHODS: list[dict[str, Any]] = [
    {"module": ["standard", "darts"], "loss": ["l1", "kl"], "iterations": 5, "rank": 4},
    {"module": "mean-shift", "text": "prompt"},
    {"module": "linear", "text": ["both", "response"]},
    {"module": "darts", "name": "mine", "iterations": 3},
]
IDS = [f"{m}-{x}@both" for m in ("standard", "darts") for x in ("l1", "kl")]
IDS += ["mean-shift@prompt", "linear@both", "linear@response", "mine"]
SEEDS = [4, 2]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def run(world: Path) -> tuple[dict[str, Any], Path]:
    """(results, run directory) of eight methods with two seeds."""
    out = world / "runs" / "full"
    domains = document()["domains"]
    domains["math"]["calibration"] = {"file": "data/math/calibration.jsonl", "items": 6}
    made = recipe(
        world, domains=domains, surgery=METHODS, seeds=SEEDS, plain_text="data/plain.jsonl"
    )
    return run_recipe(made, out), out


# --- what a run leaves --------------------------------------------------------------------------


def test_results_have_the_keys_of_the_contract(run: tuple[dict[str, Any], Path]) -> None:
    results, out = run
    text = (out / "results.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == results
    parsed = Results.model_validate_json(text)
    assert parsed.seeds == SEEDS
    assert list(parsed.methods) == IDS
    assert set(parsed.models) == {"base", "merged", *DOMAINS}
    assert len({m.fingerprint for m in parsed.models.values()}) == 4
    assert parsed.models["merged"].effective_weights == {"math": 0.5, "code": 0.5}  # type: ignore[union-attr]
    items = {name: d.items.model_dump() for name, d in parsed.domains.items()}
    rest = {"validation": 10, "test": 10, "cut": 0}
    assert items == {"math": {"calibration": 6} | rest, "code": {"calibration": 10} | rest}
    for domain in parsed.domains.values():
        for metric in (domain.metrics.loss, domain.metrics.kl, domain.metrics.agreement):
            assert list(metric.methods) == IDS
            for method in metric.methods.values():
                check_runs(method)
                assert method.interval is not None
                assert method.interval[0] <= method.mean <= method.interval[1]
            assert all(list(row.methods) == IDS for row in metric.by_entropy)
            for name in ("base", "expert", "merged"):
                mean = weighted(metric.by_entropy, name)
                assert mean == pytest.approx(getattr(metric, name), abs=1e-5)
            for name, method in metric.methods.items():
                rows = [(row.tokens, row.methods[name]) for row in metric.by_entropy]
                mean = sum(n * x for n, x in rows) / sum(n for n, _ in rows)
                assert mean == pytest.approx(method.mean, abs=1e-5)
        for measure in ("l1", "relative", "cosine"):
            drift = getattr(domain.bias, measure)
            assert list(drift.methods) == IDS
            parts = domain.bias.by_position
            assert weighted(parts.merged, measure) == pytest.approx(drift.merged, abs=1e-6)
            for method, runs in drift.methods.items():
                check_runs(runs)
                mean = weighted(parts.methods[method], measure)
                assert mean == pytest.approx(runs.mean, abs=1e-6)
        assert domain.metrics.kl.expert == 0
        assert domain.metrics.agreement.expert == 1
        assert domain.bias.l1.noise < 1e-3 < domain.bias.l1.merged
        assert domain.recommended == domain.validation.recommended
    for entry in parsed.methods.values():
        assert [[f.seed for f in fits] for fits in entry.fits.values()] == [SEEDS, SEEDS]
    assert parsed.methods["linear@both"].loss is None
    assert parsed.methods["mine"].rank == 16
    assert parsed.methods["standard-kl@both"].parameters == 2 * 4 * 32
    for row in parsed.cross_domain.values():
        assert set(row) == {"method", *DOMAINS, "plain"}
    assert set(parsed.timing) == set(parsed.peak_memory_bytes)


def weighted(rows: list[Any], name: str) -> float:
    """The mean over tokens of what bins hold."""
    return sum(r.tokens * getattr(r, name) for r in rows) / sum(r.tokens for r in rows)


def check_runs(runs: Any) -> None:
    assert len(runs.runs) == len(SEEDS)
    assert runs.mean == pytest.approx(np.mean(runs.runs))
    assert runs.std == pytest.approx(np.std(runs.runs, ddof=1))


def test_one_seed_has_no_spread(world: Path, tmp_path: Path) -> None:
    made = recipe(world, seeds=[0], surgery=[{"module": "mean-shift"}])
    results = run_recipe(made, tmp_path / "run")
    Results.model_validate(results)
    found = results["domains"]["math"]["metrics"]["kl"]["methods"]["mean-shift@both"]
    assert found["std"] is None
    assert found["runs"] == [found["mean"]]
    assert all(set(row) == {"method", *DOMAINS} for row in results["cross_domain"].values())


def test_the_files_of_a_run(run: tuple[dict[str, Any], Path]) -> None:
    results, out = run
    for domain in DOMAINS:
        for method in IDS:
            info = load_adapter(out / "adapters" / domain / method)[1]
            other = load_adapter(out / "adapters" / domain / ".seeds" / str(SEEDS[1]) / method)[1]
            assert (info.domain, info.method) == (domain, method)
            seeds = [i.record["calibration"]["seed"] for i in (info, other)]
            assert seeds == SEEDS
            for key, model in (("merged_fingerprint", "merged"), ("expert_fingerprint", domain)):
                assert info.record[key] == results["models"][model]["fingerprint"]
    assert load_model(out / "merged").config.hidden_size == 32
    again = load_recipe(out / "recipe.yaml")
    assert [m.id for m in again.methods()] == IDS
    assert Path(again.domains["math"].test.file).is_absolute()


def test_the_resolved_recipe_of_a_run_runs_again(run: tuple[dict[str, Any], Path]) -> None:
    results, out = run
    again, watch = watched(load_recipe(out / "recipe.yaml"), out)
    assert watch.done == []
    assert again == results


# --- the figures, worked out by hand from the files ---------------------------------------------


def states_of(out: Path, name: str) -> dict[str, Any]:
    return {k: v.numpy() for k, v in load_file(out / "states" / f"{name}.safetensors").items()}


def head_of(out: Path, model: str) -> Array:
    return load_file(out / "states" / "heads" / f"{model}.safetensors")["weight"].double().numpy()


def corrected(folder: Path, module: str, states: dict[str, Any]) -> Array:
    tensors = load_file(folder / "surgery.safetensors")
    params = {k: v.double().numpy() for k, v in tensors.items()}
    positions = np.concatenate([np.arange(n) for n in np.diff(states["offsets"])])
    return correct(module, params, states["hidden"].astype(np.float64), positions)


def scored(states: dict[str, Any]) -> list[int]:
    """Tokens whose successor belongs to a response."""
    bounds = states["offsets"]
    return [
        int(bounds[i]) + t
        for i, start in enumerate(states["response_starts"])
        for t in range(start - 1, bounds[i + 1] - bounds[i] - 1)
    ]


@pytest.mark.parametrize(("method", "module"), [("darts-l1@both", "darts"), ("mine", "darts"),
                                                ("linear@response", "linear")])  # fmt: skip
@pytest.mark.parametrize("domain", DOMAINS)
def test_figures_follow_from_the_files(
    run: tuple[dict[str, Any], Path], domain: str, method: str, module: str
) -> None:
    results, out = run
    found = results["domains"][domain]
    merged, expert = (states_of(out, f"{domain}/test/{m}") for m in ("merged", domain))
    index = scored(expert)
    assert 20 < len(index) < len(expert["ids"])
    targets = expert["ids"][np.asarray(index) + 1].astype(np.int64)
    wanted = expert["hidden"][index].astype(np.float64) @ head_of(out, domain).T

    def judged(hidden: Array) -> dict[str, float]:
        return fidelity(hidden[index] @ head_of(out, "merged").T, wanted, targets)

    plain = judged(merged["hidden"].astype(np.float64))
    base = states_of(out, f"{domain}/test/base")["hidden"][index].astype(np.float64)
    of_base = fidelity(base @ head_of(out, "base").T, wanted, targets)
    for metric in ("loss", "kl", "agreement"):
        assert found["metrics"][metric]["merged"] == pytest.approx(plain[metric], abs=1e-4)
        assert found["metrics"][metric]["base"] == pytest.approx(of_base[metric], abs=1e-4)
    shares = []
    for k, folder in enumerate((method, f".seeds/{SEEDS[1]}/{method}")):
        hidden = corrected(out / "adapters" / domain / folder, module, merged)
        after = judged(hidden)
        for metric in ("loss", "kl", "agreement"):
            run_value = found["metrics"][metric]["methods"][method]["runs"][k]
            assert run_value == pytest.approx(after[metric], abs=1e-4)
        drift = bias(hidden, expert["hidden"].astype(np.float64))
        for measure in ("l1", "relative", "cosine"):
            run_value = found["bias"][measure]["methods"][method]["runs"][k]
            assert run_value == pytest.approx(drift[measure].mean(), abs=1e-4)
        shares.append((plain["kl"] - after["kl"]) / plain["kl"])
    recovered = found["metrics"]["recovered"]["kl"][method]["runs"]
    assert recovered == pytest.approx(shares, abs=1e-3)


def test_cross_effects_follow_from_the_files(run: tuple[dict[str, Any], Path]) -> None:
    results, out = run
    method = results["cross_domain"]["code"]["method"]
    assert method == results["domains"]["code"]["validation"]["best"]
    states = {m: states_of(out, f"math/test/{m}") for m in ("merged", "math")}
    index = scored(states["math"])
    targets = states["math"]["ids"][np.asarray(index) + 1].astype(np.int64)
    wanted = states["math"]["hidden"][index].astype(np.float64) @ head_of(out, "math").T
    module = results["methods"][method]["module"]
    hidden = corrected(out / "adapters" / "code" / method, module, states["merged"])
    after = fidelity(hidden[index] @ head_of(out, "merged").T, wanted, targets)
    found = results["cross_domain"]["code"]["math"]
    for metric in ("loss", "kl"):
        before = results["domains"]["math"]["metrics"][metric]["merged"]
        assert found[metric]["uncorrected"] == pytest.approx(before, abs=1e-6)
        assert found[metric]["corrected"] == pytest.approx(after[metric], abs=1e-4)
    # Plain text has no expert: without correction it is its own reference.
    assert results["cross_domain"]["code"]["plain"]["kl"]["uncorrected"] == 0
    assert results["cross_domain"]["code"]["plain"]["kl"]["corrected"] > 0


# --- what is recommended ------------------------------------------------------------------------


def test_the_choice_looks_at_validation_alone(world: Path, tmp_path: Path) -> None:
    """A map learnt by heart is best where it was learnt, and worst on other text."""
    domains = document()["domains"]
    symbols = [{"prompt": "#" * (3 + i), "response": "@!" * (2 + i)} for i in range(6)]
    other = str(jsonl(tmp_path / "other.jsonl", symbols))
    for domain in domains.values():
        domain |= {"validation": domain["calibration"], "test": other}
    made = recipe(
        world,
        domains=domains,
        seeds=[0],
        surgery=[{"module": "linear", "ridge": 1e-6}, {"module": "mean-shift"}],
    )
    results = run_recipe(made, tmp_path / "run")
    for name in DOMAINS:
        domain = results["domains"][name]
        kl = domain["metrics"]["kl"]
        assert domain["recommended"] == "linear@both"
        assert kl["methods"]["linear@both"]["mean"] > kl["methods"]["mean-shift@both"]["mean"]
        assert kl["methods"]["linear@both"]["mean"] > kl["merged"]
        chosen = domain["validation"]["methods"]
        assert chosen["linear@both"]["mean"] < chosen["mean-shift@both"]["mean"]
        assert not chosen["linear@both"]["worse"]


def test_where_all_methods_harm_none_is_recommended(world: Path, tmp_path: Path) -> None:
    surgery = [
        {"module": "standard", "learning_rate": 9.0, "iterations": 1},
        {"module": "table", "learning_rate": 3.0, "iterations": 1},
    ]
    results = run_recipe(recipe(world, surgery=surgery, seeds=[0]), tmp_path / "run")
    for domain in results["domains"].values():
        assert domain["recommended"] == "__base__"
        chosen = domain["validation"]
        assert all(m["worse"] for m in chosen["methods"].values())
        best = min(chosen["methods"], key=lambda m: chosen["methods"][m]["mean"])
        assert chosen["best"] == best
        assert chosen["methods"][best]["mean"] > chosen["merged"]


# --- other recipes ------------------------------------------------------------------------------


def test_without_a_validation_file_the_last_fifth_is_set_aside(world: Path, tmp_path: Path) -> None:
    whole = prompts(12, "all of it")
    file = str(jsonl(tmp_path / "whole.jsonl", whole))
    domains = {"math": document()["domains"]["math"] | {"calibration": file}}
    del domains["math"]["validation"]
    results = run_recipe(recipe(world, domains=domains, seeds=[0]), tmp_path / "run")
    items = results["domains"]["math"]["items"]
    assert (items["calibration"], items["validation"]) == (10, 2)
    ids = states_of(tmp_path / "run", "math/validation/math")["ids"]
    text = tokenizer().decode(ids.tolist())
    inside = [f"user\n{p['prompt']}<|im_end|>" in text for p in whole]
    assert inside == [False] * 10 + [True] * 2


def test_too_few_prompts_are_named(world: Path, tmp_path: Path) -> None:
    domains = document()["domains"]
    domains["code"]["calibration"] = {"file": "data/code/calibration.jsonl", "items": 11}
    with pytest.raises(
        InputError, match=r"domains\.code\.calibration: 11 items wanted, 10 at hand"
    ):
        run_recipe(recipe(world, domains=domains), tmp_path / "run")
    single = str(jsonl(tmp_path / "one.jsonl", prompts(1)))
    domains = {"math": document()["domains"]["math"] | {"calibration": single, "validation": None}}
    with pytest.raises(InputError, match="leaves none for validation"):
        run_recipe(recipe(world, domains=domains), tmp_path / "run")


def test_sequences_cut_are_counted_and_told(world: Path, tmp_path: Path) -> None:
    long = [{"prompt": "x" * 80, "response": "y"}, *prompts(4, "more")]
    domains = document()["domains"]
    domains["code"]["test"] = str(jsonl(tmp_path / "long.jsonl", long))
    results, watch = watched(recipe(world, domains=domains, max_length=90), tmp_path / "run")
    assert [d["items"]["cut"] for d in results["domains"].values()] == [0, 1]
    of_prompts = [n for n in watch.notes if "the expert's loss" not in n]
    assert of_prompts == ["code: 1 sequences were cut at max_length"]


def test_a_merge_at_hand(world: Path, tmp_path: Path, run: tuple[dict[str, Any], Path]) -> None:
    folder = run[1] / "merged"
    made = recipe(world, merge={"folder": str(folder)}, surgery=[{"module": "mean-shift"}])
    results = run_recipe(made, tmp_path / "run")
    Results.model_validate(results)
    assert not (tmp_path / "run" / "merged").exists()
    merged = results["models"]["merged"]
    assert merged == {
        "fingerprint": run[0]["models"]["merged"]["fingerprint"],
        "source": str(folder),
    }


def test_a_lora_expert_is_written_out(world: Path, tmp_path: Path) -> None:
    folder = lora(tmp_path / "lora", llama(0))
    domains = document()["domains"]
    domains["math"]["expert"] = {"lora": str(folder)}
    made = recipe(world, domains=domains, surgery=[{"module": "mean-shift"}])
    results, watch = watched(made, tmp_path / "run")
    assert "models/math" in watch.done
    assert results["models"]["math"]["source"].endswith(f"LoRA {folder}")
    written = load_model(tmp_path / "run" / "models" / "math").state_dict()
    parts = load_file(folder / "adapter_model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    low, high = (parts[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    expected = llama(0).state_dict()[f"{name}.weight"] + 2 * high @ low  # alpha / r = 2
    torch.testing.assert_close(written[f"{name}.weight"], expected)
    assert results["models"]["merged"]["effective_weights"] == {"math": 0.5, "code": 0.5}
    assert watched(made, tmp_path / "run")[1].done == []


def test_a_rank_beyond_the_width_is_refused(world: Path, tmp_path: Path) -> None:
    made = recipe(world, surgery=[{"module": "darts", "rank": 33}])
    with pytest.raises(InputError, match="darts-ewl1@both: rank 33 exceeds the hidden size 32"):
        run_recipe(made, tmp_path / "run")


def test_a_model_of_another_width_is_refused(world: Path, tmp_path: Path) -> None:
    domains = document()["domains"]
    domains["code"]["expert"] = str(checkpoint(tmp_path / "wide", llama(0, hidden_size=64)))
    folder = {"folder": str(world / "math")}
    with pytest.raises(InputError, match="hidden sizes differ"):
        run_recipe(recipe(world, domains=domains, merge=folder), tmp_path / "run")


def test_a_model_gone_wrong_is_named(world: Path, tmp_path: Path) -> None:
    broken = shifted(llama(0), 9)
    broken.model.norm.weight[0] = math.nan
    domains = document()["domains"]
    domains["code"]["expert"] = str(checkpoint(tmp_path / "broken", broken))
    folder = {"folder": str(world / "math")}
    with pytest.raises(InputError, match=r"^model code: .*NaN"):
        run_recipe(recipe(world, domains=domains, merge=folder), tmp_path / "run")
