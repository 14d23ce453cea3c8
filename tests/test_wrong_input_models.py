"""Damaged models: refused by every verb that takes one, with the file and the way out in the words.

Nothing that lies in a checkpoint is run, and none of its weights is made up.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from surgekit.cli import run as command

from .runs import make_world, sound
from .sources import edit, lora
from .tiny import llama, tokenizer
from .wrong import (
    TEST,
    WEIGHTS,
    damage_models,
    drift,
    expect_short,
    fit,
    linear_of,
    math_with,
    refused,
    seen,
    write_recipe,
)

DAMAGED = (f"{WEIGHTS}: truncated or damaged", "fetch it again")

MODELS: dict[str, tuple[str, ...]] = {
    "truncated": DAMAGED,
    "header-too-long": DAMAGED,
    "header-no-json": DAMAGED,
    "zero-bytes": DAMAGED,
    "eight-bytes": DAMAGED,
    "offsets-out": DAMAGED,
    "overlap": DAMAGED,
    "dtype-unknown": DAMAGED,
    "shape-lies": DAMAGED,
    "no-weights": ("no-weights: expected weights, model.safetensors", "found none"),
    "shards-missing": ("shards-missing: 1 of 1 files of weights are missing", "model-9.safe"),
    "index-broken": ("model.safetensors.index.json: expected an index of weights as JSON",),
    "config-broken": ("config.json: expected model config as JSON",),
    "config-empty": ("config.json: expected model config as JSON",),
    "config-list": ("config.json: expected model config, a JSON object, found a list",),
    "config-binary": ("config.json: model config expected as UTF-8 text, found UTF-16",),
    "config-unknown": ("zork",),
    "config-remote": ("it needs Python code", "none was run", "--trust-remote-code"),
    "pickle": ("pickle", "not tensors alone", "nothing of it was run"),
    "nan-unused": ("model.embed_tokens.weight", "NaN or infinity"),
    "nan-head": ("lm_head.weight", "NaN or infinity"),
    "infinite": ("model.layers.1.mlp.down_proj.weight", "NaN or infinity"),
}

LOADED_ONLY: dict[str, tuple[str, ...]] = {
    "config-encoder": ("config-encoder",),
    "config-other-size": ("should be (32, 64)", "found (32, 48)"),
    "tokenizer-none": ("expected a tokenizer, found no tokenizer.json", "copy the tokenizer"),
    "tokenizer-broken": ("tokenizer.json: expected a tokenizer as JSON",),
    "tokenizer-list": ("tokenizer.json: expected a tokenizer, a JSON object, found a list",),
}

LORAS: dict[str, tuple[str, ...]] = {
    "lora-no-config": ("lora-no-config", "adapter_config.json"),
    "lora-broken": ("adapter_config.json: expected a PEFT configuration as JSON",),
    "lora-list": ("expected a PEFT configuration, a JSON object, found a list",),
    "lora-no-weights": ("found no adapter_model in it",),
    "lora-truncated": ("adapter_model.safetensors: truncated or damaged",),
    "lora-rank-0": ("rank 0", "rank 4", "do not belong together"),
    "lora-rank-8": ("rank 8", "rank 4", "do not belong together"),
    "lora-wide": ("does not fit", "32", "64"),
    "lora-deep": ("of another model", "model.layers.2."),
    "lora-nan": ("NaN",),
    "lora-kind": ("found peft_type 'X'", "fold it with PEFT"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_world(tmp_path_factory.mktemp("world"))
    damage_models(root)
    _damage_tokenizers(root)
    _damage_loras(root)
    return root


def _damage_tokenizers(root: Path) -> None:
    def copy(name: str) -> Path:
        shutil.copytree(root / "code", root / name)
        return root / name

    folder = copy("tokenizer-none")
    for file in [*folder.glob("token*"), *folder.glob("*.jinja")]:
        file.unlink()
    (copy("tokenizer-broken") / "tokenizer.json").write_text("{")
    (copy("tokenizer-list") / "tokenizer.json").write_text("[]")
    file = copy("other-ids") / "tokenizer.json"
    document = json.loads(file.read_text())
    ids = document["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    file.write_text(json.dumps(document))
    longer = tokenizer()
    longer.add_tokens(["zzzzzz"])
    longer.save_pretrained(str(copy("longer")))
    other_end = tokenizer(template=None)
    other_end.eos_token = "<|endoftext|>"
    other_end.save_pretrained(str(copy("other-end")))


def _damage_loras(root: Path) -> None:
    lora(root / "lora", llama(0))

    def copy(name: str) -> Path:
        shutil.copytree(root / "lora", root / name)
        return root / name

    (copy("lora-no-config") / "adapter_config.json").unlink()
    (copy("lora-broken") / "adapter_config.json").write_text("{")
    (copy("lora-list") / "adapter_config.json").write_text("[]")
    (copy("lora-no-weights") / "adapter_model.safetensors").unlink()
    file = copy("lora-truncated") / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    edit(copy("lora-rank-0") / "adapter_config.json", r=0)
    edit(copy("lora-rank-8") / "adapter_config.json", r=8)
    edit(copy("lora-kind") / "adapter_config.json", peft_type="X")
    file = copy("lora-nan") / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[sorted(tensors)[0]][0, 0] = float("nan")
    save_file(tensors, file)
    lora(root / "lora-wide", llama(0, hidden_size=64))
    lora(root / "lora-deep", llama(0, num_hidden_layers=3))


def run_refused(root: Path, capsys: pytest.CaptureFixture[str], name: str) -> str:
    """What ``run`` says of a recipe that it refuses, in the words of ``check`` where that can see.

    What only the work itself finds may leave a run directory, and nothing half-written in it.
    """
    before = seen(root)
    assert command(["check", name]) in (0, 2)
    found = capsys.readouterr().out
    assert command(["run", name, "--out", "new", "-q"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    expect_short(said.err)
    if (root / "new").exists():
        sound(root / "new")
        shutil.rmtree(root / "new")
    else:
        assert f"error: {said.err.removeprefix('surgekit: ')}" in found
    assert seen(root) == before
    return said.err


@pytest.mark.parametrize("name", MODELS | LOADED_ONLY)
def test_a_damaged_model(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(root)
    words = (MODELS | LOADED_ONLY)[name]
    refused(root, capsys, drift(merged=name), *words)
    if name != "tokenizer-none":  # an expert is read with the merged model's
        refused(root, capsys, drift(expert=name), *words)
        refused(root, capsys, fit(expert=name), *words)
        write_recipe(root, "model.yaml", **math_with(expert=f"./{name}"))
        said = run_refused(root, capsys, "model.yaml")
        assert name in said or "domains.math.expert: " in said
    if name in MODELS:
        (root / "m.yml").write_text(linear_of("./code", f"./{name}"))
        # Of two models that are not of one kind it is said first that they are not.
        strange = name in ("config-unknown", "config-remote")
        refused(root, capsys, "merge m.yml new", *((name,) if strange else words))
    assert not (root / "code-has-run").exists()


@pytest.mark.parametrize("name", LORAS)
def test_a_damaged_lora(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(root)
    base = "" if name == "lora-no-config" else "--base base"
    refused(root, capsys, drift(expert=name, more=base), name)
    refused(root, capsys, fit(expert=name, more=base), name)
    write_recipe(root, "lora.yaml", **math_with(expert={"lora": f"./{name}"}))
    said = run_refused(root, capsys, "lora.yaml")
    assert "domains.math.expert: " in said
    assert all(word in said for word in LORAS[name]), said
    (root / "m.yml").write_text(linear_of("./code", f"./{name}"))
    refused(root, capsys, "merge m.yml new", name)


def test_a_lora_needs_a_base_and_takes_the_one_that_is_given(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    refused(root, capsys, drift(expert="lora"), "names no base model", "--base")
    assert command([*drift(expert="lora", more="--base base").split(), "-q"]) == 0
    refused(root, capsys, drift(expert="lora", more="--base none"), "none")


GGUF: dict[str, bytes] = {
    "empty": b"",
    "no GGUF": b"hello " * 99,
    "zeros": b"GGUF" + b"\0" * 60,
    "cut short": b"GGUF\3\0\0\0\5\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0",
    "a version to come": b"GGUF\x63\0\0\0" + b"\0" * 60,
    "counts that lie": b"GGUF\3\0\0\0" + b"\xff" * 60,
}


@pytest.mark.parametrize("case", GGUF)
def test_a_damaged_gguf(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(root)
    (root / "m.gguf").write_bytes(GGUF[case])
    for call in (drift(merged="m.gguf"), drift(expert="m.gguf"), fit(expert="m.gguf")):
        refused(root, capsys, call, "m.gguf")
    for changes in ({"base": "./m.gguf"}, math_with(expert="./m.gguf")):
        write_recipe(root, "gguf.yaml", **changes)
        assert "m.gguf" in run_refused(root, capsys, "gguf.yaml")


# --- tokenizers ---------------------------------------------------------------------------------


def test_a_tokenizer_with_other_ids_is_refused_by_every_verb(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    words = ("on prompt 0, token 7, it gives 65 ('a')", "64 ('a')", "models of one tokenizer")
    for call in (drift(expert="other-ids"), fit(expert="other-ids")):
        refused(root, capsys, call, "other-ids: its tokenizer is another", *words)
    other = ("on prompt 0, token 7, it gives 64 ('a'), the merged model's 65 ('a')",)
    refused(root, capsys, drift(merged="other-ids", expert="math"), *other)
    write_recipe(root, "tokens.yaml", **math_with(expert="./other-ids"))
    assert "tokenizer" in run_refused(root, capsys, "tokens.yaml")
    changed = {"base": "./other-ids", "merge": {"folder": "./math"}}
    write_recipe(root, "tokens.yaml", **changed)
    assert "tokenizer" in run_refused(root, capsys, "tokens.yaml")


@pytest.mark.parametrize("name", ["longer", "other-end", "tokenizer-none"])
def test_a_tokenizer_that_only_knows_more_or_ends_otherwise_is_fine(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
) -> None:
    monkeypatch.chdir(root)
    out = f"--out {tmp_path / 'adapter'}"
    for call in (drift(expert=name), fit(expert=name).replace("--out new", out)):
        assert command([*call.split(), "-q"]) == 0, capsys.readouterr().err
    surgery = [{"module": "mean-shift"}]
    write_recipe(root, "tokens.yaml", surgery=surgery, seeds=[0], **math_with(expert=f"./{name}"))
    assert command(["run", "tokens.yaml", "--out", str(tmp_path / "run"), "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_a_token_beyond_the_models_rows(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(root)
    longer = tokenizer()
    longer.add_tokens([f"w{i}" for i in range(100)])
    for name in ("math", "code"):
        shutil.copytree(root / name, tmp_path / name)
        longer.save_pretrained(str(tmp_path / name))
    (root / "words.jsonl").write_text('{"prompt": "w99", "response": "w98"}\n' * 3)
    merged, expert = str(tmp_path / "math"), str(tmp_path / "code")
    words = ("outside the model's vocabulary of 320", "is this the tokenizer of this model?")
    refused(root, capsys, drift(merged, expert, "words.jsonl"), "token id", *words)
    refused(root, capsys, fit(merged, expert, "words.jsonl"), "token id", *words)
    assert TEST not in capsys.readouterr().err
