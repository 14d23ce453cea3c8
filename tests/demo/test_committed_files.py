"""What the demonstration ships: its data is what the generators make, its recipes hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import generate_data
from surgekit.pipeline.preflight import preflight
from surgekit.recipe import load_recipe

DEMO = Path(generate_data.__file__).parent


def test_data_is_what_the_generators_make(tmp_path: Path) -> None:
    assert generate_data.main(["--out", str(tmp_path)]) == 0
    made = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*.jsonl")}
    shipped = {
        p.relative_to(DEMO / "data"): p.read_bytes()
        for p in (DEMO / "data").rglob("*.jsonl")
        if p.name != "train.jsonl"
    }
    assert made == shipped


@pytest.mark.parametrize("name", ["recipe.yaml", "full.yaml", "rank.yaml"])
def test_recipes_pass_the_preflight(name: str) -> None:
    findings = preflight(load_recipe(DEMO / name))
    told = [f for f in findings if f.level in ("error", "warning")]
    assert told == []


def test_short_recipe_has_the_four_methods_on_both() -> None:
    methods = [m.id for m in load_recipe(DEMO / "recipe.yaml").methods()]
    assert methods == ["mean-shift@both", "standard-l1@both", "darts-ewl1@both", "linear@both"]


def test_full_recipe_has_every_method_on_every_text() -> None:
    recipe = load_recipe(DEMO / "full.yaml")
    forms = ("mean-shift", "standard-l1", "standard-ewl1", "darts-ewl1", "linear")
    assert {m.id for m in recipe.methods()} == {
        f"{form}@{text}" for form in forms for text in ("prompt", "response", "both")
    }
    assert len(recipe.seeds) == 3


@pytest.mark.parametrize("domain", ["math", "code", "instruct"])
def test_experts_are_rank_8_bfloat16_and_small(domain: str) -> None:
    from safetensors import safe_open

    folder = DEMO / "experts" / domain
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["r"] == 8
    file = folder / "adapter_model.safetensors"
    assert file.stat().st_size <= 6_000_000
    with safe_open(str(file), framework="pt") as tensors:
        assert {tensors.get_slice(k).get_dtype() for k in tensors.keys()} == {"BF16"}  # noqa: SIM118
