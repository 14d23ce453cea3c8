"""Files of format 1, written once, stay readable; files of a format to come are refused clearly."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from surgekit.adapters.files import load_adapter
from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.models.fingerprint import fingerprint
from surgekit.models.loading import load_model
from surgekit.pipeline.results import read_results
from surgekit.pipeline.run import run_recipe
from surgekit.pipeline.run_directory import RunDirectory, finished_stages
from surgekit.states.heads import load_head
from surgekit.states.states import load_states, save_states

from .results_schema import Results
from .runs import Watch, make_world, recipe
from .sources import edit
from .surgeries import FORMS

GOLDEN = Path(__file__).parent / "golden"


def test_the_files_are_those_that_were_written() -> None:
    """Not one may be made anew; to add some, add them here."""
    digest = hashlib.sha256()
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file() and path.suffix in (".json", ".safetensors", ".yaml"):
            name = path.relative_to(GOLDEN).as_posix()
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    assert digest.hexdigest() == "cd666436bfdd428736d4dbed0882f5ba3bbf6cd6d55e624aebb71229b70e3385"


# --- fingerprints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["plain", "tied"])
def test_fingerprints_never_move(kind: str, dtype: str) -> None:
    expected = json.loads((GOLDEN / "fingerprint-v1/expected.json").read_text())[kind]
    assert expected["float32"] == expected["bfloat16"] != expected["float16"]
    model = load_model(GOLDEN / "fingerprint-v1" / kind, dtype=dtype)
    head = model.get_output_embeddings()
    assert head is not None
    assert (model.get_input_embeddings().weight is head.weight) == (kind == "tied")
    assert fingerprint(model) == expected[dtype]


# --- adapters -------------------------------------------------------------------------------------


def test_there_is_an_adapter_of_every_form() -> None:
    kept = {p.name for p in (GOLDEN / "adapter-v1").iterdir() if p.is_dir()}
    assert kept == set(FORMS)
    modules = [load_adapter(GOLDEN / "adapter-v1" / form)[0] for form in kept]
    assert {m.config.module for m in modules} >= {"standard", "darts", "linear", "table"}
    types = {p.dtype for m in modules for p in m.parameters()}
    assert types == {torch.bfloat16, torch.float32}


def test_an_adapter_with_checksums(tmp_path: Path) -> None:
    module, info = load_adapter(GOLDEN / "adapter-v1-checksums")
    plain = load_adapter(GOLDEN / "adapter-v1/darts")[0]
    assert info.tensors_sha256 is not None
    for (name, found), wanted in zip(module.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(found, wanted), name
    folder = shutil.copytree(GOLDEN / "adapter-v1-checksums", tmp_path / "a")
    data = bytearray((folder / "surgery.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "surgery.safetensors").write_bytes(bytes(data))
    with pytest.raises(InputError, match="damaged"):
        load_adapter(folder)


def test_an_adapter_of_a_format_to_come(tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN / "adapter-v1-checksums", tmp_path / "a")
    edit(folder / "surgery_config.json", format=2, layers=[1, 2])
    with pytest.raises(InputError, match="reads adapters of format 1, found 2; use the version"):
        load_adapter(folder)
    assert command(["inspect", str(folder)]) == 2


# --- states and heads -----------------------------------------------------------------------------


def test_states() -> None:
    states = load_states(GOLDEN / "states-v1.safetensors")
    assert states.hidden.dtype == torch.bfloat16
    assert states.hidden.tolist() == (torch.arange(20).reshape(5, 4) / 8 - 1).tolist()
    assert states.entropies is not None
    assert states.entropies.tolist() == [0.0, 0.25, 0.5, 1.5, 2.0]
    assert states.tokens.ids.tolist() == [5, 6, 7, 5, 9]
    assert states.tokens.offsets.tolist() == [0, 3, 5]
    assert states.tokens.positions().tolist() == [0, 1, 2, 0, 1]
    assert states.tokens.response_starts.tolist() == [2, 2]
    assert (states.model, states.batch_size, states.tokens.cut) == (f"sf1-{'0' * 64}", 8, 1)
    assert states.mask("response").tolist() == [False, True, False, False, False]


def test_states_are_written_as_they_were(tmp_path: Path) -> None:
    save_states(load_states(GOLDEN / "states-v1.safetensors"), tmp_path / "s.safetensors")
    old, new = (opened(d / n) for d, n in
                ((GOLDEN, "states-v1.safetensors"), (tmp_path, "s.safetensors")))  # fmt: skip
    assert old == new


def opened(path: Path) -> tuple[Any, ...]:
    with safe_open(str(path), framework="pt") as file:
        names = sorted(file.keys())
        tensors = [file.get_tensor(name) for name in names]
        return names, [(t.dtype, t.tolist()) for t in tensors], file.metadata()


def test_a_head() -> None:
    head = load_head(GOLDEN / "head-v1.safetensors")
    assert head.weight.tolist() == (torch.arange(24).reshape(6, 4) / 16).tolist()
    assert head.bias is not None
    assert head.bias.tolist() == (torch.arange(6) / 4).tolist()
    assert (head.scale, head.softcap) == (0.5, 30.0)


@pytest.mark.parametrize("kind", ["states", "head"])
@pytest.mark.parametrize("found", ["2", None])
def test_tensors_of_a_format_to_come(tmp_path: Path, kind: str, found: str | None) -> None:
    path = tmp_path / "f.safetensors"
    with safe_open(str(GOLDEN / f"{kind}-v1.safetensors"), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = {k: v for k, v in file.metadata().items() if k not in ("format", "sha256")}
    save_file(tensors, str(path), metadata=about | ({"format": found} if found else {}))
    load = load_states if kind == "states" else load_head
    with pytest.raises(InputError, match=f"format.*{found or ''}"):
        load(path)
    assert command(["inspect", str(path)]) == 2


# --- runs -----------------------------------------------------------------------------------------


def test_results() -> None:
    results = read_results(GOLDEN / "run-v1")
    assert results is not None
    Results.model_validate(results)
    assert list(results["domains"]) == ["math"]
    assert set(results["methods"]) == {"darts-ewl1@both", "linear@both", "mean-shift@response"}
    assert results["cross_domain"]["math"].keys() == {"method", "math", "plain"}


def test_a_run_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["inspect", str(GOLDEN / "run-v1"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    markers = list((GOLDEN / "run-v1/stages").rglob("*.json"))
    assert len(shown["finished stages"]) == len(markers) > 20
    assert shown["results"] == json.loads((GOLDEN / "run-v1/results.json").read_text())
    assert command(["inspect", str(GOLDEN / "run-v1")]) == 0
    printed = capsys.readouterr().out
    assert f"{len(markers)} finished stages" in printed
    assert "linear@both" in printed
    module, info = load_adapter(GOLDEN / "run-v1/adapters/math/linear@both")
    assert (info.domain, module.config.hidden_size) == ("math", 32)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the kept run directory."""
    return shutil.copytree(GOLDEN / "run-v1", tmp_path / "run")


@pytest.mark.parametrize("found", [2, "1", None, True, 1.5])
def test_results_of_a_format_to_come(
    run: Path, capsys: pytest.CaptureFixture[str], found: Any
) -> None:
    edit(run / "results.json", format=found, domains="quite other things")
    with pytest.raises(InputError) as caught:
        read_results(run)
    assert f"reads results of format 1, found {found!r}" in str(caught.value)
    assert command(["inspect", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "results of format 1" in line


@pytest.mark.parametrize("found", [2, "1", None, True])
def test_a_run_directory_of_a_format_to_come(
    run: Path, capsys: pytest.CaptureFixture[str], found: Any
) -> None:
    """It is neither shown wrongly nor gone on with, and nothing in it is touched."""
    edit(run / "run.json", format=found)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert command(["inspect", str(run)]) == 2
    assert "run directories of format 1" in capsys.readouterr().err
    with (
        pytest.raises(InputError, match="use the version that made it, or name another"),
        RunDirectory.open(run, Watch()),
    ):
        raise AssertionError("opened")
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_run_directory_whose_format_is_garbled(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run.json").write_text("garbage")
    assert command(["inspect", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "run.json: expected the format of a run directory as JSON" in line
    assert "delete the file to go on with the run, or name another directory with --out" in line


def test_a_run_directory_that_says_no_format(run: Path) -> None:
    """Those made before it was written down are of format 1."""
    (run / "run.json").unlink()
    with RunDirectory.open(run, Watch()):
        assert json.loads((run / "run.json").read_text())["format"] == 1
    assert len(finished_stages(run)) > 20


def test_a_run_goes_on_in_a_kept_directory(run: Path, tmp_path: Path) -> None:
    """Its models and states are gone, so all is made again, in place, without complaint."""
    make_world(tmp_path)
    results = run_recipe(recipe(tmp_path), run)
    assert set(results["domains"]) == {"math", "code"}
    assert read_results(run) == results
