"""Damaged adapters, states and run directories, as the verbs that read them say it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from surgekit.cli import run as command

from .runs import make_world
from .surgeries import surgery
from .tiny import checkpoint, llama
from .wrong import BYTES, LYING, drift, fit, refused, seen, with_header

CONFIG, TENSORS = "surgery_config.json", "surgery.safetensors"
SUMS = ("tensors_sha256", "settings_sha256")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world with a sound adapter for ``math`` drifting from ``code`` in ``adapter``."""
    root = make_world(tmp_path_factory.mktemp("world"))
    call = fit(merged=str(root / "math"), expert=str(root / "code"), more="--rank 4")
    call = call.replace("data/", f"{root}/data/").replace("--out new", f"--out {root}/adapter")
    assert command([*call.split(), "-q"]) == 0
    checkpoint(root / "wide", llama(0, hidden_size=64))
    return root


def settings(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Damage by hand: the settings changed, and the checksums taken out as one would."""

    def damage(folder: Path) -> None:
        document = json.loads((folder / CONFIG).read_text())
        for key in SUMS:
            document.pop(key, None)
        change(document)
        (folder / CONFIG).write_text(json.dumps(document))

    return damage


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        settings(lambda d: None)(folder)
        found = load_file(folder / TENSORS)
        change(found)
        save_file(found, folder / TENSORS)

    return damage


def content(file: str, new: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_bytes(new)


DAMAGE: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no tensors": (lambda f: (f / TENSORS).unlink(), (TENSORS,)),
    "tensors a folder": (
        lambda f: ((f / TENSORS).unlink(), (f / TENSORS).mkdir()),
        (TENSORS,),
    ),
    "configuration broken": (content(CONFIG, b"{"), (f"{CONFIG}: expected an adapter's", "JSON")),
    "configuration empty": (content(CONFIG, b""), (CONFIG, "JSON")),
    "configuration a list": (content(CONFIG, b"[]"), ("a JSON object, found a list",)),
    "configuration binary": (content(CONFIG, b"\0\1"), ("as UTF-8 text, found binary data",)),
    "a newer format": (settings(lambda d: d.update(format=2)), ("format 1, found 2", "version")),
    "an older format": (settings(lambda d: d.update(format=0)), ("format 1, found 0",)),
    "no format": (settings(lambda d: d.pop("format")), ("format 1, found None",)),
    "module unknown": (
        settings(lambda d: d["surgery"].update(module="drats")),
        ("surgery.module: expected 'standard'", "found 'drats'; did you mean 'darts'?"),
    ),
    "key misspelt": (
        settings(lambda d: d["surgery"].update(max_position=3)),
        ("unknown key 'surgery.max_position'; did you mean 'max_positions'?",),
    ),
    "key missing": (
        settings(lambda d: d["surgery"].pop("hidden_size")),
        ("key 'surgery.hidden_size' is missing",),
    ),
    "another rank": (settings(lambda d: d["surgery"].update(rank=5)), ("(5, 32)", "(4, 32)")),
    "another width": (
        settings(lambda d: d["surgery"].update(hidden_size=64)),
        ("should be floating point", "64"),
    ),
    "rank a word": (
        settings(lambda d: d["surgery"].update(rank="few")),
        ("surgery.rank: expected an integer, found 'few'",),
    ),
    "tensor missing": (tensors(lambda t: t.pop("table")), ("missing tensor 'table'",)),
    "tensor surplus": (
        tensors(lambda t: t.update(more=torch.zeros(1))),
        ("surplus tensor 'more'", "a darts module has"),
    ),
    "tensor of integers": (
        tensors(lambda t: t.update(table=torch.ones_like(t["table"], dtype=torch.int32))),
        ("'table' should be floating point", "int32"),
    ),
    "NaN": (tensors(lambda t: t["table"].fill_(float("nan"))), ("'table' holds NaN or infinity",)),
    "infinite": (tensors(lambda t: t["up"].fill_(float("inf"))), ("'up' holds NaN or infinity",)),
    "changed by hand": (
        lambda f: (f / CONFIG).write_text((f / CONFIG).read_text().replace('"math"', '"code"')),
        (f"{CONFIG}: damaged, or changed since it was written",),
    ),
    **{
        f"tensors: {name}": (
            lambda f, edit=edit: (f / TENSORS).write_bytes(edit((f / TENSORS).read_bytes())),
            (TENSORS,),
        )
        for name, edit in BYTES.items()
    },
    **{
        f"tensors: {name}": (
            lambda f, change=change: with_header(f / TENSORS, change),
            (f"{TENSORS}: expected an adapter's tensors, a whole safetensors file",),
        )
        for name, change in LYING.items()
        if name != "overlap"
    },
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_adapter(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(root)
    damage, words = DAMAGE[case]
    shutil.rmtree(root / "damaged", ignore_errors=True)
    shutil.copytree(root / "adapter", root / "damaged")
    damage(root / "damaged")
    refused(root, capsys, "inspect damaged", *words)
    refused(root, capsys, drift(more="--adapter math=damaged"), *words)


def test_an_adapter_of_another_model(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    assert command([*drift(more="--adapter math=adapter").split(), "-q"]) == 0
    refused(
        root,
        capsys,
        drift(merged="code", expert="math", more="--adapter math=adapter"),
        "adapter adapter was made for the model sf",
        "give the merged model it belongs to",
    )
    shutil.copytree(root / "adapter", root / "no-print")
    settings(lambda d: d["record"].pop("merged_fingerprint"))(root / "no-print")
    call = drift(merged="wide", expert="wide", more="--adapter math=no-print")
    refused(root, capsys, call, "the adapter corrects hidden states of width 32, these have 64")


def test_an_adapter_that_is_there_stays_as_it_is_when_its_successor_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    before = seen(root / "adapter")
    for more in ("--learning-rate 1e30", "--rank 99", "--text answer"):
        refused(root, capsys, fit(more=more).replace("--out new", "--out adapter"))
    assert seen(root / "adapter") == before


def test_files_that_are_no_states(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    for name, new in {
        "a.safetensors": b"",
        "b.safetensors": b"\xff" * 64,
        "c.safetensors": (root / "math" / "model.safetensors").read_bytes()[:-9],
    }.items():
        (root / name).write_bytes(new)
        refused(root, capsys, f"inspect {name}", name, "a whole safetensors file")
    (root / "d.safetensors").mkdir()
    refused(root, capsys, "inspect d.safetensors", "neither an adapter")
    module = surgery()
    save_file({"hidden": module.state_dict()["up"]}, root / "e.safetensors")
    refused(root, capsys, "inspect e.safetensors", "expected states of format")
