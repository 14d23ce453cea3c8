"""Merging: what survives it, every method that mergekit has, and wrong input."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from surgekit.errors import InputError, SurgekitError
from surgekit.merging import MergeResult, merge
from surgekit.models.loading import load_model

from .zoo import PAIR, TA, UNION, VOCAB, digest, entries, make_checkpoint, make_zoo, tensors


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_zoo(tmp_path_factory.mktemp("zoo"))


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


def test_a_folder_with_nothing_but_a_tokenizer(zoo: dict[str, Path], tmp_path: Path) -> None:
    AutoTokenizer.from_pretrained(str(zoo["chat"])).save_pretrained(str(tmp_path / "tokenizer"))
    out = merge(TA, tmp_path / "out", models=zoo, tokenizer_from=tmp_path / "tokenizer").folder
    assert digest(out)["tokenizer.json"] == digest(zoo["chat"])["tokenizer.json"]
    assert digest(out)["generation_config.json"] == digest(zoo["base"])["generation_config.json"]


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
        "models": entries(weight=([0, 1], 0.5), density=(0.5, 1)),
    }
    result = merge(config, tmp_path / "out", models=zoo, seed=7)
    _, front, text = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["tags"] == ["mergekit", "merge", "surgekit"]
    assert "| math | weight 0 to 1, density 0.5" in text
    assert "| code | weight 0.5, density 1" in text
    for word in ("dare_linear", "seed 7", result.mergekit):
        assert word in text


# --- every method -------------------------------------------------------------------------------

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


def one(name: Any, **more: Any) -> dict[str, Any]:
    return {**TA, "models": [{"model": name, "parameters": {"weight": 1, **more}}]}


BAD_CONFIGS: dict[str, tuple[Any, str]] = {
    "missing file": ("nowhere.yml", "not found: nowhere.yml"),
    "broken YAML": ("merge_method: linear\nmodels: [\n  a: }\n", "line 3: not YAML"),
    "two documents": ("merge_method: linear\n---\nmodels: []\n", "line 2: not YAML"),
    "no mapping": (
        "- merge_method: linear\n",
        "expected a mapping with merge_method and models, found a list",
    ),
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
    "twice the same": (
        {**TA, "models": PAIR + PAIR[:1], "parameters": {"weight": 1}},
        "listed twice",
    ),
    "no weight": ({**TA, "models": PAIR}, "Missing required parameter weight for .*math"),
    "density in percent": (
        {**one("math", density=50), "merge_method": "ties"},
        r"models\[0\].parameters.density: .* a share from 0 to 1, found 50; did you mean 0.5\?",
    ),
    "weights to nothing": (
        {"merge_method": "linear", "models": PAIR, "parameters": {"weight": 0}},
        "add up to 0",
    ),
    "no number": (one("math", weight="much"), "expected a number, found 'much'"),
    "unknown dtype": (
        {**one("math"), "out_dtype": "f8"},
        "out_dtype: expected one of float32, .* found 'f8'",
    ),
    "models are no list": ({**TA, "models": "math"}, "models: expected a list"),
    "parameters are no mapping": ({**TA, "parameters": 3}, "parameters: expected a mapping"),
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
        (no_weights, "expected weights, model.safetensors or .* found none"),
        (damaged, "truncated or damaged, not a whole safetensors file"),
        (one_tensor_short, "math: 1 weights .* are not in the files, e.g. model.norm.weight"),
        (lora, "found a LoRA"),
        (other_shape, "math: hidden_size is 16, that of base is 32"),
        (other_depth, "math: num_hidden_layers is 3, that of base is 2"),
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


def test_a_device_that_is_not_there(zoo: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"device 'nonsense': expected cpu, cuda"):
        merge(TA, tmp_path / "out", models=zoo, device="nonsense")


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
        ({**TA, "parameters": {"select_topk": 0.3}}, "parameters.select_topk: .* changes nothing"),
        ({**TA, "author": "me"}, "author: no key of a mergekit configuration; it is ignored"),
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
    assert {r.name for r in caplog.records} == {"surgekit.merging"}
    assert any(re.search(said, message) for message in caplog.messages)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**TA, "lambda": 0.3}, "lambda: .* put it under parameters"),
        ({**TA, "parameters": {"lamda": 0.3}}, r"parameters.lamda: .* did you mean 'lambda'"),
        (one("math", **{"lambda": 0.3}), r"models\[0\].parameters.lambda: .* for all models"),
    ],
)
def test_what_was_plainly_meant_and_would_not_happen_is_refused(
    config: dict[str, Any], said: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        merge(config, tmp_path / "out", models=zoo)
    assert not (tmp_path / "out").exists()


def test_quiet_is_quiet(
    zoo: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    merge(UNION, tmp_path / "quiet", models=zoo)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    merge(UNION, tmp_path / "loud", models=zoo, quiet=False)
    assert capfd.readouterr() == ("", "")  # no terminal, no bars
