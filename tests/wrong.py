"""What users get wrong: a world of damaged files, and what every refusal must look like."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from safetensors.torch import load_file, save_file

from surgekit.cli import run as command

from .runs import document
from .sources import edit
from .tiny import checkpoint, llama

TEST = "data/math/test.jsonl"
WEIGHTS = "model.safetensors"


class Case(NamedTuple):
    """A call that must be refused, and words that its message must hold."""

    call: str
    words: tuple[str, ...]


def drift(merged: str = "math", expert: str = "code", prompts: str = TEST, more: str = "") -> str:
    """A call of bias."""
    return f"bias --merged {merged} --expert math={expert} --prompts math={prompts} {more}".strip()


def fit(merged: str = "math", expert: str = "code", prompts: str = TEST, more: str = "") -> str:
    """A call of calibrate that would write to ``new``."""
    call = f"calibrate --merged {merged} --expert math={expert} --prompts math={prompts}"
    closed = "--module linear" in more or "--module mean-shift" in more
    return f"{call} --out new {'' if closed else '--iterations 2 '}{more}".strip()


def write_recipe(root: Path, name: str, **changes: Any) -> str:
    """A recipe of the world beside it; returns its name."""
    (root / name).write_text(yaml.safe_dump(document(**changes), sort_keys=False))
    return name


def math_with(**changes: Any) -> dict[str, Any]:
    """The key ``domains`` with the math domain changed."""
    made = document()["domains"]
    made["math"] |= changes
    return {"domains": made}


def linear_of(*models: str, **more: Any) -> str:
    """A mergekit YAML that averages models."""
    listed = [{"model": m, "parameters": {"weight": 1.0}} for m in models]
    return yaml.safe_dump({"merge_method": "linear", "models": listed, **more}, sort_keys=False)


def seen(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Everything below a folder: size, time of change, inode, and where links lead."""
    found: dict[str, tuple[int, int, int, str]] = {}
    for path in root.rglob("*"):
        stat = path.lstat()
        link = str(path.readlink()) if path.is_symlink() else ""
        found[str(path.relative_to(root))] = (stat.st_size, stat.st_mtime_ns, stat.st_ino, link)
    return found


def refused(
    root: Path, capsys: pytest.CaptureFixture[str], call: str | list[str], *words: str
) -> str:
    """Run a call that must be refused in every way that a refusal has to be; returns its words."""
    arguments = call.split() if isinstance(call, str) else call
    quiet = ["-q"] if arguments[0] in ("run", "bias", "calibrate", "merge") else []
    before = seen(root)
    capsys.readouterr()
    status = command([arguments[0], *quiet, *arguments[1:]])
    said = capsys.readouterr()
    assert status == 2, (status, said)
    expect_short(said.err)
    assert said.out == ""
    for word in words:
        assert word in said.err, said.err
    assert seen(root) == before
    return said.err


def expect_short(text: str) -> None:
    """A refusal on stderr: few short lines, and no trace of the machinery."""
    assert text.startswith("surgekit: ")
    assert 1 <= len(text.splitlines()) <= 4
    assert len(text) <= 1200
    for word in ("Traceback", "defect of surgekit", "pydantic", "Input should be", "NoneType"):
        assert word not in text, text


# --- damaged checkpoints ------------------------------------------------------------------------


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    """(header, data) of a safetensors file."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def with_header(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a safetensors file with a header that lies."""
    header, data = header_of(file)
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _first(header: dict[str, Any]) -> dict[str, Any]:
    return header[sorted(k for k in header if k != "__metadata__")[0]]


def _offsets_out(header: dict[str, Any]) -> None:
    _first(header)["data_offsets"][1] += 1 << 40


def _overlap(header: dict[str, Any]) -> None:
    names = sorted(k for k in header if k != "__metadata__")
    same = [n for n in names if header[n]["shape"] == header[names[-1]]["shape"]]
    header[same[0]]["data_offsets"] = header[names[-1]]["data_offsets"]


def _dtype_unknown(header: dict[str, Any]) -> None:
    _first(header)["dtype"] = "F33"


def _shape_lies(header: dict[str, Any]) -> None:
    _first(header)["shape"][0] += 1


LYING: dict[str, Callable[[dict[str, Any]], None]] = {
    "offsets-out": _offsets_out,
    "overlap": _overlap,
    "dtype-unknown": _dtype_unknown,
    "shape-lies": _shape_lies,
}

BYTES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[:-100],
    "header-too-long": lambda raw: struct.pack("<Q", 1 << 62) + raw[8:],
    "header-no-json": lambda raw: raw[:8] + b"?" + raw[9:],
    "zero-bytes": lambda raw: b"",
    "eight-bytes": lambda raw: raw[:8],
}


class Sentinel:
    """Pickled, it writes a file when it is loaded: code in a checkpoint."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def __reduce__(self) -> Any:
        return (open, (self.file, "w"))


def damage_models(root: Path) -> None:
    """All kinds of damaged checkpoints, each a copy of ``math`` under the name of its damage."""

    def copy(name: str) -> Path:
        shutil.copytree(root / "math", root / name)
        return root / name

    for name, change in LYING.items():
        with_header(copy(name) / WEIGHTS, change)
    for name, edited in BYTES.items():
        file = copy(name) / WEIGHTS
        file.write_bytes(edited(file.read_bytes()))
    (copy("no-weights") / WEIGHTS).unlink()
    for name, text in {
        "shards-missing": json.dumps({"weight_map": {"lm_head.weight": "model-9.safetensors"}}),
        "index-broken": "{",
    }.items():
        folder = copy(name)
        (folder / WEIGHTS).unlink()
        (folder / "model.safetensors.index.json").write_text(text)
    for name, text in {"config-broken": "{", "config-list": "[]", "config-empty": ""}.items():
        (copy(name) / "config.json").write_text(text)
    edit(copy("config-unknown") / "config.json", model_type="zork")
    edit(copy("config-encoder") / "config.json", model_type="distilbert", architectures=["X"])
    remote = {"AutoConfig": "conf.C", "AutoModelForCausalLM": "conf.M"}
    folder = copy("config-remote")
    edit(folder / "config.json", model_type="zork", auto_map=remote)
    (folder / "conf.py").write_text(f"open({str(root / 'code-has-run')!r}, 'w')\n")
    edit(copy("config-other-size") / "config.json", intermediate_size=64)
    (copy("config-binary") / "config.json").write_bytes(b"\xff\xfe{\0")
    folder = copy("pickle")
    (folder / WEIGHTS).unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"lm_head.weight": Sentinel(root / "code-has-run")}, file)
    for name, key, value in (
        ("nan-unused", "model.embed_tokens.weight", float("nan")),
        ("nan-head", "lm_head.weight", float("nan")),
        ("infinite", "model.layers.1.mlp.down_proj.weight", float("inf")),
    ):
        file = copy(name) / WEIGHTS
        tensors = load_file(file)
        tensors[key][(0, 0) if name == "infinite" else (300, 3)] = value
        save_file(tensors, file, metadata={"format": "pt"})
    checkpoint(root / "wide", llama(0, hidden_size=64))
