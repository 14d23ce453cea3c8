"""What others do to a run directory after a run: it is noticed, or it does not matter."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surgekit.pipeline import contents
from surgekit.pipeline.contents import Contents
from surgekit.pipeline.run_directory import RunDirectory

from .runs import Watch, adapters, document, figures, make_world, recipe, sound, stamps, watched
from .sources import lora
from .tiny import checkpoint, llama, shifted

Finished = tuple[dict[str, Any], Path]


def changes() -> dict[str, Any]:
    """A recipe with an expert to be written out and a model that only the merge names."""
    domains = document()["domains"]
    domains["code"]["expert"] = {"lora": "./lora"}
    models = [{"model": m, "parameters": {"weight": 0.3}} for m in ("math", "code", "./third")]
    merge = {"merge_method": "task_arithmetic", "models": models, "base_model": "base"}
    return {"domains": domains, "merge": merge | {"dtype": "float32"}, "seeds": [0]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_world(tmp_path_factory.mktemp("world") / "project")
    lora(root / "lora", llama(0))
    checkpoint(root / "third", shifted(llama(0), 5, 0.3))
    return root


@pytest.fixture(scope="module")
def finished(world: Path) -> Finished:
    return watched(recipe(world, **changes()), world / "runs" / "run")[0], world / "runs" / "run"


@pytest.fixture
def out(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the finished run, to be disturbed."""
    shutil.copytree(finished[1], tmp_path / "run")
    return tmp_path / "run"


def again(world: Path, finished: Finished, out: Path) -> Watch:
    """Run once more; the end must be that of the undisturbed run."""
    results, watch = watched(recipe(world, **changes()), out)
    assert adapters(out) == adapters(finished[1])
    assert figures(figures(results, out), finished[1]) == figures(finished[0], finished[1])
    sound(out)
    assert watched(recipe(world, **changes()), out)[1].done == []
    return watch


def told(watch: Watch) -> list[str]:
    """What was said of stages that run again."""
    return [note for note in watch.notes if " runs again: " in note]


def flip(path: Path) -> None:
    """Another bit in the middle: same size, and the same time, as a disk or a cheat would leave."""
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


OUTPUTS = {
    "models/code/model.safetensors": "models/code",
    "models/code/tokenizer.json": "models/code",
    "merged/model.safetensors": "merge",
    "merged/config.json": "merge",
    "merged/chat_template.jinja": "merge",
    "states/heads/merged.safetensors": "capture/heads/merged",
    "states/math/test/merged.safetensors": "capture/math/test/merged",
    "states/code/calibration/code.safetensors": "capture/code/calibration/code",
    "adapters/math/linear@both/surgery.safetensors": "surgery/math/linear@both",
    "adapters/code/darts-ewl1@both/surgery_config.json": "surgery/code/darts-ewl1@both",
}


@pytest.mark.parametrize("disturb", [flip, cut, empty, lengthen, Path.unlink])
def test_a_changed_output_is_made_again(
    world: Path, finished: Finished, out: Path, disturb: Callable[[Path], None]
) -> None:
    for name in OUTPUTS:
        disturb(out / name)
    watch = again(world, finished, out)
    assert set(watch.done) == set(OUTPUTS.values())  # and nothing that was made from them
    assert {note.partition(" runs again: ")[0] for note in told(watch)} == set(OUTPUTS.values())
    end = "is gone" if disturb is Path.unlink else "was changed"
    assert all(note.endswith(end) for note in told(watch))


@pytest.mark.parametrize("folder", ["models/code", "merged", "adapters/math/linear@both", "states"])
def test_a_deleted_folder_is_made_again(
    world: Path, finished: Finished, out: Path, folder: str
) -> None:
    shutil.rmtree(out / folder)
    watch = again(world, finished, out)
    stage = {"merged": "merge", "adapters/math/linear@both": "surgery/math/linear@both"}
    if folder == "states":
        assert all(name.startswith("capture/") for name in watch.done)
    else:
        assert watch.done == [stage.get(folder, folder)]


def test_what_a_program_would_read_may_not_come_in(
    world: Path, finished: Finished, out: Path
) -> None:
    for name in ("merged/adapter_config.json", "merged/modeling.py", "models/code/x.safetensors"):
        (out / name).write_text("{}")
    watch = again(world, finished, out)
    assert watch.done == ["models/code", "merge"]
    assert "models/code runs again: models/code/x.safetensors has come in" in watch.notes
    assert not (out / "merged/modeling.py").exists()


def test_cards_and_notes_are_the_user_s_own(world: Path, finished: Finished, out: Path) -> None:
    card = out / "adapters/math/linear@both/README.md"
    card.write_text("my own words")
    (out / "merged/README.md").unlink()
    (out / "merged/merged-q4.gguf").write_bytes(b"made from it")
    (out / "adapters/math/linear@both/.DS_Store").write_bytes(b"of a file manager")
    (out / "notes.txt").write_text("mine")
    assert again(world, finished, out).done == []
    assert card.read_text() == "my own words"
    assert (out / "merged/merged-q4.gguf").exists()


def test_a_changed_marker_is_not_believed(world: Path, finished: Finished, out: Path) -> None:
    def figure(text: str) -> str:
        marker = json.loads(text)
        marker["result"]["merged"] = 0.001
        return json.dumps(marker)

    def unsealed(text: str) -> str:
        marker = json.loads(text)
        del marker["seal"]
        return json.dumps(marker)

    disturbances: dict[str, Callable[[str], str]] = {
        "validation/math": figure,
        "validation/code": unsealed,
        "test/math": lambda text: text[:500],
        "test/code": lambda text: "",
        "bias/math": lambda text: "[]",
        "bias/code": lambda text: "\udcff",
        "cross/math": lambda text: '{"key": NaN}',
        "cross/code": lambda text: "[" * 100_000,
    }
    for name, disturb in disturbances.items():
        path = out / "stages" / f"{name}.json"
        path.write_text(disturb(path.read_text()), errors="surrogateescape")
    watch = again(world, finished, out)
    assert set(watch.done) == set(disturbances)
    assert sum("its marker" in note for note in watch.notes) == len(disturbances)


def test_a_marker_of_another_stage_is_not_believed(
    world: Path, finished: Finished, out: Path
) -> None:
    """They are alike but for what they were made from."""
    stages = out / "stages"
    shutil.copy(stages / "validation/math.json", stages / "validation/code.json")
    shutil.copy(stages / "capture/math/test/merged.json", stages / "capture/code/test/merged.json")
    watch = again(world, finished, out)
    assert set(watch.done) == {"validation/code", "capture/code/test/merged"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"/x": 1}',
        '{"merged/model.safetensors": {"stamp": null}}',
        '{"merged/model.safetensors": {"stamp": [1, 2, 3], "sha256": 7}, "seal": "x"}',
    ],
)
def test_a_damaged_cache_of_digests_is_made_anew(
    world: Path, finished: Finished, out: Path, text: str
) -> None:
    (out / "stages/hashes.json").write_text(text)
    assert again(world, finished, out).done == []


def test_digests_put_in_by_hand_are_not_believed(
    world: Path, finished: Finished, out: Path
) -> None:
    path = out / "stages/hashes.json"
    cache = json.loads(path.read_text())
    for name in cache.keys() - {"seal"}:
        cache[name]["sha256"] = "0" * 64
    path.write_text(json.dumps(cache))
    assert again(world, finished, out).done == []


@pytest.mark.parametrize("text", ["{}", "[1, 2]", "not JSON", None])
def test_results_changed_or_deleted_are_written_anew(
    world: Path, finished: Finished, out: Path, text: str | None
) -> None:
    path = out / "results.json"
    path.unlink() if text is None else path.write_text(text)
    assert again(world, finished, out).done == []
    found = json.loads(path.read_text())
    assert figures(figures(found, out), finished[1]) == figures(finished[0], finished[1])


# --- elsewhere ------------------------------------------------------------------------------------


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read to be compared, from now on."""
    read: list[Path] = []
    real = contents.file_checksum

    def checksum(path: Path) -> str:
        read.append(path)
        return real(path)

    monkeypatch.setattr(contents, "file_checksum", checksum)
    return read


def test_a_moved_run_goes_on(
    world: Path, finished: Finished, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(world, finished, out)
    out.rename(out.with_name("elsewhere"))
    read = hashed(monkeypatch)
    assert again(world, finished, out.with_name("elsewhere")).done == []
    assert read == []  # nothing but its place has changed


@pytest.mark.parametrize("kept", [shutil.copy2, shutil.copyfile])
def test_a_copied_run_goes_on(
    world: Path,
    finished: Finished,
    tmp_path: Path,
    kept: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With or without its time stamps; everything is compared once, and never again."""
    out = tmp_path / "run"
    shutil.copytree(finished[1], out, copy_function=kept)
    for path in out.rglob("*"):
        if kept is shutil.copyfile and path.is_file():
            os.utime(path, (1e9, 1e9))
    before = stamps(out)
    read = hashed(monkeypatch)
    watch = watched(recipe(world, **changes()), out)[1]
    assert (watch.done, told(watch)) == ([], [])
    assert len(read) == len(set(read)) > 20
    after = stamps(out)
    assert {n for n in after if after[n] != before[n]} == {"stages/hashes.json"}
    read.clear()
    assert watched(recipe(world, **changes()), out)[1].done == []
    assert read == []


def test_a_copy_of_hidden_files_left_behind(
    world: Path, finished: Finished, tmp_path: Path
) -> None:
    """As ``cp -r run/* elsewhere`` makes it."""
    out = tmp_path / "run"
    shutil.copytree(finished[1], out, ignore=lambda folder, names: {".lock"} & set(names))
    assert again(world, finished, out).done == []


def test_a_moved_project_goes_on(world: Path, finished: Finished, tmp_path: Path) -> None:
    """Recipe, models, prompts and run: what counts is what is in them, not where they lie."""
    project = tmp_path / "another place" / "project"
    shutil.copytree(world, project)
    results, watch = watched(recipe(project, **changes()), project / "runs" / "run")
    assert (watch.done, told(watch)) == ([], [])
    assert results["models"]["base"]["source"] == str(project / "base")


def test_reached_over_a_link(world: Path, finished: Finished, out: Path) -> None:
    out.with_name("link").symlink_to(out)
    assert again(world, finished, out.with_name("link")).done == []


def test_another_lora_with_the_same_name_is_another(
    world: Path, finished: Finished, out: Path, tmp_path: Path
) -> None:
    made = changes()
    made["domains"]["code"]["expert"] = {"lora": str(tmp_path / "lora")}
    shutil.copytree(world / "lora", tmp_path / "lora")
    assert watched(recipe(world, **made), out)[1].done == []
    shutil.rmtree(tmp_path / "lora")
    lora(tmp_path / "lora", llama(0), lora_alpha=4)
    assert watched(recipe(world, **made), out)[1].done[:2] == ["models/code", "merge"]


# --- the parts ------------------------------------------------------------------------------------


def test_stamps_are_trusted_and_contents_decide(tmp_path: Path) -> None:
    root = tmp_path / "run"
    (root / "stages").mkdir(parents=True)
    output = root / "output"
    output.write_bytes(b"abc")
    kept = Contents(root)
    record = kept.record([output])
    assert kept.differs([output], record) is None
    output.write_bytes(b"abd")
    assert kept.differs([output], record) == "output was changed"
    output.write_bytes(b"abc")
    assert kept.differs([output], record) is None
    kept.save()
    assert Contents(root).differs([output], record) is None
    output.unlink()
    assert kept.differs([output], record) == "output is gone"
    output.mkdir()  # a folder in a file's place
    assert kept.differs([output], record) == "output is gone"


def test_results_are_the_same_taken_from_a_marker(tmp_path: Path) -> None:
    """What JSON makes of a result is what the stage returns the first time, too."""
    root = tmp_path / "run"
    with RunDirectory.open(root, Watch()) as run:
        first = run.stage("s", {}, [], lambda: {1: (0.1, None), "ä": [True]})
        assert first == run.stage("s", {}, [], lambda: None) == {"1": [0.1, None], "ä": [True]}
    assert run.reused == ["s"]
