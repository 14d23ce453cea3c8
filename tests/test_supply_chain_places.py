"""Names of adapters, links and indexes stay where they belong, and steer no terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import surgekit
from surgekit.adapters.attach import SurgeryHandle
from surgekit.adapters.files import load_adapter, save_adapter
from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.merging import merge
from surgekit.models.loading import load_model
from surgekit.models.source import resolve_folder
from surgekit.recipe import parse_recipe
from surgekit.surgery.config import SurgeryConfig
from surgekit.surgery.modules import SurgeryModule

from .runs import document, make_world
from .tiny import HIDDEN, llama

NAMES = {
    "up": "../evil",
    "far up": "../../../../../../tmp/evil",
    "two dots": "..",
    "a dot": ".",
    "hidden": ".evil",
    "of a killed run": ".math.part-1",
    "a path": "a/b",
    "absolute": "/tmp/evil",
    "of another system": "a\\b",
    "a drive": "C:evil",
    "nul": "a\0b",
    "a line break": "a\nb",
    "its end": "evil\n",
    "a blank": " ",
    "blanks around": " a ",
    "nothing": "",
    "home": "~root",
    "an option": "-rf",
    "a lookalike slash": "a\u2215b",
    "lookalike dots": "\u2024\u2024",
    "fullwidth": "\uff41\uff0f\uff42",
    "cyrillic": "m\u0430th",
    "right to left": "a\u202eb",
    "combined": "e\u0301",
    "very long": "a" * 129,
    "longer than a path": "a" * 5000,
    "kept for none": "__base__",
    "two underscores": "__evil",
    "a variable": "$HOME",
    "a wildcard": "*",
    "a separator of paths": "a:b",
}


def module() -> SurgeryModule:
    return SurgeryModule(SurgeryConfig(module="mean-shift", hidden_size=HIDDEN))


def everything(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NAMES)
def test_an_adapter_s_name_is_no_path(kind: str, tmp_path: Path) -> None:
    name = NAMES[kind]
    model = llama(0)
    with pytest.raises(InputError, match="adapter name"):
        surgekit.attach(model, {name: module()})
    with surgekit.attach(model, {"good": module()}) as handle:
        with pytest.raises(InputError, match="adapter name"):
            handle.add_adapter(name, module())
        before = everything(tmp_path)
        handle.save_pretrained(tmp_path / "deep" / "er")
        new = everything(tmp_path) - before
    assert all(p in ("deep", "deep/er") or p.startswith("deep/er/good") for p in new)


@pytest.mark.parametrize("kind", [k for k in NAMES if k != "nothing"])
def test_nor_is_the_domain_that_an_adapter_s_file_names(kind: str, tmp_path: Path) -> None:
    save_adapter(module(), tmp_path / "ad", domain=NAMES[kind])
    with pytest.raises(InputError):
        surgekit.attach(llama(0), tmp_path / "ad")
    command(["inspect", str(tmp_path / "ad")])  # shown or refused, no trace of a crash
    if kind in ("up", "absolute", "nul"):
        # Under a name of the user's it does no harm.
        with surgekit.attach(llama(0), {"math": tmp_path / "ad"}) as handle:
            handle.save_pretrained(tmp_path / "out")
        assert [p.name for p in (tmp_path / "out").iterdir()] == ["math"]


@pytest.mark.parametrize(
    ("domain", "shown"),
    [
        ("[/bold]", "[/bold]"),
        ("[link=http://evil]x[/link]", "[link=http://evil]x[/link]"),
        (":boom:", ":boom:"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\u202etxet", r"\u202etxet"),
    ],
)
def test_what_an_adapter_says_steers_no_terminal(
    domain: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_adapter(module(), tmp_path / "ad", domain=domain)
    assert command(["inspect", str(tmp_path / "ad")]) == 0
    assert f"│ {shown} " in capsys.readouterr().out
    assert command(["inspect", str(tmp_path / domain.replace("/", "-"))]) == 2
    said = capsys.readouterr().err
    assert shown.replace("/", "-") in said
    assert "\x1b" not in said


def test_folders_that_are_no_names_are_no_adapters(tmp_path: Path) -> None:
    for name in ("good", "not a name", "a:b"):
        save_adapter(module(), tmp_path / name)
    with pytest.raises(InputError, match="adapter name"):
        SurgeryHandle.from_pretrained(llama(0), tmp_path)


@pytest.mark.parametrize("kind", NAMES)
def test_nor_are_names_in_a_recipe(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = document()
    made["domains"][NAMES[kind]] = made["domains"].pop("math")
    with pytest.raises(InputError):
        parse_recipe(yaml.safe_dump(made), here)
    made = document(surgery=[{"module": "mean-shift", "name": NAMES[kind]}])
    with pytest.raises(InputError):
        parse_recipe(yaml.safe_dump(made), here)


@pytest.mark.parametrize(
    "kind", ["up", "absolute", "hidden", "a blank", "kept for none", "cyrillic"]
)
def test_nor_is_the_name_given_to_calibrate(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(here.parent)
    expert = f"{NAMES[kind]}=math"
    call = ["calibrate", "--merged=code", "--prompts=data/math/test.jsonl", "--out=ad"]
    assert command([*call, f"--expert={expert}"]) == 2
    assert "adapter name" in capsys.readouterr().err
    assert everything(here.parent) == before


# --- what a checkpoint points to ----------------------------------------------------------------


def sharded(folder: Path, name: str, kind: str = "model.safetensors") -> Path:
    """A checkpoint whose index says that all weights lie in ``name``."""
    from safetensors.torch import load_file

    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, name)}
    (folder / f"{kind}.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    "name",
    [
        "../code/model.safetensors",
        "{here}/code/model.safetensors",
        "sub/../../code/model.safetensors",
        "..\\code\\model.safetensors",
        "..",
        ".",
        "",
        "/etc/passwd",
        "/dev/zero",
        "a\0b",
        None,
        7,
        ["a"],
    ],
)
def test_an_index_names_files_beside_it(name: Any, kind: str, here: Path) -> None:
    name = name.format(here=here) if isinstance(name, str) else name
    folder = sharded(here / "math", name, kind)
    with pytest.raises(InputError, match=r"index\.json"):
        load_model(folder)
    with pytest.raises(InputError, match=r"index\.json"):
        merge({"merge_method": "linear"}, here / "out", models={"math": folder})
    (here / "recipe.yaml").write_text(yaml.safe_dump(document()))
    assert command(["check", "recipe.yaml"]) == 2
    assert not (here / "out").exists()


def test_an_honest_index_still_works(here: Path) -> None:
    shutil.copy(here / "math" / "model.safetensors", here / "weights-1-of-1.safetensors")
    folder = sharded(here / "math", "weights-1-of-1.safetensors")
    shutil.move(here / "weights-1-of-1.safetensors", folder)
    load_model(folder)
    merge({"merge_method": "linear"}, here / "out", models={"math": folder})


@pytest.mark.parametrize("link", ["vocab.txt", "chat_template.jinja", "preprocessor_config.json"])
def test_a_link_brings_no_file_of_the_user_s_along(link: str, here: Path, tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text('{"key": "SECRET"}')
    (here / "base" / link).unlink(missing_ok=True)
    (here / "base" / link).symlink_to(secret)
    models = {"math": here / "math"}
    with pytest.raises(InputError, match=f"{link}: expected a file of the checkpoint"):
        merge({"merge_method": "task_arithmetic"}, here / "out", models=models, base=here / "base")
    assert not (here / "out").exists()


def test_links_as_people_make_them_are_followed(here: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "hub" / "models--owner--name" / "blobs"
    cached = blobs.parent / "snapshots" / "0a1b"
    cached.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted((here / "math").iterdir())):
        shutil.copy(file, blobs / f"{number:064x}")
        (cached / file.name).symlink_to(f"../../blobs/{number:064x}")
    variant = here / "variant"
    variant.mkdir()
    for file in (here / "code").iterdir():
        (variant / file.name).symlink_to(file)
    weights = here / "elsewhere.safetensors"
    (here / "base" / "model.safetensors").rename(weights)
    (here / "base" / "model.safetensors").symlink_to(weights)
    (here / "whole").symlink_to(here / "math")
    for folder in (cached, variant, here / "base", here / "whole"):
        load_model(folder)
    merge({"merge_method": "linear"}, here / "out", models={"a": cached, "b": here / "variant"})


def test_saving_replaces_what_a_link_points_to_only_if_it_is_an_adapter(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "math").symlink_to(tmp_path / "mine")
    with (
        surgekit.attach(llama(0), {"math": module()}) as handle,
        pytest.raises(InputError, match="an adapter alone"),
    ):
        handle.save_pretrained(tmp_path / "out")
    assert everything(tmp_path / "mine") == {"thesis.txt"}
    save_adapter(module(), tmp_path / "real")
    (tmp_path / "ad").symlink_to(tmp_path / "real")
    assert load_adapter(tmp_path / "ad")[1].format == 1


@pytest.mark.parametrize(
    "model",
    [
        "../owner/name",
        "owner/../name",
        "owner/name/../../other",
        "owner/..",
        "owner/na me",
        "owner/na\0me",
        "owner\\name",
        "--help/name",
        "owner/" + "a" * 500,
        "file:///etc",
        "https://huggingface.co/owner/name",
    ],
)
def test_a_hub_id_is_no_path(model: str, here: Path) -> None:
    for function in (
        lambda: resolve_folder(model),
        lambda: load_model(model),
        lambda: merge({"merge_method": "linear"}, here / "out", models={"a": model}),
        lambda: SurgeryHandle.from_pretrained(llama(0), model),
    ):
        with pytest.raises(InputError) as caught:
            function()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["model", "gguf", "lora"])
def test_an_address_is_said_to_be_one(key: str, here: Path) -> None:
    address = "https://huggingface.co/owner/name"
    with pytest.raises(InputError, match="found an address"):
        load_model({key: address}, base=here / "base")
    with pytest.raises(InputError, match="found an address"):
        parse_recipe(yaml.safe_dump(document(base={key: address})), here)
    with pytest.raises(InputError, match="found an address"):
        merge({"merge_method": "linear", "models": [{"model": address}]}, here / "out")
