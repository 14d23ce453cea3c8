"""The run directory: what is not run again, what is, and what interruptions and others do to it."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from surgekit.errors import InputError, SurgekitError
from surgekit.pipeline.run import run_recipe
from surgekit.pipeline.run_directory import RunDirectory, expect_free

from .runs import (
    DOMAINS,
    SPLITS,
    Watch,
    adapters,
    document,
    figures,
    make_world,
    recipe,
    sound,
    stamps,
    watched,
)
from .sources import lora
from .tiny import checkpoint, jsonl, llama, prompts, shifted

SURGERY = {f"surgery/{d}/{m}" for d in DOMAINS for m in ("darts-ewl1@both", "linear@both")}
SPREAD = {f"surgery/{d}/.seeds/1/{m}" for d in DOMAINS for m in ("darts-ewl1@both", "linear@both")}
JUDGED = {f"{stage}/{d}" for d in DOMAINS for stage in ("validation", "test")}
CROSS = {f"cross/{d}" for d in DOMAINS}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_world(tmp_path_factory.mktemp("world"))
    lora(root / "lora", llama(0))
    return root


@pytest.fixture(scope="module")
def finished(world: Path) -> tuple[dict[str, Any], Path, list[str]]:
    """(results, run directory, stages) of the small recipe."""
    results, watch = watched(recipe(world), world / "run")
    assert watch.reused == []
    return results, world / "run", watch.done


@pytest.fixture
def out(finished: tuple[dict[str, Any], Path, list[str]], tmp_path: Path) -> Path:
    """A copy of the finished run, to be worked on."""
    shutil.copytree(finished[1], tmp_path / "run")
    return tmp_path / "run"


# --- what is run again --------------------------------------------------------------------------


def test_a_finished_run_is_not_run_again(
    world: Path, finished: tuple[dict[str, Any], Path, list[str]], out: Path
) -> None:
    before = stamps(out)
    (out / "stages/hashes.json").unlink()  # read again, as of a copy
    assert sum(name.startswith("adapters") for name in before) == 3 * 8
    results, watch = watched(recipe(world), out)
    assert watch.done == []
    assert watch.reused == finished[2]
    name = "stages/hashes.json"
    assert stamps(out) | {name: before[name]} == before
    assert results == finished[0]  # times and memory too: those of when it was run


def again(world: Path, out: Path, **changes: Any) -> set[str]:
    """The stages that are run again with another recipe."""
    return set(watched(recipe(world, **changes), out)[1].done)


def test_another_further_seed(world: Path, out: Path) -> None:
    done = again(world, out, seeds=[0, 2])
    assert done == {s.replace("/1/", "/2/") for s in SPREAD} | JUDGED


def test_one_more_seed(world: Path, out: Path) -> None:
    done = again(world, out, seeds=[0, 1, 7])
    assert done == {s.replace("/1/", "/7/") for s in SPREAD} | JUDGED


def test_another_first_seed(world: Path, out: Path) -> None:
    done = again(world, out, seeds=[5, 1])
    assert done - CROSS == SURGERY | JUDGED


def test_another_first_seed_of_a_merge_that_draws_random_numbers(
    world: Path, tmp_path: Path
) -> None:
    """The merge takes it too, so all that comes after is done again, and only that."""
    parameters = {"lambda": 0.5, "density": 0.5}
    merge = {"merge_method": "dare_linear", "parameters": parameters, "dtype": "float32"}
    changes = {"merge": merge, "surgery": [{"module": "mean-shift"}]}
    first = run_recipe(recipe(world, **changes), tmp_path / "run")
    before = adapters(tmp_path / "run")
    other, watch = watched(recipe(world, **changes, seeds=[5, 1]), tmp_path / "run")
    assert (first["models"]["merged"]["seed"], other["models"]["merged"]["seed"]) == (0, 5)
    assert first["models"]["merged"]["fingerprint"] != other["models"]["merged"]["fingerprint"]
    assert "merge" in watch.done
    kept = {f"capture/heads/{m}" for m in ("base", *DOMAINS)}
    kept |= {f"capture/{d}/{s}/{d}" for d in DOMAINS for s in (*SPLITS, "noise")}
    kept |= {f"capture/{d}/{s}/base" for d in DOMAINS for s in ("validation", "test")}
    assert not set(watch.done) & kept
    assert watched(recipe(world, **changes, seeds=[5, 1, 2]), tmp_path / "run")[1].done != []
    again = run_recipe(recipe(world, **changes), tmp_path / "run")
    assert adapters(tmp_path / "run").items() >= before.items()
    assert again["models"] == first["models"]


def test_one_more_method(world: Path, out: Path) -> None:
    before = stamps(out)
    surgery = [*document()["surgery"], {"module": "table", "iterations": 1}]
    done = again(world, out, surgery=surgery)
    new = {f"surgery/{d}/table-l1@both" for d in DOMAINS}
    new |= {f"surgery/{d}/.seeds/1/table-l1@both" for d in DOMAINS}
    assert done == new | JUDGED
    after = stamps(out)
    for name in before:
        if name.startswith(("adapters", "states", "merged")):
            assert after[name] == before[name]


def test_another_setting_of_a_method(world: Path, out: Path) -> None:
    surgery = [document()["surgery"][0] | {"iterations": 5}, document()["surgery"][1]]
    done = again(world, out, surgery=surgery)
    changed = {s for s in SURGERY | SPREAD if "darts" in s}
    assert done - CROSS == changed | JUDGED  # cross effects follow only if it was the best one


def test_fewer_test_prompts(world: Path, out: Path) -> None:
    domains = document()["domains"]
    domains["math"]["test"] = {"file": "data/math/test.jsonl", "items": 5}
    done = again(world, out, domains=domains)
    assert done == {
        *(f"capture/math/test/{m}" for m in ("merged", "base", "math")),
        "capture/math/noise/math",
        "bias/math",
        "test/math",
        "cross/math",
    }


def test_another_width_of_bins(world: Path, out: Path) -> None:
    done = again(world, out, position_bin=8)
    assert done == {f"{stage}/{d}" for d in DOMAINS for stage in ("bias", "test")}


def test_other_words_in_a_prompt_file(world: Path, out: Path, tmp_path: Path) -> None:
    domains = document()["domains"]
    other = jsonl(tmp_path / "v.jsonl", prompts(10, "code others"))
    domains["code"]["validation"] = str(other)
    done = again(world, out, domains=domains)
    models = ("merged", "base", "code")
    assert done == {*(f"capture/code/validation/{m}" for m in models),
                    "experts/code", "validation/code"}  # fmt: skip
    original = world / "data" / "code" / "validation.jsonl"
    other.write_text(original.read_text())
    assert again(world, out, domains=domains) == done  # the marker was the other one's
    other.write_text(original.read_text().replace("\n", "\n\n"))
    assert again(world, out, domains=domains) == set()  # the same prompts


def test_other_weights_of_an_expert(world: Path, out: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "code", tmp_path / "code")
    domains = document()["domains"]
    domains["code"]["expert"] = str(tmp_path / "code")
    assert again(world, out, domains=domains) == set()  # elsewhere, but the same
    shutil.rmtree(tmp_path / "code")
    checkpoint(tmp_path / "code", shifted(llama(0), 77, 0.3))
    done = again(world, out, domains=domains)
    assert {"merge", "capture/code/test/code", "surgery/math/linear@both"} <= done
    assert not {n for n in done if n.endswith(("/math/test/math", "/base"))}


def test_other_weights_of_a_model_that_is_no_expert(world: Path, tmp_path: Path) -> None:
    """A merge may take models that the recipe names nowhere else."""
    third = checkpoint(tmp_path / "third", shifted(llama(0), 5, 0.3))
    models = [{"model": m, "parameters": {"weight": 0.5}} for m in ("math", str(third))]
    merge = {"merge_method": "linear", "models": models, "dtype": "float32"}
    changes = {"merge": merge, "surgery": [{"module": "mean-shift"}], "seeds": [0]}
    assert "merge" in again(world, tmp_path / "run", **changes)
    assert again(world, tmp_path / "run", **changes) == set()
    shutil.rmtree(third)
    checkpoint(third, shifted(llama(0), 6, 0.3))
    assert "merge" in again(world, tmp_path / "run", **changes)


def test_what_was_deleted_is_made_again(
    world: Path, finished: tuple[dict[str, Any], Path, list[str]], out: Path
) -> None:
    (out / "states/math/test/merged.safetensors").unlink()
    (out / "stages/validation/code.json").write_text("{")
    shutil.rmtree(out / "adapters/code/linear@both")
    before = adapters(finished[1])
    results, watch = watched(recipe(world), out)
    assert watch.done == [
        "capture/math/test/merged",
        "surgery/code/linear@both",
        "validation/code",
    ]
    assert adapters(out) == before
    assert figures(results, out) == figures(finished[0], finished[1])


def test_seeds_in_another_order_take_their_own_adapters(
    world: Path, finished: tuple[dict[str, Any], Path, list[str]], tmp_path: Path
) -> None:
    """The first seed's adapter lies in a place of its own, which so passes from seed to seed."""
    merge = {"folder": str(finished[1] / "merged")}  # a merge here would change with it
    fresh = {seeds: tmp_path / "-".join(map(str, seeds)) for seeds in ((0, 1), (1, 0))}
    for seeds, folder in fresh.items():
        run_recipe(recipe(world, merge=merge, seeds=list(seeds)), folder)
    first, other = (adapters(folder) for folder in fresh.values())
    assert first["math/darts-ewl1@both"] == other["math/.seeds/0/darts-ewl1@both"]
    assert first["math/darts-ewl1@both"] != other["math/darts-ewl1@both"]
    shutil.copytree(fresh[0, 1], tmp_path / "run")
    for seeds in ((1, 0), (0, 1)):
        results = run_recipe(recipe(world, merge=merge, seeds=list(seeds)), tmp_path / "run")
        wanted = adapters(fresh[seeds])
        assert {k: v for k, v in adapters(tmp_path / "run").items() if k in wanted} == wanted
        found = json.loads((fresh[seeds] / "results.json").read_text())
        assert figures(results, tmp_path / "run") == figures(found, fresh[seeds])


def test_a_domain_of_another_name(
    world: Path, finished: tuple[dict[str, Any], Path, list[str]], out: Path
) -> None:
    domains = {"sums": document()["domains"]["math"], "code": document()["domains"]["code"]}
    merge = {"folder": str(finished[1] / "merged")}
    run_recipe(recipe(world, merge=merge), out)
    results = run_recipe(recipe(world, merge=merge, domains=domains), out)
    assert set(results["cross_domain"]) == {"sums", "code"}
    for row in results["cross_domain"].values():
        assert set(row) == {"method", "sums", "code"}
    old, new = finished[0]["domains"]["math"], results["domains"]["sums"]
    assert new["metrics"] == old["metrics"]


# --- interruptions ------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_to_the_same_end(world: Path, tmp_path: Path) -> None:
    domains = document()["domains"]
    domains["code"]["expert"] = {"lora": "./lora"}
    made = recipe(world, domains=domains)
    wanted, watch = watched(made, tmp_path / "whole")
    # A run that finds all done tells least, so that each of these points is reached in any.
    least = watched(made, tmp_path / "whole")[1].told
    points = sorted(random.Random(3).sample(range(1, least), 6))
    out = tmp_path / "run"
    total = 0
    for point in points:
        with pytest.raises(KeyboardInterrupt):
            run_recipe(made, out, reporter=Watch(point))
        sound(out)
        assert not (out / "results.json").exists()
        kept = sum(1 for p in (out / "stages").rglob("*.json") if p.name != "hashes.json")
        assert kept >= total
        total = kept
    results, rest = watched(made, out)
    assert 0 < len(rest.done) < len(watch.done)
    assert adapters(out) == adapters(tmp_path / "whole")
    assert figures(results, out) == figures(wanted, tmp_path / "whole")


def test_an_output_is_never_taken_for_that_of_other_inputs(tmp_path: Path) -> None:
    """A stage that is interrupted after its output, before its marker, leaves none at all."""
    output = tmp_path / "run" / "output"
    interrupted = [False]

    def work(value: int) -> int:
        output.write_text(str(value))
        if interrupted[0]:
            raise KeyboardInterrupt
        return value

    with RunDirectory.open(tmp_path / "run", Watch()) as run:

        def stage(value: int) -> int:
            return run.stage("s", {"value": value}, [output], lambda: work(value))

        assert (stage(1), stage(1), run.reused) == (1, 1, ["s"])
        interrupted[0] = True
        with pytest.raises(KeyboardInterrupt):
            stage(2)
        interrupted[0] = False
        assert stage(1) == 1
        assert output.read_text() == "1"
        with pytest.raises(SurgekitError, match="stage t left no"):
            run.stage("t", {}, [tmp_path / "never"], lambda: None)


def test_interrupted_while_writing(
    world: Path,
    finished: tuple[dict[str, Any], Path, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = os.fsync
    left = [0]

    def fsync(handle: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    out = tmp_path / "run"
    stopped = 0
    for count in (1, 2, 3, 9, 17, 20, 41, 8):
        left[0] = count
        try:
            run_recipe(recipe(world), out)
        except KeyboardInterrupt:
            stopped += 1
        sound(out)
    assert stopped >= 7
    results = run_recipe(recipe(world), out)
    assert adapters(out) == adapters(finished[1])
    assert figures(results, out) == figures(finished[0], finished[1])


# --- whose directory it is ----------------------------------------------------------------------


def test_a_second_run_on_one_directory_is_refused(world: Path, tmp_path: Path) -> None:
    with (
        RunDirectory.open(tmp_path / "run", Watch()),
        pytest.raises(InputError, match="another run is at work"),
    ):
        run_recipe(recipe(world), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_looking_whether_a_directory_is_free_disturbs_nobody(tmp_path: Path) -> None:
    root = tmp_path / "run"
    expect_free(root)
    with (
        RunDirectory.open(root, Watch()),
        pytest.raises(InputError, match="another run is at work"),
    ):
        expect_free(root)
    with (root / ".lock").open("rb") as looking:  # as expect_free does, but for longer
        fcntl.flock(looking, fcntl.LOCK_SH)
        expect_free(root)
        ending = threading.Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        ending.start()
        with RunDirectory.open(root, Watch()):
            ending.join()


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: (folder / "notes.txt").write_text("mine"),
        lambda folder: (folder / "recipe.yaml").write_text("mine"),
        lambda folder: (folder / "results.json").write_text("{}"),
        lambda folder: (folder / ".git").mkdir(),
        lambda folder: (folder / "stages").write_text("a file"),
    ],
)
def test_a_folder_of_other_things_is_refused(
    world: Path, tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    make(tmp_path)
    before = {p.name: p.read_bytes() if p.is_file() else None for p in tmp_path.iterdir()}
    with pytest.raises(InputError, match="holds other things than a run"):
        run_recipe(recipe(world), tmp_path)
    assert {p.name: p.read_bytes() if p.is_file() else None for p in tmp_path.iterdir()} == before


def test_places_that_are_no_folder(world: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="found a file"):
        run_recipe(recipe(world), tmp_path / "file")
    with pytest.raises(InputError, match="cannot write"):
        run_recipe(recipe(world), tmp_path / "file" / "run")


def test_another_recipe_in_the_same_place_is_told(world: Path, out: Path) -> None:
    """What it no longer has stays, and is named."""
    told = watched(recipe(world), out)[1].notes
    assert not [n for n in told if "another recipe" in n or "adapters/" in n]
    text = (out / "recipe.yaml").read_text()
    (out / "recipe.yaml").write_text(yaml.safe_dump(yaml.safe_load(text), sort_keys=True))
    told = watched(recipe(world), out)[1].notes
    assert not [n for n in told if "another recipe" in n]
    before = adapters(out)
    gone = [name for name in before if "linear" in name and ".seeds" not in name]
    assert len(gone) == 2
    told = watched(recipe(world, surgery=document()["surgery"][:1]), out)[1].notes
    (said,) = [n for n in told if "another recipe" in n]
    assert said.startswith(f"{out} was made by another recipe")
    (said,) = [n for n in told if "of methods that are not in this recipe" in n]
    assert all(f"adapters/{name}" in said for name in gone)
    assert "darts" not in said
    assert before == adapters(out)
    (out / "recipe.yaml").write_text("{")
    told = watched(recipe(world), out)[1].notes
    assert len([n for n in told if "another recipe" in n]) == 1
