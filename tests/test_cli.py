"""The command line: what each verb prints, where, and with which exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from surgekit import __version__
from surgekit.adapters.files import load_adapter
from surgekit.cli import run as command
from surgekit.errors import SurgekitError

from .results_schema import Results
from .runs import DOMAINS, document, make_world
from .tiny import jsonl

Capture = pytest.CaptureFixture[str]
DRIFT = ["--merged", "merged", "--expert", "math=math", "--prompts", "math=data/math/test.jsonl"]
FAST = ["--dtype", "float32"]


class Said(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world with a recipe, a merge by it in ``merged`` and a run in ``done``."""
    root = make_world(tmp_path_factory.mktemp("world"))
    merge = {"base_model": "./base", "models": [{"model": f"./{d}"} for d in DOMAINS]}
    merge |= document()["merge"]
    for model in merge["models"]:
        model["parameters"] = {"weight": 1.0}
    (root / "merge.yml").write_text(yaml.safe_dump(merge, sort_keys=False))
    surgery = [{"module": "darts", "iterations": 3}, {"module": "mean-shift"}]
    made = document(surgery=surgery, seeds=[0])
    (root / "recipe.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    assert command(["merge", str(root / "merge.yml"), str(root / "merged"), "--quiet"]) == 0
    call = ["run", str(root / "recipe.yaml"), "--out", str(root / "done"), "--quiet"]
    assert command(call) == 0
    return root


@pytest.fixture
def cli(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Any:
    """Calls the command in the world's folder and gives what it said."""
    monkeypatch.chdir(root)
    capsys.readouterr()

    def call(*arguments: str | Path) -> Said:
        status = command([str(a) for a in arguments])
        said = capsys.readouterr()
        return Said(status, said.out, said.err)

    return call


def documents(text: str) -> Any:
    """The one JSON document that ``text`` is."""
    value, end = json.JSONDecoder(parse_constant=pytest.fail).raw_decode(text)
    assert text[end:] == "\n"
    return value


# --- every verb does what it says ---------------------------------------------------------------


def test_from_a_merge_to_a_finished_run(cli: Any, tmp_path: Path, root: Path) -> None:
    file = tmp_path / "deep" / "recipe.yaml"
    said = cli("init", "merge.yml", "--out", file)
    assert said == Said(0, "", "")
    text = file.read_text()
    assert "merge.yml" in text
    made = yaml.safe_load(text)
    assert list(made["domains"]) == list(DOMAINS)
    for name, domain in made["domains"].items():
        for split in ("calibration", "validation", "test"):
            source = root / "data" / name / f"{split}.jsonl"
            domain[split] = str(source)
            assert domain["expert"] == str(root / name)
    made |= {"surgery": [{"module": "mean-shift"}], "dtype": "float32"}
    file.write_text(yaml.safe_dump(made, sort_keys=False))
    said = cli("check", file)
    assert said.status == 0
    assert said.err == ""
    assert said.out.splitlines()[-1].startswith("ready to run")
    out = tmp_path / "run"
    said = cli("run", file, "--out", out)
    assert said.status == 0
    assert f"Results: {out}/results.json" in said.out
    for word in ("math: 10 test prompts", "code: 10 test prompts", "mean-shift@both", "KL to"):
        assert word in said.out
    assert "merge" in said.err
    assert said.err.splitlines()[-1].endswith("done")
    said = cli("run", file, "--out", out)
    assert said.status == 0
    assert "finished stages reused" in said.err
    said = cli("inspect", out)
    assert (said.status, said.err) == (0, "")
    assert "finished stages" in said.out
    assert "math: 10 test prompts" in said.out


def test_init_prints_a_recipe_where_no_file_is_named(cli: Any, root: Path) -> None:
    said = cli("init", "merge.yml")
    assert (said.status, said.err) == (0, "")
    made = yaml.safe_load(said.out)
    assert made["base"] == {"model": "./base"}
    assert made["merge"] == "./merge.yml"
    assert [d["expert"] for d in made["domains"].values()] == ["./math", "./code"]


def test_init_makes_names_of_hub_ids(cli: Any, tmp_path: Path) -> None:
    models = ["Org/Base", "org/My.Model_7B", "other/My.Model_7B", "org/__x"]
    config = {"merge_method": "linear", "models": [{"model": m} for m in models]}
    (tmp_path / "m.yml").write_text(yaml.safe_dump(config))
    made = yaml.safe_load(cli("init", tmp_path / "m.yml").out)
    assert {n: d["expert"] for n, d in made["domains"].items()} == {
        "base-expert": "Org/Base",
        "my-model_7b": "org/My.Model_7B",
        "my-model_7b-2": "other/My.Model_7B",
        "x": "org/__x",
    }
    assert made["base"] == {"model": "BASE"}


def test_run_takes_options_in_place_of_the_recipes(cli: Any, tmp_path: Path) -> None:
    said = cli(
        "run", "recipe.yaml", "--out", tmp_path / "run", "--seed", "3", "--seed", "4", "--limit",
        "5", "--dtype", "bfloat16", "--batch-size", "3", "--device", "cpu", "--json",
    )  # fmt: skip
    assert said.status == 0
    results = Results.model_validate(documents(said.out))
    assert results.seeds == [3, 4]
    assert results.environment.batch_size == 3
    items = results.domains["math"].items
    assert (items.calibration, items.validation, items.test) == (10, 5, 5)
    resolved = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert (resolved["dtype"], resolved["batch_size"]) == ("bfloat16", 3)


def test_merge_shows_the_weights(cli: Any, tmp_path: Path) -> None:
    said = cli("merge", "merge.yml", tmp_path / "one")
    assert said.status == 0
    assert f"Merged model: {tmp_path / 'one'}" in said.out
    said = cli("merge", "merge.yml", tmp_path / "two", "--json", "--seed", "3")
    found = documents(said.out)
    assert found["folder"] == str(tmp_path / "two")
    assert (found["effective_weights"], found["seed"]) == ({"./math": 0.5, "./code": 0.5}, 3)
    one, two = (tmp_path / n / "model.safetensors" for n in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_bias_shows_drift_by_position(cli: Any, tmp_path: Path) -> None:
    more = ["--expert", "code=./code", "--prompts", "code=data/code/test.jsonl"]
    plot = tmp_path / "plot.html"
    adapter = ["--adapter", "math=done/adapters/math/mean-shift@both"]
    said = cli("bias", *DRIFT, *more, *adapter, "--bin", "16", "--plot", plot, "-q")
    assert (said.status, said.err) == (0, "")
    assert "math: drift from the expert" in said.out
    assert "code: drift from the expert" in said.out
    for row in ("0-15", "16-31", "all"):
        assert f"│ {row} " in said.out
    assert "corrected" in said.out
    html = plot.read_text(encoding="utf-8")
    for name in ("math, merged", "math, corrected", "code, merged"):
        assert name in html
    assert "code, corrected" not in html
    said = cli("bias", *DRIFT, *more, *adapter, "--json", "--text", "response", "--limit", "4")
    found = documents(said.out)
    assert {k: list(v) for k, v in found.items()} == {
        "math": ["merged", "corrected"],
        "code": ["merged"],
    }
    for rows in found.values():
        for bias in rows.values():
            assert set(bias) == {"mean", "by_position"}
            assert bias["mean"]["l1"] > 0
            count = sum(row["tokens"] for row in bias["by_position"])
            mean = sum(row["l1"] * row["tokens"] for row in bias["by_position"]) / count
            assert bias["mean"]["l1"] == pytest.approx(mean, rel=1e-5)


def test_a_single_expert_and_file_need_no_name(cli: Any) -> None:
    call = ["bias", "--merged", "merged", "--expert", "math", "--prompts", "data/math/test.jsonl"]
    assert list(documents(cli(*call, "--json", "-q").out)) == ["domain"]


def test_calibrate_writes_an_adapter(cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "new" / "math"
    call = ["calibrate", *DRIFT, "--out", out, *FAST, "--rank", "2", "--seed", "5"]
    said = cli(*call, "--module", "standard", "--loss", "kl", "--text", "prompt", "--json", "-q")
    assert (said.status, said.err) == (0, "")
    facts = documents(said.out)
    assert (facts["method"], facts["domain"]) == ("standard-kl@prompt", "math")
    assert facts["parameters"] == 2 * 2 * 32
    module, info = load_adapter(out)
    assert (module.config.rank, info.record["calibration"]["seed"]) == (2, 5)
    assert info.record["loss"] == "kl"
    before = (out / "surgery.safetensors").read_bytes()
    said = cli(*call, "--module", "linear", "--ridge", "0.5")  # an adapter may be replaced
    assert said.status == 0
    assert "linear@both" in said.out
    assert "tokens" in said.err
    assert (out / "surgery.safetensors").read_bytes() != before
    assert load_adapter(out)[1].record["ridge_rule"] == 0.5


def test_inspect_tells_adapters_states_and_runs_apart(cli: Any, tmp_path: Path) -> None:
    adapter = documents(cli("inspect", "done/adapters/math/darts-ewl1@both", "--json").out)
    assert (adapter["kind"], adapter["method"], adapter["rank"]) == (
        "adapter",
        "darts-ewl1@both",
        16,
    )
    states = documents(cli("inspect", "done/states/math/test/math.safetensors", "--json").out)
    assert (states["kind"], states["prompts"], states["hidden_size"]) == ("states", 10, 32)
    assert states["mean entropy"] > 0
    run = documents(cli("inspect", "done", "--json").out)
    assert run["kind"] == "run"
    Results.model_validate(run["results"])
    assert "surgery/math/darts-ewl1@both" in run["finished stages"]
    (tmp_path / "stages").mkdir()
    said = cli("inspect", tmp_path)
    assert said.status == 0
    assert "not finished yet" in said.out
    for path in ("done/adapters/math/darts-ewl1@both", "done/states/math/test/math.safetensors"):
        said = cli("inspect", path)
        assert (said.status, said.err) == (0, "")
        assert "32" in said.out


def test_check_says_what_is_wrong(cli: Any, tmp_path: Path) -> None:
    found = documents(cli("check", "recipe.yaml", "--json").out)
    assert found["ok"] is True
    assert {f["level"] for f in found["findings"]} == {"unverified", "note"}
    made = document(device="gpu")
    domains = made["domains"]
    domains["math"] |= {"test": domains["math"]["calibration"], "format": "{prompt}"}
    domains["code"] |= {"expert": "./nothing", "calibration": "none.jsonl"}
    made["surgery"] = [{"module": "darts", "rank": 33}]
    made["merge"]["models"] = [{"model": "mth"}]
    for split in ("validation", "test"):
        jsonl(tmp_path / f"{split}.jsonl", [{"prompt": f"{split} {i}"} for i in range(3)])
    file = Path("wrong.yaml")
    file.write_text(yaml.safe_dump(made, sort_keys=False))
    said = cli("check", file, "--json")
    assert said.status == 2
    found = documents(said.out)
    assert found["ok"] is False
    messages = [f["message"] for f in found["findings"] if f["level"] == "error"]
    for part in (
        "domains.math: format '{prompt}'",
        "10 prompts stand in calibration and in test",
        "domains.code.expert: model folder expected",
        "prompt file not found",
        "rank 33 exceeds the hidden size 32",
        "known names: base, code, math",
        "device 'gpu'",
    ):
        assert sum(part in m for m in messages) == 1, part
    said = cli("check", file)
    assert said.status == 2
    assert "ready to run" not in said.out
    assert cli("run", file, "--out", tmp_path / "run").status == 2
    assert not (tmp_path / "run").exists()


def test_quiet_and_json_keep_the_streams_apart(cli: Any, tmp_path: Path) -> None:
    for verb, call in {
        "run": ["run", "recipe.yaml", "--out", "done"],
        "merge": ["merge", "merge.yml", tmp_path / "m"],
        "bias": ["bias", *DRIFT],
        "calibrate": ["calibrate", *DRIFT, "--out", tmp_path / "a", *FAST],
    }.items():
        said = cli(*call, "--quiet", "--json")
        assert (said.status, said.err) == (0, ""), verb
        documents(said.out)


# --- help, version, status ----------------------------------------------------------------------


def test_help_and_version(cli: Any) -> None:
    said = cli("--help")
    assert (said.status, said.err) == (0, "")
    for verb in ("init", "check", "run", "merge", "bias", "calibrate", "inspect"):
        assert f"\n  {verb} " in said.out
        assert cli(verb, "--help").status == 0
    assert cli("--version") == Said(0, f"surgekit {__version__}\n", "")
    assert "130 interrupted, 143 terminated, 129 hung up" in " ".join(said.out.split())
    shown = said.out
    assert cli() == Said(2, "", shown)  # without a verb the help too, line by line


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['surgekit', '--help']\n"
        "try:\n    runpy.run_module('surgekit', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = ['torch', 'transformers', 'pydantic', 'numpy', 'scipy', 'mergekit', 'peft']\n"
        "print([m for m in heavy if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "calibrate" in done.stdout
    assert done.stderr == "[]\n"


def test_a_reader_that_goes_away_is_no_defect() -> None:
    call = [sys.executable, "-m", "surgekit", "--help"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (SurgekitError("it broke"), 1, "it broke"),
        (ZeroDivisionError("x\ny"), 1, "ZeroDivisionError: x (this is a defect"),
        (OSError(28, "No space left on device", "/a/b"), 2, "/a/b: No space left on device"),
        (BrokenPipeError(), 1, ""),
    ],
)
def test_exit_status(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("surgekit.cli.recipes.run_recipe", fail)
    said = cli("run", "recipe.yaml", "--out", "elsewhere", "-q")
    assert (said.status, said.out) == (status, "")
    assert line in said.err
    assert "Traceback" not in said.err
    assert len(said.err.strip().splitlines()) <= 1
    if line and status != 130:
        said = cli("--traceback", "run", "recipe.yaml", "--out", "elsewhere", "-q")
        assert said.status == status
        assert "Traceback (most recent call last)" in said.err
        assert type(error).__name__ in said.err


# --- streams of other encodings -----------------------------------------------------------------

ENCODINGS: dict[str, dict[str, str]] = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "the locale C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def told(root: Path, encoding: str, *calls: list[str]) -> list[Said]:
    """What calls in one process of its own say on streams of that encoding."""
    code = (
        "import os, sys\n"
        "from surgekit.cli import main\n"
        f"for call in {[*calls]!a}:\n"
        # As a shell would give it, in whatever the locale's encoding is.
        "    try:\n        main([os.fsdecode(c.encode()) for c in call])\n"
        "    except SystemExit as end:\n        status = end.code\n"
        "    for stream in (sys.stdout, sys.stderr):\n"
        "        print('--', status, file=stream, flush=True)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | ENCODINGS[encoding]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said: list[Said] = []
    rest = [stream.decode("latin-1") for stream in (done.stdout, done.stderr)]
    for _ in calls:
        parts = [text.split("-- ", 1) for text in rest]
        status = int(parts[0][1].split("\n", 1)[0])
        said.append(Said(status, parts[0][0], parts[1][0]))
        rest = [part[1].split("\n", 1)[1] for part in parts]
    return said


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_stream_that_takes_no_utf_8_ends_no_finished_work(root: Path, encoding: str) -> None:
    inspected, drift, absent, document = told(
        root,
        encoding,
        ["inspect", "done"],
        ["bias", *DRIFT],
        ["check", "\u6f22.yaml"],
        ["check", "\u6f22.yaml", "--json"],
    )
    assert inspected.status == drift.status == 0, (inspected, drift)
    assert "math: 10 test prompts" in inspected.out
    assert "| expert " in inspected.out
    assert "<- recommended" in inspected.out or "(worse on validation)" in inspected.out
    assert "| 0-31 " in drift.out
    assert "#####" in drift.out
    assert "?" not in inspected.out + drift.out
    assert (absent.status, absent.out) == (2, "")
    assert absent.err.startswith("surgekit: recipe not found: ")
    assert len(absent.err.splitlines()) == 1
    assert document.status == 2
    (finding,) = documents(document.out)["findings"]
    message = finding["message"].encode("utf-8", "surrogateescape").decode()
    assert message == "recipe not found: \u6f22.yaml"


def test_json_holds_what_no_stream_can_say(cli: Any) -> None:
    """A file's name that is no UTF-8 comes as halves of characters."""
    said = cli("check", "\udce9.yaml", "--json")
    assert said.status == 2
    assert "\udce9.yaml" in documents(said.out)["findings"][0]["message"]


# --- what belongs to something else -------------------------------------------------------------


def test_an_adapter_of_another_domain_is_told(cli: Any) -> None:
    other = "done/adapters/code/mean-shift@both"
    said = cli("bias", *DRIFT, "--adapter", f"math={other}")
    assert said.status == 0
    assert f"adapter {other} was calibrated for the domain 'code', not 'math'" in said.err
    assert cli("bias", *DRIFT, "--adapter", f"math={other}", "-q").err == ""
    said = cli("bias", *DRIFT, "--adapter", "math=done/adapters/math/mean-shift@both")
    assert "was calibrated for" not in said.err
