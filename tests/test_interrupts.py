"""Ctrl-C, SIGTERM, a reader that has gone: real signals to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import surgekit
from surgekit.cli import run as command
from surgekit.cli.signals import signals_unwind
from surgekit.files import folder_written_whole

from .processes import NOT_BEGUN, Ended, Process
from .runs import leftovers, make_world, sound
from .tiny import checkpoint, jsonl, llama
from .wrong import drift, fit, linear_of, math_with, seen, write_recipe

LONG = "data/long.jsonl"
ENDLESS = 10_000_000
SIGNALS = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "ended by SIGTERM")}
Number = pytest.mark.parametrize("number", SIGNALS, ids=lambda n: signal.Signals(n).name)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world with work that takes long: many prompts, and fits without an end."""
    root = make_world(tmp_path_factory.mktemp("world"))
    jsonl(root / LONG, [{"prompt": f"{i} " * 90, "response": "so " * 9} for i in range(150)])
    write_recipe(root, "quick.yaml", seeds=[0])
    write_recipe(root, "capture.yaml", batch_size=2, seeds=[0], **math_with(test=LONG))
    write_recipe(root, "fit.yaml", seeds=[0], surgery=[{"module": "darts", "iterations": ENDLESS}])
    for name in ("math", "code"):  # a merge of these takes a while
        checkpoint(root / "big" / name, llama(1, num_hidden_layers=60))
    (root / "big.yml").write_text(linear_of("./big/math", "./big/code"))
    # Everything is imported once, in the process that the others are forks of.
    assert command(["run", str(root / "quick.yaml"), "--out", str(root / "done"), "-q"]) == 0
    call = drift(str(root / "math"), str(root / "code"), str(root / "data/math/test.jsonl"))
    assert command([*call.split(), "-q"]) == 0
    return root


def expect_end(ended: Ended, number: int, kept: str) -> None:
    """The status of the signal, nothing on stdout, and one line after what was said before."""
    status, said = SIGNALS[signal.Signals(number)]
    assert ended.status == status, ended
    assert ended.out == ""
    assert "Traceback" not in ended.err
    *notes, last = ended.err.splitlines()
    assert last == f"surgekit: {said}; {kept}"
    assert all(note.startswith("[") for note in notes), notes


AT_WORK: dict[str, tuple[str, str, str]] = {
    "bias": (
        drift(prompts=LONG, more="--batch-size 1"),
        "states of math",
        "nothing is half-written",
    ),
    "calibrate, capturing": (
        fit(prompts=LONG, more="--batch-size 1"),
        "states of math",
        "nothing is half-written",
    ),
    "calibrate, fitting": (
        fit(more=f"--iterations {ENDLESS}").replace("--iterations 2 ", ""),
        "states of code",
        "nothing is half-written",
    ),
    "run, capturing": ("run capture.yaml --out new", "capture/", "finished stages are kept"),
    "run, fitting": ("run fit.yaml --out new", "bias/code", "finished stages are kept"),
}


@Number
@pytest.mark.parametrize("case", AT_WORK)
def test_a_signal_at_work(root: Path, tmp_path: Path, case: str, number: int) -> None:
    call, begun, kept = AT_WORK[case]
    out = tmp_path / "out" / "new"
    before = seen(root)
    process = Process(call.replace("--out new", f"--out {out}").split(), root, tmp_path / "said")
    process.says(begun)
    time.sleep(0.05)
    process.signal(number)
    expect_end(process.ended(), number, kept)
    assert seen(root) == before
    if case.startswith("run"):
        sound(out)
    else:
        assert not out.parent.exists() or list(out.parent.iterdir()) == []


def test_an_interrupted_run_goes_on(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new"
    process = Process(["run", "fit.yaml", "--out", str(out)], root, tmp_path / "said")
    process.says("bias/code")
    process.signal(signal.SIGINT)
    assert process.ended().status == 130
    surgery = [{"module": "darts", "iterations": 3}]
    write_recipe(root, "short.yaml", seeds=[0], surgery=surgery)
    assert command(["run", str(root / "short.yaml"), "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "] capture" not in said
    assert "finished stages reused" in said


@Number
def test_a_signal_at_any_moment_of_a_merge(root: Path, tmp_path: Path, number: int) -> None:
    """Either all of it is there, or nothing."""
    statuses = []
    for delay in (0.0, 0.02, 0.1, 0.2, 0.3, 0.4):
        out = tmp_path / f"{delay}" / "merged"
        out.parent.mkdir()
        process = Process(["merge", "big.yml", str(out), "-q"], root, tmp_path / "said")
        time.sleep(delay)
        process.signal(number)
        ended = process.ended()
        statuses.append(ended.status)
        if ended.status == 0:
            assert (out / "mergekit_config.yml").exists()
            continue
        if ended.status not in (-number, NOT_BEGUN):
            expect_end(ended, number, "nothing is half-written")
        assert list(out.parent.iterdir()) == []
    assert SIGNALS[signal.Signals(number)][0] in statuses


@pytest.mark.parametrize("gap", [0.0, 0.005, 0.05])
def test_an_impatient_second_signal_does_not_break_the_cleaning_up(
    root: Path, tmp_path: Path, gap: float
) -> None:
    for case in ("run, fitting", "calibrate, fitting"):
        call, begun, kept = AT_WORK[case]
        out = tmp_path / case / "new"
        call = call.replace("--out new", "--out OUT")
        arguments = [str(out) if a == "OUT" else a for a in call.split()]
        process = Process(arguments, root, tmp_path / "said")
        process.says(begun)
        time.sleep(0.1)
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            process.signal(number)
            time.sleep(gap)
        expect_end(process.ended(), signal.SIGINT, kept)
        assert leftovers(tmp_path) == []


def test_cleaning_up_is_not_broken_off(tmp_path: Path) -> None:
    """A folder of many files takes a while to remove; signals keep coming meanwhile."""
    out = tmp_path / "out" / "new"

    def work() -> None:
        try:
            with signals_unwind(), folder_written_whole(out) as new:
                for i in range(3000):
                    (new / str(i)).write_text("x")
                print("ready", file=sys.stderr, flush=True)
                while True:
                    time.sleep(0.001)
        except KeyboardInterrupt:
            sys.exit(3)

    process = Process(work, tmp_path, tmp_path / "said")
    process.says("ready")
    for _ in range(20):
        process.signal(signal.SIGINT)
        time.sleep(0.001)
    assert process.ended().status == 3
    assert list(out.parent.iterdir()) == []


def test_signals_that_are_ignored_stay_so(root: Path, tmp_path: Path) -> None:
    """As under nohup, or in a script's background job."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        call = drift(prompts=LONG, more="--limit 40")
        process = Process(call.split(), root, tmp_path)
        process.says("states of math")
        process.signal(signal.SIGHUP)
        assert process.ended().status == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# --- a process from its start -------------------------------------------------------------------


def started(arguments: list[str], root: Path, **streams: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(surgekit.__file__).parents[1])}
    call = [sys.executable, "-m", "surgekit", *arguments]
    return subprocess.Popen(call, cwd=root, text=True, env=environment, **streams)


@pytest.mark.slow
@Number
def test_a_signal_to_a_process_of_its_own(root: Path, tmp_path: Path, number: int) -> None:
    """While it imports, and when it works."""
    for delay in (0.5, 1.0, 2.0, None):
        out = tmp_path / str(delay)
        process = started(
            ["run", "fit.yaml", "--out", str(out)], root, stdout=-1, stderr=subprocess.PIPE
        )
        if delay is None:
            assert process.stderr is not None
            while "bias/code" not in process.stderr.readline():
                assert process.poll() is None
        else:
            time.sleep(delay)
        process.send_signal(number)
        said, told = process.communicate(timeout=60)
        ended = Ended(process.returncode, said, told)
        expect_end(ended, number, "finished stages are kept")
        if out.exists():
            sound(out)


def test_a_closed_stdout(root: Path) -> None:
    """Closed from the start: the next file opened must not become stdout by its number."""
    for call in (["--version"], ["--help"]):
        process = started(call, root, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
        assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)


def test_a_reader_that_has_gone(root: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = started(["--help"], root, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_stdout_that_is_full(root: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = started(["--help"], root, stdout=full, stderr=subprocess.PIPE)
        said = process.communicate(timeout=60)[1]
    assert said == "surgekit: No space left on device\n"
    assert process.returncode == 2


def test_a_closed_stderr_loses_words_and_nothing_else(root: Path, tmp_path: Path) -> None:
    call = ["--nope"]
    process = started(call, root, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    assert (process.communicate(timeout=60)[0], process.returncode) == ("", 2)
