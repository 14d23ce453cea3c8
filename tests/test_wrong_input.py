"""Wrong calls: verbs, options, names and places. Few lines on stderr, status 2, nothing written.

What a refusal must look like is in ``wrong.refused``; here are the calls and, for each, words of
what was expected, what was found, and the way out.
"""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from surgekit.cli import main
from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.recipe import Recipe, parse_recipe

from .runs import Watch, document, make_world, watched
from .tiny import checkpoint, jsonl, llama
from .wrong import TEST, drift, fit, linear_of, math_with, refused, seen, write_recipe

RUN = "run recipe.yaml --out new"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world and, around it, what calls may name by mistake."""
    root = make_world(tmp_path_factory.mktemp("world"))
    write_recipe(root, "recipe.yaml")
    write_recipe(root, "no-model.yaml", base="./nothing")
    write_recipe(root, "no-prompts.yaml", **math_with(test="none.jsonl"))
    write_recipe(root, "shared.yaml", **math_with(test="data/math/calibration.jsonl"))
    write_recipe(root, "many.yaml", **math_with(calibration={"file": TEST, "items": 99}))
    write_recipe(root, "rank.yaml", surgery=[{"module": "darts", "rank": 64}])
    write_recipe(root, "silent.yaml", **math_with(calibration="questions.jsonl"))
    write_recipe(
        root,
        "silent-response.yaml",
        surgery=[{"module": "linear", "text": "response"}],
        **math_with(calibration="questions.jsonl"),
    )
    write_recipe(root, "format.yaml", **math_with(format="{prompt}"))
    listed = {"merge_method": "linear", "models": [{"model": "maths"}]}
    write_recipe(root, "merge-name.yaml", merge=listed)
    write_recipe(root, "merge-method.yaml", merge={"merge_method": "telepathy"})
    write_recipe(root, "merge-file.yaml", merge="none.yml")
    write_recipe(root, "wide.yaml", **math_with(expert="./wide"))
    write_recipe(root, "lora.yaml", **math_with(expert={"lora": "./base"}))
    write_recipe(root, "device.yaml", device="toaster")
    jsonl(root / "questions.jsonl", [{"prompt": f"Is it {i}?"} for i in range(10)])
    (root / "unknown.yml").write_text("merge_method: telepathy\nmodels: [{model: ./math}]\n")
    (root / "alone.yml").write_text("merge_method: linear\n")
    (root / "merge.yml").write_text(linear_of("./math", "./code"))
    checkpoint(root / "wide", llama(0, hidden_size=64))
    (root / "empty").mkdir()
    (root / "nowhere.yaml").symlink_to("deleted.yaml")
    (root / "nowhere").symlink_to("deleted")
    (root / "round").symlink_to("round")
    (root / "to-math").symlink_to("math")
    (root / "half-run" / "stages").mkdir(parents=True)
    (root / "half-run" / "results.json").write_text('{"domains": {"math": 1}}')
    return root


VERBS: dict[str, tuple[str, ...]] = {
    "nope": ("No such command 'nope'", "init, check, run, merge, bias, calibrate, inspect"),
    "chekc recipe.yaml": ("No such command", "Did you mean 'check'?"),
    "--nope": ("No such option: --nope", "surgekit --help"),
    "run": ("Missing argument", "surgekit run --help"),
    "merge unknown.yml": ("Missing argument 'out'",),
    "bias": ("Missing option '--merged'", "surgekit bias --help"),
    "calibrate --merged math": ("Missing option '--expert'",),
    "inspect": ("Missing argument 'path'",),
    "init": ("Missing argument",),
    "run recipe.yaml --nope": ("No such option: --nope",),
    "run recipe.yaml --lmit 3": ("No such option: --lmit", "--limit"),
    "run recipe.yaml more": ("unexpected extra argument",),
    "run recipe.yaml --out": ("requires an argument",),
    f"{RUN} --seed x": ("--seed", "expected an integer"),
    f"{RUN} --seed -1": ("--seed: expected distinct seeds from 0", "found [-1]"),
    f"{RUN} --seed 1 --seed 1": ("--seed: expected distinct seeds", "found [1, 1]"),
    f"{RUN} --seed 4294967296": ("--seed: expected distinct seeds from 0 to 4294967295",),
    f"{RUN} --dtype int8": ("--dtype: expected 'bfloat16', 'float16' or 'float32'", "'int8'"),
    f"{RUN} --dtype float23": ("found 'float23'; did you mean 'float32'?",),
    f"{RUN} --device toaster": ("device 'toaster': expected cpu, cuda, cuda:N or auto",),
    f"{RUN} --device cpu:x": ("device 'cpu:x': expected cpu",),
    f"{RUN} --device meta": ("device 'meta': expected cpu",),
    f"{RUN} --limit 0": ("--limit", "greater than or equal to 1"),
    f"{RUN} --limit few": ("--limit", "expected an integer"),
    f"{RUN} --batch-size 0": ("--batch-size",),
}

RECIPES: dict[str, tuple[str, ...]] = {
    "none.yaml": ("recipe not found: none.yaml",),
    "nowhere.yaml": ("recipe not found: nowhere.yaml", "a link to nothing"),
    "round": ("cannot read round", "symbolic links"),
    ".": (".: recipe expected as UTF-8 text, found a folder",),
    "recipe.yaml/x": ("cannot read recipe.yaml/x: Not a directory",),
    "no-model.yaml": ("base: model folder expected at", "found nothing"),
    "no-prompts.yaml": ("prompt file not found",),
    "shared.yaml": ("10 prompts stand in calibration and in test", "must not share prompts"),
    "many.yaml": ("99 items wanted, 10 at hand",),
    "rank.yaml": ("rank 64 exceeds the hidden size 32",),
    "silent-response.yaml": ("no prompt in the file has a response", "add responses"),
    "format.yaml": ("domains.math: format '{prompt}': expected chat, plain or a jinja",),
    "merge-name.yaml": ("maths", "known names: base, code, math"),
    "merge-method.yaml": ("unknown merge_method 'telepathy'", "task_arithmetic"),
    "merge-file.yaml": ("merge configuration not found",),
    "wide.yaml": ("64", "32"),
    "lora.yaml": ("found no adapter_config.json",),
    "device.yaml": ("device 'toaster'",),
}

PLACES: dict[str, tuple[str, ...]] = {
    "run recipe.yaml --out .": ("holds other things than a run", "--out"),
    "run recipe.yaml --out data": ("holds other things than a run",),
    "run recipe.yaml --out math": ("holds other things than a run",),
    "run recipe.yaml --out to-math": ("holds other things than a run",),
    "run recipe.yaml --out recipe.yaml": ("found a file",),
    "run recipe.yaml --out recipe.yaml/new": ("Not a directory",),
    "run recipe.yaml --out nowhere": ("cannot write nowhere",),
    "init merge.yml --out recipe.yaml": ("recipe.yaml exists already", "another file"),
    "init merge.yml --out data": ("data exists already",),
    "init merge.yml --out nowhere": ("nowhere exists already",),
    "init merge.yml --out recipe.yaml/new": ("cannot write", "Not a directory"),
    "merge merge.yml data": ("expected no folder or an empty one", "choose another"),
    "merge merge.yml math": ("expected no folder or an empty one, found",),
    "merge merge.yml to-math": ("expected no folder or an empty one, found",),
    "merge merge.yml nowhere": ("expected no folder or an empty one",),
    "merge merge.yml recipe.yaml": ("found a file",),
    "merge merge.yml recipe.yaml/new": ("cannot write", "Not a directory"),
    fit().replace("--out new", "--out data"): ("expected no folder, or an adapter alone",),
    fit().replace("--out new", "--out math"): ("expected no folder, or an adapter alone",),
    fit().replace("--out new", "--out to-math"): ("expected no folder, or an adapter alone",),
    fit().replace("--out new", "--out recipe.yaml"): ("expected a folder for the adapter",),
    fit().replace("--out new", "--out recipe.yaml/x"): ("cannot write", "Not a directory"),
    drift(more="--plot recipe.yaml/p.html"): ("cannot write", "Not a directory"),
    drift(more=f"--plot {TEST}"): ("--plot: expected a file that ends in .html", "test.jsonl"),
}

MERGES: dict[str, tuple[str, ...]] = {
    "merge none.yml new": ("merge configuration not found: none.yml",),
    "merge data new": ("data: merge configuration expected as UTF-8 text, found a folder",),
    "merge alone.yml new": ("lists no models", "models: [{model: …}, …]"),
    "merge unknown.yml new": ("unknown merge_method 'telepathy'", "mergekit has"),
    "merge merge.yml new --seed -1": ("--seed",),
    "merge merge.yml new --seed 4294967296": ("--seed", "4294967295"),
    "merge merge.yml new --device toaster": ("device 'toaster': expected cpu",),
    "init none.yml": ("merge configuration not found: none.yml",),
    "init alone.yml": ("expected models to merge, found none",),
    "init recipe.yaml": ("merge_method is missing", "merge_method: task_arithmetic"),
}

NAMES: dict[str, tuple[str, ...]] = {
    drift().replace("math=code", "=code"): ("--expert: expected NAME=VALUE, found '=code'",),
    drift().replace("math=code", "math="): ("--expert: expected NAME=VALUE, found 'math='",),
    drift().replace("math=code", "a/b=code"): (
        "--expert: adapter name 'a/b': expected at most 128",
    ),
    drift().replace("math=code", "__base__=code"): ("--expert: adapter name '__base__'",),
    f"{drift()} --expert code": ("--expert: expected NAME=VALUE, found 'code'",),
    f"{drift()} --expert math=math": ("--expert: 'math' is given twice",),
    f"{drift()} --prompts math={TEST}": ("--prompts: 'math' is given twice",),
    f"{drift()} --expert code=code": (
        "--expert names math, code, --prompts names math",
        "one of each",
    ),
    drift().replace(f"math={TEST}", f"code={TEST}"): ("--expert names math, --prompts names code",),
    f"{drift()} --adapter code=x": ("--adapter code: no --expert of that name",),
    f"{drift()} --adapter math=empty": ("expected an adapter, found no surgery_config.json",),
    f"{drift()} --adapter math=nowhere": ("expected an adapter",),
    f"{drift()} --adapter math=recipe.yaml": ("expected an adapter",),
    fit().replace("math=data", "code=data"): ("--prompts is for 'code', --expert for 'math'",),
    drift(merged="./none"): ("model folder expected at none, found nothing",),
    drift(merged="nowhere"): ("nowhere", "neither in the local cache"),
    drift(merged="recipe.yaml"): ("model folder expected at recipe.yaml, found a file",),
    drift(merged="empty"): ("expected a model folder, found no config.json",),
    drift(expert="org/unheard-of"): ("is no local folder", "give a folder"),
    drift(expert="a/b/c/d"): ("model folder expected at a/b/c/d",),
    drift(expert="wide"): ("hidden sizes differ (32 and 64)",),
    fit(expert="wide"): ("hidden sizes differ (32 and 64)",),
    drift(prompts="none.jsonl"): ("prompt file not found: none.jsonl",),
    drift(prompts="nowhere"): ("prompt file not found: nowhere; it is a link to nothing",),
    drift(prompts="data"): ("data: prompt file expected as UTF-8 text, found a folder",),
}

VALUES: dict[str, tuple[str, ...]] = {
    drift(more="--text answer"): ("--text: expected prompt, response or both, found 'answer'",),
    drift(more="--text respnse"): ("did you mean 'response'?",),
    drift(more="--bin 0"): ("--bin", "greater than or equal to 1"),
    drift(more="--dtype int8"): ("unknown dtype 'int8'; use one of bfloat16, float16, float32",),
    drift(more="--format {prompt}"): ("--format: format '{prompt}': expected chat, plain or a",),
    drift(more="--format {{prompt}"): ("--format: format template does not parse",),
    drift(more="--format {{prompt.a.b}}"): ("prompt 0: format template failed", "no attribute"),
    drift(more="--body nowhere"): ("has no body 'nowhere'", "children: model, lm_head"),
    fit(more="--head nowhere"): ("has no head 'nowhere'", "children: model, lm_head"),
    drift(more="--device toaster"): ("device 'toaster': expected cpu, cuda, cuda:N or auto",),
    drift(more="--max-length 1"): ("--max-length",),
    drift(more="--limit 0"): ("--limit",),
    drift(more="--batch-size 0"): ("--batch-size",),
    fit(more="--module magic"): ("--module: expected 'standard'", "found 'magic'"),
    fit(more="--module linaer"): ("did you mean 'linear'?",),
    fit(more="--module linear --loss l1"): ("module linear is solved in closed form",),
    fit(more="--module mean-shift --rank 3"): ("module mean-shift has no rank",),
    fit(more="--module standard --max-positions 3"): ("module standard has no position table",),
    fit(more="--loss l2"): ("--loss: expected 'l1', 'ewl1', 'kl' or 'ce', found 'l2'",),
    fit(more="--text answer"): ("--text: expected 'prompt', 'response' or 'both'", "'answer'"),
    fit(more="--rank 64"): ("rank 64 exceeds the hidden size 32",),
    fit(more="--rank 0"): ("--rank",),
    fit(more="--max-positions 0"): ("--max-positions",),
    fit(more="--max-positions 9999999999"): ("--max-positions", "1048576"),
    fit(more="--iterations 0"): ("--iterations",),
    fit(more="--learning-rate -1"): ("--learning-rate: expected a number greater than 0",),
    fit(more="--learning-rate 0"): ("--learning-rate: expected a number greater than 0",),
    fit(more="--learning-rate nan"): ("--learning-rate: expected a finite number, found nan",),
    fit(more="--learning-rate 1e39"): ("--learning-rate: expected a number less than",),
    fit(more="--learning-rate 1e30 --iterations 3"): ("lower the learning rate",),
    fit(more="--learning-rate high"): ("--learning-rate", "expected a number"),
    fit(more="--prompts-per-step 0"): ("--prompts-per-step",),
    fit(more="--seed -1"): ("--seed",),
    fit(more="--seed 4294967296"): ("--seed", "4294967295"),
    fit(more="--module linear --ridge few"): ("--ridge: expected loo, gcv or a number",),
    fit(more="--module linear --ridge lo"): ("found 'lo'; did you mean 'loo'?",),
    fit(more="--module linear --ridge 0"): ("ridge must be positive and finite, found 0",),
    fit(more="--module linear --ridge nan"): ("ridge must be positive and finite, found nan",),
    fit(more="--module linear --limit 1"): ("at least two prompts",),
    fit(more="--module linear --iterations 9"): (
        "module linear is solved in closed form and takes no --iterations; leave it out",
    ),
    fit(more="--module linear --prompts-per-step 9"): ("takes no --prompts-per-step",),
    fit(more="--module mean-shift --learning-rate 1"): ("takes no --learning-rate",),
    fit(more="--module mean-shift --ridge gcv"): ("takes no --ridge",),
    fit(more="--module darts --ridge gcv"): (
        "module darts is trained with ewl1 and takes no --ridge; leave it out",
    ),
    fit(prompts="questions.jsonl", more="--text response"): ("do they have a 'response'",),
}

INSPECTED: dict[str, tuple[str, ...]] = {
    "inspect none": ("none: expected an adapter, a run directory or a states file",),
    "inspect nowhere": ("nowhere: expected an adapter",),
    "inspect math": ("neither an adapter, nor a run directory, nor a states file",),
    "inspect recipe.yaml": ("neither an adapter, nor a run directory, nor a states file",),
    "inspect math/model.safetensors": ("expected states of format",),
    "inspect half-run": ("results",),
}

ALL = VERBS | PLACES | MERGES | NAMES | VALUES | INSPECTED


@pytest.mark.parametrize("call", ALL)
def test_a_wrong_call_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    monkeypatch.chdir(root)
    refused(root, capsys, call, *ALL[call])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_refused_by_check_and_run_in_the_same_words(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(root)
    said = refused(root, capsys, f"run {name} --out new", *RECIPES[name])
    message = said.removeprefix("surgekit: ").rstrip("\n")
    before = seen(root)
    assert command(["check", name]) == 2
    plain = capsys.readouterr()
    assert message in (plain.out + plain.err).replace("error: ", "").replace("surgekit: ", "")
    assert "Traceback" not in plain.err
    assert command(["check", name, "--json"]) == 2
    found = capsys.readouterr()
    assert found.err == ""
    made = json.loads(found.out)
    assert made["ok"] is False
    assert made["findings"][0] == {"level": "error", "message": message}
    assert seen(root) == before


@pytest.mark.parametrize(
    "call",
    ["run none.yaml", "merge none.yml new", drift(merged="./none"), fit(more="--rank 0"),
     "inspect none"],
)  # fmt: skip
def test_a_refusal_with_json_leaves_stdout_empty(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    monkeypatch.chdir(root)
    refused(root, capsys, f"{call} --json")


def test_what_check_finds_is_its_outcome_and_goes_to_stdout(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    assert command(["check", "rank.yaml"]) == 2
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith("error: ")
    assert command(["check", "silent.yaml"]) == 0  # the prompts can still be used
    assert "10 prompts have no response" in capsys.readouterr().out


def test_a_path_with_an_equals_sign_needs_no_name(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "lr=0.1").mkdir()
    (tmp_path / "lr=0.1" / "m").symlink_to(root / "code")
    monkeypatch.chdir(root)
    call = ["calibrate", "--merged", "math", "--expert", str(tmp_path / "lr=0.1" / "m")]
    call += ["--prompts", TEST, "--iterations", "2", "--out", str(tmp_path / "out"), "-q"]
    assert command(call) == 0
    assert "│ domain     │ domain" in capsys.readouterr().out


def test_a_finished_run_stays_as_it_is_when_the_next_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    write_recipe(root, "small.yaml", seeds=[0], surgery=[{"module": "mean-shift"}])
    assert command(["run", "small.yaml", "--out", "finished", "-q"]) == 0
    for name in ("rank.yaml", "shared.yaml", "no-model.yaml", "none.yaml"):
        refused(root, capsys, f"run {name} --out finished", *RECIPES[name])
    refused(root, capsys, "run small.yaml --out finished --seed -1", "--seed")
    for call in ("merge merge.yml finished", fit().replace("--out new", "--out finished")):
        refused(root, capsys, call, "finished")


def test_the_command_in_a_thread_leaves_signals_alone(root: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    said: list[object] = []

    def work() -> None:
        with pytest.raises(SystemExit) as caught:
            main(["init", str(tmp_path / "none.yml")])
        said.append(caught.value.code)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == [2]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_at_work_is_left_alone(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with RunDirectory.open(tmp_path / "run", Watch()):
        before = seen(tmp_path)
        assert command(["run", str(root / "recipe.yaml"), "--out", str(tmp_path / "run")]) == 2
        assert "another run is at work" in capsys.readouterr().err
        assert seen(tmp_path) == before


def test_init_quotes_what_yaml_would_take_for_something_else(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("3", "on", "null"):
        (tmp_path / name).symlink_to(root / "math")
    (tmp_path / "merge.yml").write_text(linear_of("./3", "./on", "./null"))
    assert command(["init", str(tmp_path / "merge.yml")]) == 0
    assert list(yaml.safe_load(capsys.readouterr().out)["domains"]) == ["3", "on", "null"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"module": "linear", "iterations": 9}, "module linear is solved in closed form and takes"),
        ({"module": "linear", "iterations": [9, 8]}, "takes no iterations; leave it out"),
        ({"module": ["linear", "mean-shift"], "batch_size": 2}, "takes no batch_size"),
        ({"module": "linear", "iterations": [500, 9]}, "takes no iterations"),
        ({"module": "linear", "entropy_mean": "batch"}, "takes no entropy_mean"),
        ({"module": "mean-shift", "learning_rate": 0.1}, "takes no learning_rate"),
        ({"module": "standard", "weights": "entropy"}, "trained with l1 and takes no weights"),
        ({"module": "standard", "entropy_mean": "batch"}, "takes no entropy_mean"),
        ({"module": "darts", "ridge": 0.5}, "module darts is trained with ewl1 and takes no ridge"),
        ({"module": "mean-shift", "loss": "l1", "iterations": 9}, None),
        ({"module": ["linear", "standard"], "iterations": 9, "ridge": "gcv"}, None),
        ({"module": "linear", "weights": "entropy", "entropy_mean": "batch"}, None),
        ({"module": "linear", "iterations": 500}, None),
    ],
)
def test_what_no_method_of_an_entry_reads_is_refused(
    entry: dict[str, Any], said: str | None
) -> None:
    text = yaml.safe_dump(document(surgery=[{"module": "add"}, entry]), sort_keys=False)
    if said is None:
        made = parse_recipe(text, Path.cwd())
        assert Recipe.model_validate(made.model_dump()) == made  # as a run writes it down
        return
    with pytest.raises(InputError, match=r"recipe, line \d+: surgery\.1: ") as caught:
        parse_recipe(text, Path.cwd())
    assert said in str(caught.value)


def test_a_training_that_ends_worse_than_it_began_is_warned_of(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(root)
    for rate, told in (("1e6", True), ("1e-4", False)):
        call = fit(more=f"--learning-rate {rate} -q").replace("new", str(tmp_path / rate))
        assert command(call.split()) == 0
        err = capsys.readouterr().err
        assert ("warning: " in err and "the loss rose from " in err) is told, err
    surgery = [{"module": "standard", "iterations": 2, "learning_rate": 1e6}]
    made = parse_recipe(yaml.safe_dump(document(surgery=surgery, seeds=[0])), root)
    _, watch = watched(made, tmp_path / "run")
    warned = [n for n in watch.notes if "the loss rose from " in n]
    assert sorted(n[: n.index(": the")] for n in warned) == [
        f"warning: adapters/{name}/standard-l1@both" for name in ("code", "math")
    ]


BETWEEN = """base_model: ./math
models: [{model: ./math}, {model: ./code}]
"""


@pytest.mark.parametrize(
    ("merge", "base", "experts"),
    [
        ("merge_method: slerp\nparameters: {t: 0.5}\n", "BASE", ["math", "code"]),
        ("merge_method: nearswap\nparameters: {t: 0.5}\n", "BASE", ["math", "code"]),
        ("merge_method: arcee_fusion\n", "BASE", ["math", "code"]),
        ("merge_method: linear\nparameters: {weight: 1}\n", "BASE", ["math", "code"]),
        ("merge_method: ties\nparameters: {weight: 1}\n", "math", ["code"]),
        ("merge_method: nuslerp\nparameters: {weight: 1}\n", "math", ["code"]),
    ],
)
def test_init_takes_no_member_of_the_merge_for_the_base(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    merge: str,
    base: str,
    experts: list[str],
) -> None:
    (root / "between.yml").write_text(merge + BETWEEN)
    assert command(["init", str(root / "between.yml")]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert Path(made["base"]["model"]).name == base
    assert list(made["domains"]) == experts


def test_the_world_itself_is_right(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that no row above fails for another reason than its own."""
    monkeypatch.chdir(root)
    assert command(["check", "recipe.yaml"]) == 0
    assert document()["domains"].keys() == {"math", "code"}
    for call in (drift(), "init merge.yml"):
        assert command([*call.split(), *(["-q"] if call.startswith("bias") else [])]) == 0
    assert capsys.readouterr().err == ""
