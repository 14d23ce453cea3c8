"""Merging: the arithmetic against formulas written here, repeatability, and what survives."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from surgekit.errors import InputError, SurgekitError
from surgekit.merge_config import resolve_models
from surgekit.merging import MergeResult, merge, read_merge_config
from surgekit.models.loading import load_model, save_checkpoint

Array = npt.NDArray[np.float64]
Tensors = dict[str, Array]
VOCAB = 128


def make_checkpoint(
    folder: Path,
    seed: int,
    *,
    words: tuple[str, ...] = (),
    template: str | None = "{{ messages }}",
    layers: int = 2,
    hidden: int = 32,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A tiny random Llama with a word tokenizer (its own ``words`` last) and all side files."""
    vocabulary = ["<unk>", "<s>", "</s>"]
    vocabulary += [f"w{i}" for i in range(VOCAB - len(vocabulary) - len(words))] + list(words)
    inner = Tokenizer(WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=48,
            vocab_size=VOCAB,
            initializer_range=0.2,
        )
    )
    torch.nn.Module.to(model, dtype)
    # Otherwise all norms are 1 and no merge shows in them.
    for name, tensor in model.state_dict().items():
        if "norm" in name:
            tensor.add_(torch.randn_like(tensor) * 0.1)
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.25 + seed)
    save_checkpoint(model, tokenizer, folder)
    (folder / "tokenizer.model").write_bytes(b"sentencepiece of %d" % seed)
    return folder


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base and three experts; each has words and a template of its own."""
    root = tmp_path_factory.mktemp("zoo")
    return {
        name: make_checkpoint(root / name, seed, words=words, template=f"{name} {{{{ messages }}}}")
        for seed, (name, words) in enumerate(
            {
                "base": (),
                "math": ("plus", "minus", "sum"),
                "code": ("def", "class", "plus"),
                "chat": ("hi", "bye", "thanks"),
            }.items()
        )
    }


def tensors(folder: Path) -> Tensors:
    return {
        k: v.double().numpy()
        for file in sorted(folder.glob("*.safetensors"))
        for k, v in load_file(file).items()
    }


def entries(zoo: dict[str, Path], **parameters: Any) -> list[dict[str, Any]]:
    """mergekit's ``models`` for math and code; each parameter is a pair."""
    return [
        {"model": name, "parameters": {k: v[i] for k, v in parameters.items()}}
        for i, name in enumerate(("math", "code"))
    ]


def digest(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


# --- the arithmetic -----------------------------------------------------------------------------


def test_linear_is_the_weighted_mean(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {"merge_method": "linear", "models": entries(zoo, weight=(0.5, 1.5))}
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
        "models": entries(zoo, weight=(0.5, 2)),
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
        "models": entries(zoo, weight=weights),
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
    shared = {"parameters": {"normalize": False}, "models": entries(zoo, weight=(0.3, 0.7))}
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
        "models": entries(zoo, weight=weight),
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
    config = {"merge_method": "ties", "models": entries(zoo, weight=(1, 3))}
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
    assert yaml.safe_load((tmp_path / "out" / "mergekit_config.yml").read_text()) == result.config
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
        shutil.copytree(zoo[name], model, dirs_exist_ok=True)
        merge({"merge_method": "linear"}, tmp_path / name, models={"one": model})
    assert (
        digest(tmp_path / "math")["model.safetensors"]
        != (digest(tmp_path / "code")["model.safetensors"])
    )


UNION: dict[str, Any] = {
    "merge_method": "linear",
    "tokenizer": {"source": "union"},
    "parameters": {"weight": 1},
}


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


# --- what survives ------------------------------------------------------------------------------

SIDE_FILES = ("tokenizer.json", "tokenizer.model", "generation_config.json", "chat_template.jinja")


@pytest.mark.parametrize("method", ["task_arithmetic", "linear"])
def test_side_files_come_from_the_base_else_the_first(
    method: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    merge({"merge_method": method}, tmp_path / "out", models=zoo)
    donor = zoo["base" if method == "task_arithmetic" else "math"]
    assert {n: digest(tmp_path / "out")[n] for n in SIDE_FILES} == (
        {n: digest(donor)[n] for n in SIDE_FILES}
    )


def test_side_files_come_from_where_one_says(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {"merge_method": "task_arithmetic"}
    merge(config, tmp_path / "out", models=zoo, tokenizer_from=zoo["chat"])
    assert {n: digest(tmp_path / "out")[n] for n in SIDE_FILES} == (
        {n: digest(zoo["chat"])[n] for n in SIDE_FILES}
    )


def test_embeddings_of_missing_words_are_still_averaged(
    zoo: dict[str, Path], tmp_path: Path
) -> None:
    """mergekit takes them from ``base_model`` if there is one: none may be filled in here."""
    result = merge(UNION, tmp_path / "out", models=zoo)
    assert "base_model" not in result.config
    rows = []
    for folder in (zoo["math"], zoo["code"], tmp_path / "out"):
        row = AutoTokenizer.from_pretrained(str(folder)).get_vocab()["plus"]
        rows.append(tensors(folder)["model.embed_tokens.weight"][row])
    np.testing.assert_allclose(rows[2], (rows[0] + rows[1]) / 2, atol=1e-7)


@pytest.mark.parametrize(
    ("tokenizer", "size", "side"),
    [("base", VOCAB, "base"), ("union", VOCAB + 8, "base"), ("chat", VOCAB, "chat")],
)
def test_mergekit_s_own_tokenizer_stays(
    tokenizer: str, size: int, side: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    config = {"merge_method": "task_arithmetic", "tokenizer": {"source": tokenizer}}
    merge(config, tmp_path / "out", models=zoo)
    written = digest(tmp_path / "out")
    assert len(AutoTokenizer.from_pretrained(str(tmp_path / "out"))) == size
    assert written["generation_config.json"] == digest(zoo[side])["generation_config.json"]
    assert written["chat_template.jinja"] == digest(zoo[side])["chat_template.jinja"]
    assert "tokenizer.model" not in written
    assert load_model(tmp_path / "out").config.vocab_size == size


def test_a_template_kept_in_the_tokenizer_config(zoo: dict[str, Path], tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(zoo["base"], old)
    (old / "chat_template.jinja").unlink()
    file = old / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": "of old"}))
    config = {"merge_method": "linear", "tokenizer": {"source": str(zoo["base"])}}
    for name, more in (("plain", {}), ("retokenized", {"tokenizer": {"source": "base"}})):
        config = {"merge_method": "linear", "parameters": {"weight": 1}, **more}
        merge(config, tmp_path / name, models={"old": old, "math": zoo["math"]})
        tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / name))
        assert tokenizer.chat_template == "of old"


def test_a_chat_template_of_the_configuration(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {"merge_method": "linear", "chat_template": "the user said {{ messages }}"}
    merge(config, tmp_path / "out", models=zoo)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "the user said {{ messages }}"


def test_config_says_the_dtype_of_the_tensors(zoo: dict[str, Path], tmp_path: Path) -> None:
    models = {
        name: make_checkpoint(tmp_path / name, seed, dtype=dtype)
        for seed, (name, dtype) in enumerate({"a": torch.bfloat16, "b": torch.float16}.items())
    }
    merge({"merge_method": "linear"}, tmp_path / "out", models=models)
    with safe_open(str(tmp_path / "out" / "model.safetensors"), framework="pt") as file:
        assert file.get_slice("lm_head.weight").get_dtype() == "F32"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_code_is_copied_only_if_trusted(zoo: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(zoo["base"], tmp_path / "base")
    (tmp_path / "base" / "modeling.py").write_text("answer = 42\n")
    for trusted in (True, False):
        out = tmp_path / f"trusted-{trusted}"
        config = {"merge_method": "task_arithmetic"}
        merge(config, out, models=zoo, base=tmp_path / "base", trust_remote_code=trusted)
        assert (out / "modeling.py").exists() == trusted


def test_the_card(zoo: dict[str, Path], tmp_path: Path) -> None:
    config = {
        "merge_method": "dare_linear",
        "models": entries(zoo, weight=([0, 1], 0.5), density=(0.5, 1)),
    }
    result = merge(config, tmp_path / "out", models=zoo, seed=7)
    _, front, text = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["tags"] == ["mergekit", "merge", "surgekit"]
    assert "| math | weight 0 to 1, density 0.5" in text
    assert "| code | weight 0.5, density 1" in text
    for word in ("dare_linear", "seed 7", result.mergekit):
        assert word in text


# --- every method -------------------------------------------------------------------------------

PAIR = [{"model": "math"}, {"model": "code"}]
ODD_METHODS: dict[str, dict[str, Any]] = {
    "slerp": {"base_model": "math", "models": PAIR, "parameters": {"t": 0.3}},
    "nearswap": {"base_model": "math", "models": PAIR, "parameters": {"t": 0.3}},
    "arcee_fusion": {"base_model": "math", "models": PAIR},
    "nuslerp": {"models": PAIR, "parameters": {"weight": 1}},
    "passthrough": {
        "slices": [
            {"sources": [{"model": "math", "layer_range": [0, 2]}]},
            {"sources": [{"model": "code", "layer_range": [1, 2]}]},
        ]
    },
    "della": {"parameters": {"density": 0.5}},
    "della_linear": {"parameters": {"density": 0.5}},
}


def test_every_method_that_mergekit_has(zoo: dict[str, Path], tmp_path: Path) -> None:
    from mergekit.merge_methods import registered_methods

    for name in sorted(m.spec.name for m in registered_methods()):
        config = {"merge_method": name, "dtype": "float32", **ODD_METHODS.get(name, {})}
        if name == "passthrough":
            config["parameters"] = {"scale": 1}
        result = merge(config, tmp_path / name, models=zoo)
        model = load_model(result.folder)
        assert model.config.num_hidden_layers == (3 if name == "passthrough" else 2)
        assert set(result.effective_weights) >= {"math", "code"}, name
        json.dumps(result.effective_weights, allow_nan=False)


# --- wrong input --------------------------------------------------------------------------------

TA = {"merge_method": "task_arithmetic"}


def one(name: Any, **more: Any) -> dict[str, Any]:
    return {**TA, "models": [{"model": name, "parameters": {"weight": 1, **more}}]}


BAD_CONFIGS: dict[str, tuple[Any, str]] = {
    "missing file": ("nowhere.yml", "not found: nowhere.yml"),
    "broken YAML": ("merge_method: linear\nmodels: [\n  a: }\n", "line 3: broken YAML"),
    "two documents": ("merge_method: linear\n---\nmodels: []\n", "line 2: broken YAML"),
    "no mapping": ("- merge_method: linear\n", "expected a mapping of keys, found list"),
    "no method": ({"models": []}, "merge_method is missing"),
    "unknown method": ({"merge_method": "tie"}, "unknown merge_method 'tie'.*task_arithmetic"),
    "unknown name": (
        one("maths"),
        "'maths' is no local folder.*known names: base, chat, code, math",
    ),
    "unknown path": (
        one("./maths"),
        "expected at .*/maths, found nothing; known names: base, chat",
    ),
    "a file": (one(__file__), "expected at .*, found a file"),
    "LoRA notation": (one("math+loras/x"), "found a LoRA.*{lora: FOLDER}"),
    "LoRA mapping": (one({"model": "math", "lora": "loras/x"}), "found a LoRA"),
    "twice the same": ({**TA, "models": PAIR + PAIR[:1], "parameters": {"weight": 1}}, "Duplicate"),
    "no weight": ({**TA, "models": PAIR}, "Missing required parameter weight for .*math"),
    "density in percent": (
        {**one("math", density=50), "merge_method": "ties"},
        "density 50 of math .*: expected a share from 0 to 1",
    ),
    "weights to nothing": (
        {"merge_method": "linear", "models": PAIR, "parameters": {"weight": 0}},
        "add up to 0",
    ),
    "no number": (one("math", weight="much"), "valid number.*found 'much'"),
    "unknown dtype": ({**one("math"), "out_dtype": "f8"}, 'Unimplemented dtype "f8"'),
    "models are no list": ({**TA, "models": "math"}, "models: Input should be a valid list"),
    "parameters are no mapping": ({**TA, "parameters": 3}, "parameters: Input should be"),
    "both kinds": ({**one("math"), "slices": [{"sources": []}]}, "Exactly one of"),
    "slerp of two without base": (
        {"merge_method": "slerp", "models": PAIR, "parameters": {"t": 0.5}},
        "slerp takes 2 models.*name one of them as base_model",
    ),
    "broken template": ({**one("math"), "chat_template": "no such"}, "chat_template: expected"),
}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("config", "message"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_wrong_configurations(
    config: Any, message: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"(?s){message}") as caught:
        merge(config, tmp_path / "out", models=zoo)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.glob("*out*")), "something half-written stayed"


def no_config(folder: Path) -> Path:
    (folder / "config.json").unlink()
    return folder


def no_weights(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    return folder


def damaged(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes(b"\xff" * 50)
    return folder


def one_tensor_short(folder: Path) -> Path:
    found = load_file(folder / "model.safetensors")
    del found["model.norm.weight"]
    save_file(found, folder / "model.safetensors", {"format": "pt"})
    return folder


def lora(folder: Path) -> Path:
    (folder / "adapter_config.json").write_text("{}")
    return no_config(folder)


def other_shape(folder: Path) -> Path:
    shutil.rmtree(folder)
    return make_checkpoint(folder, 9, hidden=16)


def other_depth(folder: Path) -> Path:
    shutil.rmtree(folder)
    return make_checkpoint(folder, 9, layers=3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_config, "expected a model folder, found no config.json"),
        (no_weights, "Unable to find model files"),
        (damaged, "damaged safetensors"),
        (one_tensor_short, "model.norm.weight required but not present"),
        (lora, "found a LoRA"),
        (other_shape, "size mismatch for"),
        (other_depth, "same number of layers"),
    ],
)
def test_wrong_models(
    spoil: Callable[[Path], Path], message: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(zoo["math"], tmp_path / "bad")
    spoil(tmp_path / "bad")
    with pytest.raises(InputError, match=message) as caught:
        merge(TA, tmp_path / "out", models={**zoo, "math": tmp_path / "bad"})
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.glob("*out*")), "something half-written stayed"


def test_a_base_is_asked_for(zoo: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task_arithmetic needs a base model"):
        merge(TA, tmp_path / "out", models={"math": zoo["math"]})
    with pytest.raises(InputError, match="lists no models"):
        merge(TA, tmp_path / "out", base=zoo["base"])


def test_the_output_folder_must_be_empty(zoo: dict[str, Path], tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "model-00001-of-00002.safetensors").write_text("old")
    with pytest.raises(InputError, match=r"found model-00001-of-00002\.safetensors"):
        merge(TA, full, models=zoo)
    assert [f.name for f in full.iterdir()] == ["model-00001-of-00002.safetensors"]
    with pytest.raises(InputError, match="found a file"):
        merge(TA, full / "model-00001-of-00002.safetensors", models=zoo)
    (tmp_path / "empty").mkdir()
    assert merge(TA, tmp_path / "empty", models=zoo).folder.joinpath("config.json").is_file()


def test_a_tokenizer_is_expected(zoo: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tokenizer_from"):
        merge(TA, tmp_path / "out", models=zoo, tokenizer_from=tmp_path)


@pytest.mark.parametrize(
    "refusal",
    [
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: full (os error 28)"),
    ],
)
def test_a_full_disk_is_not_blamed_on_the_merge(
    refusal: Exception, zoo: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mergekit.merge

    def fill_the_disk(*_: Any, **__: Any) -> None:
        raise refusal

    monkeypatch.setattr(mergekit.merge, "run_merge", fill_the_disk)
    with pytest.raises(SurgekitError, match=f"cannot write {tmp_path}/out: No space left"):
        merge(TA, tmp_path / "out", models=zoo)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**TA, "lambda": 0.3}, "lambda: no key of .* belongs under parameters"),
        ({**TA, "parameters": {"lamda": 0.3}}, r"parameters.lamda: .* no such parameter .*lambda"),
        (one("math", **{"lambda": 0.3}), r"models\[0\].parameters.lambda: not read per model"),
    ],
)
def test_what_mergekit_passes_over_is_said(
    config: dict[str, Any],
    said: str,
    zoo: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    result: MergeResult = merge(config, tmp_path / "out", models=zoo)
    assert result.effective_weights["math"] == 1.0
    assert [r.name for r in caplog.records] == ["surgekit.merging"]
    assert re.search(said, caplog.messages[0])


def test_quiet_is_quiet(
    zoo: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    merge(UNION, tmp_path / "quiet", models=zoo)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    merge(UNION, tmp_path / "loud", models=zoo, quiet=False)
    assert "permutations" in capfd.readouterr().err


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
