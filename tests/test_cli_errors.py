"""Wrong input: one or two lines on stderr, status 2, no traceback, nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from surgekit.cli import run as command
from surgekit.pipeline.run_directory import RunDirectory

from .runs import Watch, document, make_world
from .tiny import checkpoint, jsonl, llama

TEST = "data/math/test.jsonl"
DRIFT = f"bias --merged math --expert math=code --prompts math={TEST}"
FIT = f"calibrate --merged math --expert math=code --prompts math={TEST} --out new"
RUN = "run recipe.yaml --out new"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world and, around it, what users may get wrong."""
    root = make_world(tmp_path_factory.mktemp("world"))

    def write(name: str, **changes: Any) -> None:
        text = yaml.safe_dump(document(**changes), sort_keys=False)
        (root / name).write_text(text)

    def domains(**changes: Any) -> dict[str, Any]:
        made = document()["domains"]
        made["math"] |= changes
        return {"domains": made}

    write("recipe.yaml")
    write("no-model.yaml", base="./nothing")
    write("no-prompts.yaml", **domains(test="none.jsonl"))
    write("shared.yaml", **domains(test="data/math/calibration.jsonl"))
    write("many.yaml", **domains(calibration={"file": TEST, "items": 99}))
    write("rank.yaml", surgery=[{"module": "darts", "rank": 64}])
    write("silent.yaml", **domains(calibration="questions.jsonl"))
    write("format.yaml", **domains(format="{prompt}"))
    write("key.yaml", sedes=[1])
    write("merge-name.yaml", merge={"merge_method": "linear", "models": [{"model": "maths"}]})
    write("merge-method.yaml", merge={"merge_method": "telepathy"})
    write("wide.yaml", **domains(expert="./wide"))
    write("lora.yaml", **domains(expert={"lora": "./base"}))
    write("device.yaml", device="toaster")
    jsonl(root / "questions.jsonl", [{"prompt": f"Is it {i}?"} for i in range(10)])
    (root / "broken.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (root / "broken.yaml").write_text("base: [\n")
    (root / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    (root / "unknown.yml").write_text("merge_method: telepathy\nmodels: [{model: ./math}]\n")
    (root / "alone.yml").write_text("merge_method: linear\n")
    checkpoint(root / "wide", llama(0, hidden_size=64))
    (root / "empty").mkdir()
    (root / "adapter").mkdir()
    (root / "adapter" / "surgery_config.json").write_text("{")
    (root / "half-run" / "stages").mkdir(parents=True)
    (root / "half-run" / "results.json").write_text('{"domains": {"math": 1}}')
    shutil.copytree(root / "math", root / "truncated")
    weights = root / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return root


WRONG: dict[str, str] = {
    # verbs, options and their values
    "nope": "No such command 'nope'",
    "--nope": "No such option: --nope",
    "run": "Missing argument",
    "run recipe.yaml --nope": "No such option: --nope",
    "run recipe.yaml more": "unexpected extra argument",
    "run recipe.yaml --out": "requires an argument",
    f"{RUN} --seed x": "--seed",
    f"{RUN} --seed -1": "--seed: expected distinct seeds",
    f"{RUN} --seed 1 --seed 1": "--seed: expected distinct seeds",
    f"{RUN} --dtype int8": "--dtype: Input should be 'bfloat16', 'float16' or 'float32'",
    f"{RUN} --device toaster": "device 'toaster'",
    f"{RUN} --limit 0": "--limit",
    f"{RUN} --batch-size 0": "--batch-size",
    # recipes
    "run none.yaml": "recipe not found: none.yaml",
    "check none.yaml": "recipe not found",
    "run .": "expected a UTF-8 YAML file",
    "check binary.yaml": "expected a UTF-8 YAML file",
    "run broken.yaml": "broken.yaml, line 2: not YAML",
    "run key.yaml": "unknown key 'sedes'; did you mean 'seeds'?",
    "run no-model.yaml --out new": "base: model folder expected",
    "run no-prompts.yaml --out new": "prompt file not found",
    "run shared.yaml --out new": "10 prompts stand in calibration and in test",
    "run many.yaml --out new": "99 items wanted, 10 at hand",
    "run rank.yaml --out new": "rank 64 exceeds the hidden size 32",
    "run format.yaml --out new": "domains.math: format '{prompt}'",
    "run merge-name.yaml --out new": "known names: base, code, math",
    "run wide.yaml --out new": "models of one hidden size are needed",
    "run lora.yaml --out new": "found no adapter_config.json",
    "run device.yaml --out new": "device 'toaster'",
    # where to write
    "run recipe.yaml --out .": "holds other things than a run",
    "run recipe.yaml --out data": "holds other things than a run",
    "run recipe.yaml --out recipe.yaml": "found a file",
    "run recipe.yaml --out recipe.yaml/new": "Not a directory",
    "init unknown.yml --out recipe.yaml": "recipe.yaml exists already",
    "merge unknown.yml data": "expected no folder or an empty one",
    FIT.replace("new", "data"): "in use by something that is not an adapter",
    FIT.replace("new", "recipe.yaml"): "in use by something that is not an adapter",
    f"{DRIFT} --plot recipe.yaml/p.html": "Not a directory",
    # merges
    "merge none.yml new": "merge configuration not found",
    "merge alone.yml new": "lists no models",
    "merge unknown.yml new": "unknown merge_method 'telepathy'",
    "merge broken.yaml new": "broken YAML",
    "init none.yml": "merge configuration not found",
    "init alone.yml": "expected models to merge, found none",
    "init recipe.yaml": "merge_method is missing",
    # names and values
    DRIFT.replace("math=code", "=code"): "--expert: expected NAME=VALUE, found '=code'",
    DRIFT.replace("math=code", "math="): "--expert: expected NAME=VALUE, found 'math='",
    f"{DRIFT} --expert code": "--expert: expected NAME=VALUE, found 'code'",
    f"{DRIFT} --expert math=math": "--expert: 'math' is given twice",
    f"{DRIFT} --expert code=code": "--expert names math, code, --prompts names math",
    DRIFT.replace(f"math={TEST}", f"code={TEST}"): "--expert names math, --prompts names code",
    f"{DRIFT} --adapter code=adapter": "--adapter code: no --expert of that name",
    f"{DRIFT} --adapter math=empty": "expected an adapter, found no surgery_config.json",
    f"{DRIFT} --adapter math=adapter": "adapter's configuration as JSON",
    f"{DRIFT} --text answer": "--text: expected prompt, response or both, found 'answer'",
    f"{DRIFT} --bin 0": "--bin",
    f"{DRIFT} --dtype int8": "unknown dtype 'int8'",
    f"{DRIFT} --format {{prompt}}": "format '{prompt}': expected chat, plain or a jinja",
    f"{DRIFT} --body nowhere": "has no body 'nowhere'",
    f"{DRIFT} --device toaster": "toaster",
    FIT.replace("math=data", "code=data"): "--prompts is for 'code', --expert for 'math'",
    f"{FIT} --module magic": "--module: Input should be 'standard'",
    f"{FIT} --module linear --loss l1": "module linear is solved in closed form",
    f"{FIT} --module mean-shift --rank 3": "module mean-shift has no rank",
    f"{FIT} --module standard --max-positions 3": "module standard has no position table",
    f"{FIT} --loss l2": "--loss: Input should be 'l1', 'ewl1', 'kl' or 'ce'",
    f"{FIT} --text answer": "--text: Input should be 'prompt', 'response' or 'both'",
    f"{FIT} --rank 64": "rank 64 exceeds the hidden size 32",
    f"{FIT} --rank 0": "--rank",
    f"{FIT} --iterations 0": "--iterations",
    f"{FIT} --learning-rate -1": "--learning-rate: Input should be greater than 0",
    f"{FIT} --learning-rate nan": "--learning-rate: Input should be a finite number",
    f"{FIT} --learning-rate 1e30": "lower the learning rate",
    f"{FIT} --module linear --ridge few": "--ridge: expected loo, gcv or a number, found 'few'",
    f"{FIT} --module linear --ridge 0": "ridge must be positive",
    f"{FIT} --module linear --limit 1": "at least two prompts",
    # models and prompts
    DRIFT.replace("merged math", "merged ./none"): "model folder expected at none",
    DRIFT.replace("merged math", "merged empty"): "found no config.json",
    DRIFT.replace("merged math", "merged truncated"): "truncated",
    DRIFT.replace("math=code", "math=wide"): "hidden sizes differ (32 and 64)",
    DRIFT.replace("math=code", "math=org/unheard-of"): "is no local folder",
    DRIFT.replace(f"math={TEST}", "math=none.jsonl"): "prompt file not found: none.jsonl",
    DRIFT.replace(f"math={TEST}", "math=broken.jsonl"): "broken.jsonl, line 2: not JSON",
    DRIFT.replace(f"math={TEST}", "math=data"): "expected a UTF-8 JSONL file",
    FIT.replace(TEST, "questions.jsonl") + " --text response": "do they have a 'response'",
    # inspect
    "inspect none": "none: expected an adapter, a run directory or a states file",
    "inspect math": "neither an adapter, nor a run directory, nor a states file",
    "inspect recipe.yaml": "neither an adapter, nor a run directory, nor a states file",
    "inspect math/model.safetensors": "expected states of format 1",
    "inspect truncated/model.safetensors": "a whole safetensors file",
    "inspect adapter": "adapter's configuration as JSON",
    "inspect half-run": "not the results of a run",
}


def contents(root: Path) -> set[tuple[str, int]]:
    """Every file and folder below, with when it was changed."""
    return {(str(p), p.stat().st_mtime_ns) for p in root.rglob("*")}


@pytest.mark.parametrize("call", WRONG)
def test_wrong_input(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    monkeypatch.chdir(root)
    before = contents(root)
    verb, *rest = call.split()
    quiet = ["-q"] if verb in ("run", "bias", "calibrate", "merge") else []
    assert command([verb, *quiet, *rest]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert WRONG[call] in said.err
    assert 1 <= len(said.err.splitlines()) <= 2
    assert said.err.startswith("surgekit: ")
    assert "Traceback" not in said.err
    assert "defect of surgekit" not in said.err
    assert contents(root) == before


def test_an_unknown_merge_method_is_found_by_the_merge(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = ["run", str(root / "merge-method.yaml"), "--out", str(tmp_path / "run"), "-q"]
    assert command(call) == 2
    assert "unknown merge_method 'telepathy'" in capsys.readouterr().err
    assert not (tmp_path / "run" / "merged").exists()


def test_questions_alone_cannot_teach_answers(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = yaml.safe_load((root / "silent.yaml").read_text())
    text["surgery"] = [{"module": "linear", "text": "response"}]
    file = root / "silent-response.yaml"
    file.write_text(yaml.safe_dump(text, sort_keys=False))
    assert command(["run", str(file), "--out", str(tmp_path / "run"), "-q"]) == 2
    assert "no prompt in the file has a response" in capsys.readouterr().err
    assert command(["check", str(root / "silent.yaml")]) == 0  # the prompts can still be used
    assert "10 prompts have no response" in capsys.readouterr().out


def test_a_run_at_work_is_left_alone(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with RunDirectory.open(tmp_path / "run", Watch()):
        before = contents(tmp_path)
        assert command(["run", str(root / "recipe.yaml"), "--out", str(tmp_path / "run")]) == 2
        assert "another run is at work" in capsys.readouterr().err
        assert contents(tmp_path) == before


def test_a_folder_that_may_not_be_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system's refusal, put in by hand, for root may read everything."""
    shut = str(root / "data")
    real_iterdir, real_read = Path.iterdir, Path.read_text

    def refuse(path: Path) -> None:
        if str(path.absolute()).startswith(shut):
            raise PermissionError(13, "Permission denied", str(path))

    def iterdir(path: Path) -> Any:
        refuse(path)
        return real_iterdir(path)

    def read_text(path: Path, *args: Any, **options: Any) -> str:
        refuse(path)
        return real_read(path, *args, **options)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.chdir(root)
    for call in ("run recipe.yaml --out data", "run recipe.yaml --out new", DRIFT):
        assert command([*call.split(), "-q"]) == 2
        said = capsys.readouterr()
        assert len(said.err.splitlines()) == 1
        assert "Permission denied" in said.err
        assert "data" in said.err
    assert not (root / "new").exists()
