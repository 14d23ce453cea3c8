"""Merging: the arithmetic against formulas written here, defaults, and repeatability."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from surgekit.merging import merge, read_merge_config
from surgekit.merging.config import resolve_models
from surgekit.models.loading import load_model

from .zoo import UNION, Array, digest, entries, make_zoo, tensors


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_zoo(tmp_path_factory.mktemp("zoo"))


# --- the arithmetic -----------------------------------------------------------------------------


def test_linear_is_the_weighted_mean(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {"merge_method": "linear", "models": entries(weight=(0.5, 1.5))}
    result = merge(config, tmp_path / "out", models=zoo)
    math, code = tensors(zoo["math"]), tensors(zoo["code"])
    for name, merged in tensors(tmp_path / "out").items():
        np.testing.assert_allclose(merged, 0.25 * math[name] + 0.75 * code[name], atol=1e-7)
    assert result.effective_weights == {"math": 0.25, "code": 0.75}
    assert set(tensors(tmp_path / "out")) == set(math)


def test_task_arithmetic_adds_weighted_task_vectors(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {
        "merge_method": "task_arithmetic",
        "parameters": {"lambda": 0.4},
        "models": entries(weight=(0.5, 2)),
    }
    result = merge(config, tmp_path / "out", models=zoo)
    base, math, code = (tensors(zoo[n]) for n in ("base", "math", "code"))
    for name, merged in tensors(tmp_path / "out").items():
        expected = base[name] + 0.2 * (math[name] - base[name]) + 0.8 * (code[name] - base[name])
        np.testing.assert_allclose(merged, expected, atol=3e-7)
    assert result.effective_weights == pytest.approx({"math": 0.2, "code": 0.8})


def trimmed(delta: Array, density: float) -> Array:
    kept = np.argsort(-np.abs(delta).ravel(), kind="stable")[: max(1, int(density * delta.size))]
    mask = np.zeros(delta.size)
    mask[kept] = 1
    return delta * mask.reshape(delta.shape)


def elected(deltas: list[Array], weights: tuple[float, ...], normalize: bool) -> Array:
    """TIES after the trimming: the sum over the models that share the winning sign."""
    weighted = np.stack([w * d for w, d in zip(weights, deltas, strict=True)])
    winner = np.where(weighted.sum(0) >= 0, 1, -1)
    agree = np.sign(weighted) == winner
    total = (weighted * agree).sum(0)
    if not normalize:
        return total
    share = sum(w * a for w, a in zip(weights, agree, strict=True))
    return total / np.where(share == 0, 1, share)


def test_ties_trims_votes_and_averages(zoo: dict[str, Path], tmp_path: Path) -> None:
    weights = (1.0, 0.6)
    config = {
        "merge_method": "ties",
        "parameters": {"lambda": 0.5, "density": 0.4},
        "models": entries(weight=weights),
    }
    result = merge(config, tmp_path / "out", models=zoo)
    base, math, code = (tensors(zoo[n]) for n in ("base", "math", "code"))
    for name, merged in tensors(tmp_path / "out").items():
        deltas = [trimmed(expert[name] - base[name], 0.4) for expert in (math, code)]
        expected = base[name] + 0.5 * elected(deltas, weights, normalize=True)
        np.testing.assert_allclose(merged, expected, atol=3e-7, err_msg=name)
    math_weight = result.effective_weights["math"]
    assert math_weight["weight"] == pytest.approx(0.5 * 1.0 / 1.6)
    assert math_weight["density"] == 0.4
    assert "share `density`" in math_weight["note"]
    assert "majority" in math_weight["note"]


@pytest.mark.parametrize(
    ("dare", "plain"), [("dare_linear", "task_arithmetic"), ("dare_ties", "ties")]
)
def test_dare_at_density_one_drops_nothing(
    dare: str, plain: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    shared = {"parameters": {"normalize": False}, "models": entries(weight=(0.3, 0.7))}
    merge({"merge_method": dare, **shared}, tmp_path / "dare", models=zoo)
    merge({"merge_method": plain, **shared}, tmp_path / "plain", models=zoo)
    assert (
        digest(tmp_path / "dare")["model.safetensors"]
        == (digest(tmp_path / "plain")["model.safetensors"])
    )


def test_dare_drops_entries_and_keeps_the_l1_norm(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {
        "merge_method": "dare_linear",
        "models": [{"model": "math", "parameters": {"weight": 1, "density": 0.3}}],
    }
    result = merge(config, tmp_path / "out", models=zoo)
    base, math = tensors(zoo["base"]), tensors(zoo["math"])
    name = "model.embed_tokens.weight"
    delta = tensors(tmp_path / "out")[name] - base[name]
    assert np.mean(delta != 0) == pytest.approx(0.3, abs=0.03)
    assert np.abs(delta).sum() == pytest.approx(np.abs(math[name] - base[name]).sum(), rel=1e-4)
    note = result.effective_weights["math"]["note"]
    assert "probability `density`" in note
    assert "L1 norm" in note


# Weights that mergekit resolves by filter, by gradient, by default and by normalising.
RESOLVED: list[tuple[str, dict[str, Any], tuple[Any, Any]]] = [
    ("linear", {}, (1, 3)),
    ("linear", {"normalize": False}, (0.2, 0.3)),
    ("linear", {}, ([{"filter": "mlp", "value": 3}, {"value": 1}], 1)),
    ("task_arithmetic", {"lambda": 0.5, "normalize": True}, (1, 3)),
    ("task_arithmetic", {"lambda": 0.5}, ([0.0, 1.0], 0.25)),
    ("task_arithmetic", {"lambda": [{"filter": "self_attn", "value": 2}, {"value": 1}]}, (1, 1)),
]


@pytest.mark.parametrize(("method", "parameters", "weight"), RESOLVED)
def test_effective_weights_are_those_found_in_the_tensors(
    method: str,
    parameters: dict[str, Any],
    weight: tuple[Any, Any],
    zoo: dict[str, Path],
    tmp_path: Path,
) -> None:
    config = {
        "merge_method": method,
        "parameters": parameters,
        "models": entries(weight=weight),
    }
    said = merge(config, tmp_path / "out", models=zoo).effective_weights
    origin = tensors(zoo["base"]) if method != "linear" else None
    math, code = tensors(zoo["math"]), tensors(zoo["code"])
    found = []
    for name, merged in tensors(tmp_path / "out").items():
        start = origin[name] if origin else np.zeros_like(merged)
        parts = np.stack([(e[name] - start).ravel() for e in (math, code)], axis=1)
        found.append(np.linalg.lstsq(parts, (merged - start).ravel(), rcond=None)[0])
    for i, name in enumerate(("math", "code")):
        low, high = np.min(found, axis=0)[i], np.max(found, axis=0)[i]
        if isinstance(said[name], dict):
            assert said[name] == pytest.approx({"min": low, "max": high}, abs=1e-5)
            assert high - low > 0.1
        else:
            assert (said[name], said[name]) == pytest.approx((low, high), abs=1e-5)


def test_ties_weight_holds_where_all_agree(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {"merge_method": "ties", "models": entries(weight=(1, 3))}
    said = merge(config, tmp_path / "out", models=zoo).effective_weights
    base, math, code = (tensors(zoo[n]) for n in ("base", "math", "code"))
    for name, merged in tensors(tmp_path / "out").items():
        first, second = math[name] - base[name], code[name] - base[name]
        agree = np.sign(first) == np.sign(second)
        expected = said["math"]["weight"] * first + said["code"]["weight"] * second
        np.testing.assert_allclose((merged - base[name])[agree], expected[agree], atol=3e-7)


def test_no_fixed_weight_is_said_to_be_none(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {
        "merge_method": "slerp",
        "base_model": "math",
        "models": [{"model": "math"}, {"model": "code"}],
        "parameters": {"t": [{"filter": "mlp", "value": 1}, {"value": 0}]},
    }
    result = merge(config, tmp_path / "out", models=zoo)
    math, code = tensors(zoo["math"]), tensors(zoo["code"])
    for name, merged in tensors(tmp_path / "out").items():
        expected = code[name] if "mlp" in name else math[name]
        np.testing.assert_allclose(merged, expected, atol=1e-6, err_msg=name)
    assert result.effective_weights["code"] == {
        "note": "slerp has no fixed weight per model",
        "parameters": config["parameters"],
    }


# --- what a configuration may leave out ---------------------------------------------------------


def test_the_recipe_s_short_form(zoo: dict[str, Path], tmp_path: Path) -> None:
    short = "{merge_method: task_arithmetic, parameters: {lambda: 0.5}, out_dtype: bfloat16}"
    result = merge(short, tmp_path / "out", models=zoo)
    assert result.effective_weights == {"math": 0.5, "code": 0.5, "chat": 0.5}
    assert result.config["base_model"] == str(zoo["base"])
    assert [m["model"] for m in result.config["models"]] == [
        str(zoo[n]) for n in ("math", "code", "chat")
    ]
    record = yaml.safe_load((tmp_path / "out" / "mergekit_config.yml").read_text())
    assert record["base_model"] == "base"
    assert [m["model"] for m in record["models"]] == ["math", "code", "chat"]
    assert load_model(tmp_path / "out").dtype == torch.bfloat16


def test_a_weight_for_all_is_not_overruled(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {"merge_method": "task_arithmetic", "parameters": {"weight": 0.25}}
    result = merge(config, tmp_path / "out", models={"math": zoo["math"]}, base=zoo["base"])
    assert result.effective_weights == {"math": 0.25}


def test_listed_models_are_left_as_they_are(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {
        "merge_method": "task_arithmetic",
        "base_model": "math",
        "models": [{"model": "code", "parameters": {"weight": 0.5}}],
    }
    result = merge(config, tmp_path / "out", models=zoo, base=zoo["base"])
    assert result.config["models"] == [{"model": str(zoo["code"]), "parameters": {"weight": 0.5}}]
    assert result.config["base_model"] == str(zoo["math"])
    assert config["base_model"] == "math"


def test_base_model_changes_no_linear_merge(zoo: dict[str, Path], tmp_path: Path) -> None:
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    models = [
        {"model": str(zoo[name]), "parameters": {"weight": weight}}
        for name, weight in (("code", 1.0), ("math", 0.4), ("base", 0.2))
    ]
    config = {"merge_method": "linear", "models": models}
    ours = merge(config, tmp_path / "ours", base=zoo["chat"])
    options = MergeOptions(write_model_card=False, quiet=True)
    run_merge(MergeConfiguration.model_validate(config), str(tmp_path / "raw"), options)
    assert ours.config["base_model"] == str(zoo["code"])
    assert (
        digest(tmp_path / "ours")["model.safetensors"]
        == (digest(tmp_path / "raw")["model.safetensors"])
    )


def test_folders_beside_the_yaml_file(zoo: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(zoo["math"], tmp_path / "here" / "experts" / "math")
    file = tmp_path / "here" / "merge.yml"
    file.write_text(
        "merge_method: task_arithmetic\n"
        f"base_model: {zoo['base']}\n"
        "models: [{model: experts/math, parameters: {weight: 1}}]\n"
    )
    result = merge(file, tmp_path / "out")
    assert result.config["models"][0]["model"] == str(tmp_path / "here" / "experts" / "math")
    assert result.effective_weights == {"experts/math": 1.0}


def test_folder_names_that_mergekit_would_take_apart(zoo: dict[str, Path], tmp_path: Path) -> None:
    odd = tmp_path / "v1+lora@main"
    shutil.copytree(zoo["math"], odd)
    merge({"merge_method": "linear"}, tmp_path / "out", models={"math": odd})
    np.testing.assert_allclose(
        tensors(tmp_path / "out")["lm_head.weight"], tensors(odd)["lm_head.weight"], atol=1e-7
    )


def test_a_cached_hub_id_offline(
    zoo: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "hub" / "models--acme--math"
    shutil.copytree(zoo["math"], repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config = {"merge_method": "linear", "models": [{"model": "acme/math@main"}]}
    config["parameters"] = {"weight": 1}
    result = merge(config, tmp_path / "out")
    assert result.effective_weights == {"acme/math@main": 1.0}
    assert result.config["models"][0]["model"] == str(repo / "snapshots" / commit)
    record = yaml.safe_load((tmp_path / "out" / "mergekit_config.yml").read_text())
    assert record["models"][0]["model"] == "acme/math@main"


def test_names_are_resolved_wherever_mergekit_has_models(zoo: dict[str, Path]) -> None:
    def written(name: Callable[[str], Any]) -> dict[str, Any]:
        tokens = {
            "model": {"source": name("math")},
            "<s>": {"source": {"kind": "model_token", "model": name("code"), "token_id": 3}},
            "</s>": {"source": {"kind": "zero"}},
        }
        sources = [{"model": name("math"), "layer_range": [0, 1], "parameters": {"model": "math"}}]
        return {
            "base_model": name("base"),
            "models": [{"model": name("math")}],
            "slices": [{"base_model": name("code"), "sources": sources}],
            "modules": {"text": {"models": [{"model": name("chat")}]}},
            "tokenizer_source": "union",
            "tokenizer": {"source": "base", "tokens": tokens},
        }

    config = written(str)
    names = resolve_models(config, zoo, Path("/nowhere"))
    assert config == written(lambda name: str(zoo[name]))
    assert names == {str(folder): name for name, folder in zoo.items()}


def test_reading_leaves_the_mapping_alone() -> None:
    given = {"merge_method": "linear", "models": ({"model": Path("/a/b")},)}
    read = read_merge_config(given)
    assert read == {"merge_method": "linear", "models": [{"model": "/a/b"}]}
    read["models"][0]["model"] = "changed"
    assert given["models"][0]["model"] == Path("/a/b")


# --- repeatable ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dare_linear", "dare_ties", "della"])
def test_same_seed_same_bytes(method: str, zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {"merge_method": method, "parameters": {"density": 0.5}}
    for start, (name, seed) in enumerate((("first", 3), ("again", 3), ("other", 4))):
        torch.manual_seed(start)
        merge(config, tmp_path / name, models=zoo, seed=seed)
    assert digest(tmp_path / "first") == digest(tmp_path / "again")
    assert (
        digest(tmp_path / "first")["model.safetensors"]
        != (digest(tmp_path / "other")["model.safetensors"])
    )


def test_random_state_and_logging_are_the_caller_s(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {"merge_method": "dare_linear", "parameters": {"density": 0.5}}

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    def start() -> None:
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)

    start()
    expected = draw()
    start()
    before = (list(logging.getLogger().handlers), logging.root.manager.disable)
    merge(config, tmp_path / "out", models=zoo)
    assert draw() == expected
    assert (logging.getLogger().handlers, logging.root.manager.disable) == before


def test_an_overwritten_checkpoint_is_read_anew(zoo: dict[str, Path], tmp_path: Path) -> None:
    model = tmp_path / "model"
    for name in ("math", "code"):
        # A new file, not new bytes in the old one, which an old memory map would show.
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(zoo[name], model)
        merge({"merge_method": "linear"}, tmp_path / name, models={"one": model})
    assert (
        digest(tmp_path / "math")["model.safetensors"]
        != (digest(tmp_path / "code")["model.safetensors"])
    )


def test_the_order_of_mergekit_s_set_does_not_matter(
    zoo: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergekit.config import MergeConfiguration

    listed = MergeConfiguration.referenced_models
    for name, backwards in (("forth", False), ("back", True)):

        def in_that_order(self: Any, backwards: bool = backwards) -> list[Any]:
            return sorted(listed(self), key=str, reverse=backwards)

        monkeypatch.setattr(MergeConfiguration, "referenced_models", in_that_order)
        merge(UNION, tmp_path / name, models=zoo)
        merge({"merge_method": "karcher"}, tmp_path / f"{name}-karcher", models=zoo)
    assert digest(tmp_path / "forth") == digest(tmp_path / "back")
    assert digest(tmp_path / "forth-karcher") == digest(tmp_path / "back-karcher")


SCRIPT = """
import json, sys
import surgekit.merging
assert not [m for m in sys.modules if m.startswith("mergekit")], "merging is not light to import"
out, models, union = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
for name, config in {
    "union": union,
    "linear": {"merge_method": "linear"},
    "nuslerp": {"merge_method": "nuslerp", "models": [
        {"model": m, "parameters": {"weight": 1}} for m in ("math", "code")]},
    "dare": {"merge_method": "dare_ties", "parameters": {"density": 0.5}},
}.items():
    surgekit.merging.merge(config, out + "/" + name, models=models)
"""


def test_same_folders_whatever_the_hash_seed(zoo: dict[str, Path], tmp_path: Path) -> None:
    arguments = [json.dumps({k: str(v) for k, v in zoo.items()}), json.dumps(UNION)]
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / seed), *arguments],
            env=environment,
            check=True,
        )
    for name in ("union", "linear", "nuslerp", "dare"):
        first, second = digest(tmp_path / "1" / name), digest(tmp_path / "2" / name)
        assert {k for k in first | second if first.get(k) != second.get(k)} == set(), name


# --- what is said -------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [False, True])
def test_nothing_but_mergekit_s_own_log_gets_out(
    zoo: dict[str, Path], tmp_path: Path, refused: bool
) -> None:
    """No bars where stderr is a file, and no warnings of libraries, quiet or not."""
    models = [{"model": str(zoo[n]), "parameters": {"weight": 1.0}} for n in ("math", "code")]
    config = {"merge_method": "linear", "models": models, "tokenizer": {"source": "union"}}
    config |= {"parameters": {"normalize": "perhaps"}} if refused else {}
    (tmp_path / "m.yml").write_text(yaml.safe_dump(config))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "surgekit", "merge", "m.yml", "out"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (2 if refused else 0), done.stderr
    for word in ("Warning", "deprecated", "%|", "it/s", "\r", "[transformers]"):
        assert word not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == int(refused), done.stderr


def test_bars_are_drawn_on_a_terminal(
    zoo: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    config = {"merge_method": "linear", "models": entries(weight=(1, 1))}
    for quiet in (False, True):
        seen = Terminal()
        monkeypatch.setattr(sys, "stderr", seen)
        merge(config, tmp_path / f"out-{quiet}", models=zoo, quiet=quiet)
        assert ("%|" in seen.getvalue()) is not quiet
