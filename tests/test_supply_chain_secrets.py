"""Secrets and homes stay out of what is said, written and published."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import surgekit
from surgekit.adapters.attach import SurgeryHandle
from surgekit.cli import run as command
from surgekit.errors import InputError, SurgekitError, without_secrets
from surgekit.findings import Finding
from surgekit.merging import merge
from surgekit.merging.record import public_names
from surgekit.recipe import parse_recipe

from .runs import DOMAINS, document, make_world
from .sources import edit, lora
from .tiny import llama


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


# --- secrets ------------------------------------------------------------------------------------

PASSWORD = "pa55w0rdOfTheUser"
TOKEN = "hf_" + "Zq7Xw3Lm9Rt2Kp5Vb8" * 2
SECRETS = {
    "HF_TOKEN": TOKEN,
    "HUGGING_FACE_HUB_TOKEN": "hf_" + "Ab1Cd2Ef3Gh4Ij5Kl6" * 2,
    "OPENAI_API_KEY": "sk-proj-SECRETSECRETSECRET1",
    "WANDB_API_KEY": "wandbSECRETSECRETSECRET2",
    "AWS_SECRET_ACCESS_KEY": "awsSECRETSECRETSECRET3",
}
STORED = "hf_" + "St0redOnDisk4Ever9" * 2
ALL = [*SECRETS.values(), STORED, PASSWORD]
ADDRESS = f"https://user:{PASSWORD}@huggingface.co/owner/name"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"at {ADDRESS}: no", "at https://***@huggingface.co/owner/name: no"),
        (f"/a/https:/{PASSWORD}@hf.co/x", "/a/https:/***@hf.co/x"),
        (f"git+ssh://git:{PASSWORD}@host", "git+ssh://***@host"),
        (f"token {TOKEN}.", "token hf_***."),
        ("owner/name@main and a@b.c", "owner/name@main and a@b.c"),
        ("https://huggingface.co/owner/name@main", "https://huggingface.co/owner/name@main"),
        ("hf_hub_download of hf_xet", "hf_hub_download of hf_xet"),
    ],
)
def test_secrets_in_messages_are_blotted_out(text: str, left: str) -> None:
    assert without_secrets(text) == left
    assert str(SurgekitError(text)) == left


def said_of(source: Any, here: Path) -> str:
    """All that is said of a model, wherever it can be named, and shown with --traceback."""
    texts = []
    for function in (
        lambda: surgekit.load_model(source),
        lambda: surgekit.load_model({"model": source, "revision": 7}),
        lambda: surgekit.load_model({"gguf": source}),
        lambda: surgekit.load_model({"lora": source}, base=here / "base"),
        lambda: surgekit.load_tokenizer(source),
        lambda: merge({"merge_method": "linear"}, here / "out", models={"a": source}),
        lambda: SurgeryHandle.from_pretrained(llama(0), source),
        lambda: surgekit.read_prompts(source),
        lambda: parse_recipe(yaml.safe_dump(document(base=source, seeds=source)), here),
    ):
        with pytest.raises(InputError) as caught:
            function()
        texts.append(str(caught.value))
    return "\n".join(texts)


@pytest.mark.parametrize("source", [ADDRESS, f"https://{TOKEN}@huggingface.co/o/n", f"o/{TOKEN}"])
def test_an_address_with_a_password_is_not_repeated(
    source: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said_of(source, here)
    (here / "merge.yml").write_text(
        yaml.safe_dump({"merge_method": "linear", "models": [{"model": source}]})
    )
    made = document()
    made["domains"]["math"]["expert"] = source
    (here / "recipe.yaml").write_text(yaml.safe_dump(made))
    ask = ["--expert", f"math={source}", "--prompts", "math=data/math/test.jsonl"]
    for call in (
        ["merge", "merge.yml", "out", "--quiet"],
        ["check", "recipe.yaml"],
        ["run", "recipe.yaml", "--out", "run"],
        ["bias", "--merged", source, *ask],
        ["bias", "--merged", "code", *ask],
        ["calibrate", "--merged", "code", "--out", "ad", *ask],
        ["inspect", source],
    ):
        assert command([*call, "--traceback"]) == 2, call
        said = capsys.readouterr()
        text += said.out + said.err
    for name in ("out", "run", "ad"):
        assert not (here / name).exists()
    assert "***" in text
    assert not [s for s in ALL if s in text]


def test_no_secret_of_the_environment_is_written(here: Path, tmp_path: Path) -> None:
    home = tmp_path / "home" / "secretive_user"
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text(STORED)
    shutil.move(here, home / "world")
    root = home / "world"
    lora(root / "lora", llama(0), root / "base")
    edit(root / "base" / "config.json", _name_or_path=str(root / "base"))
    made = document(seeds=[0], surgery=[{"module": "darts", "iterations": 2, "rank": 2}])
    made["domains"]["math"]["expert"] = {"lora": "./lora"}
    models = [{"model": n, "parameters": {"weight": 1.0}} for n in ("math", "./code", "./extra")]
    made["merge"]["models"] = models
    shutil.copytree(root / "code", root / "extra")
    (root / "recipe.yaml").write_text(yaml.safe_dump(made))
    absolute = {"merge_method": "linear", "models": [{"model": str(root / d)} for d in DOMAINS]}
    for model in absolute["models"]:
        model["parameters"] = {"weight": 0.5}
    (root / "merge.yml").write_text(yaml.safe_dump(absolute))
    math = ["--expert", "math=lora", "--prompts", "math=data/math/test.jsonl"]
    calls = [
        ["check", "recipe.yaml"],
        ["init", "merge.yml"],
        ["run", "recipe.yaml", "--out", "out"],
        ["merge", "merge.yml", "merged"],
        ["bias", "--merged", "out/merged", *math],
        ["calibrate", "--merged", "out/merged", *math, "--out", "ad", "--iterations", "2"],
        ["inspect", "ad"],
        ["inspect", "out"],
        ["inspect", "recipe.yaml"],
        ["run", "recipe.yaml", "--out", "out", "--device", "nothing"],
    ]
    script = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG)\n"
        "from surgekit.cli import run\n"
        f"for call in {calls!r}:\n"
        "    print(call, run([*call, '--traceback']))\n"
    )
    settings = {"HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = os.environ | SECRETS | settings
    environment = {k: v for k, v in environment.items() if not k.startswith("XDG")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"] 0\n") == len(calls) - 2, done.stdout + done.stderr
    written = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    written |= {Path("stdout"): done.stdout, Path("stderr"): done.stderr}
    found = [(p, s) for p, text in written.items() for s in ALL if s.encode() in text]
    assert not found
    # What is published: the merged folders and the adapters.
    shipped = [root / "out" / "merged", root / "out" / "adapters", root / "merged", root / "ad"]
    assert all(any(p.is_relative_to(folder) for p in written) for folder in shipped)
    leaks = [
        p.relative_to(root)
        for p, text in written.items()
        if any(p.is_relative_to(folder) for folder in shipped) and b"secretive_user" in text
    ]
    assert not leaks


# --- what a merged model says of its parents ----------------------------------------------------


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ({"/x/a": "math"}, ["math"]),
        ({"/x/a": "owner/name@main"}, ["owner/name@main"]),
        ({"/x/a": "./experts/a"}, ["./experts/a"]),
        ({"/x/a": "/home/me/a"}, ["a"]),
        ({"/x/a": "~/models/a"}, ["a"]),
        ({"/x/a": "/home/me/a", "/y/a": "/srv/you/a"}, ["me/a", "you/a"]),
        ({"/x/a": "/home/me/a", "/y/a": "a"}, ["me/a", "a"]),
        ({"/": "/"}, [""]),
    ],
)
def test_absolute_paths_are_shortened(names: dict[str, str], shown: list[str]) -> None:
    found = public_names(names)
    assert found.keys() == names.keys()
    assert sorted(found.values()) == sorted(shown)


def test_the_record_names_models_as_they_were_written(here: Path) -> None:
    (here / "merge.yml").write_text(
        f"merge_method: task_arithmetic\nbase_model: ./base\nmodels:\n"
        f"- {{model: {here / 'math'}, parameters: {{weight: 1}}}}\n"
        f"- {{model: {{model: {{path: code}}}}, parameters: {{weight: 0.5}}}}\n"
        "tokenizer: {source: ./base}\n"
    )
    result = merge(here / "merge.yml", here / "out")
    record = yaml.safe_load((here / "out" / "mergekit_config.yml").read_text())
    assert record["base_model"] == "./base"
    assert [m["model"] for m in record["models"]] == ["math", "code"]
    assert record["tokenizer"]["source"] == "./base"
    assert result.config["base_model"] == str(here / "base")  # as it was run
    card = (here / "out" / "README.md").read_text()
    assert "| math | 1 |" in card
    assert "| code | 0.5 |" in card
    # Run again from beside the models it gives the same weights.
    shutil.copy(here / "out" / "mergekit_config.yml", here / "again.yml")
    merge(here / "again.yml", here / "again")
    first, second = ((here / n / "model.safetensors").read_bytes() for n in ("out", "again"))
    assert first == second


# --- settings with secrets in them --------------------------------------------------------------

HELD = {
    "a hub token": TOKEN,
    "a password in an address": ADDRESS,
}


@pytest.mark.parametrize("what", HELD)
@pytest.mark.parametrize("place", ["a name", "a value", "a comment"])
def test_settings_that_hold_a_secret_are_refused_with_the_line(
    here: Path, capsys: pytest.CaptureFixture[str], what: str, place: str
) -> None:
    """Else they would be copied into recipe.yaml, results.json and mergekit_config.yml."""
    secret = HELD[what]
    line = {
        "a name": f"parameters: {{'{secret}': 1}}",
        "a value": f"chat_template: '{secret}'",
        "a comment": f"# {secret}",
    }[place]
    listed = "".join(f"- model: ./{d}\n  parameters: {{weight: 1}}\n" for d in DOMAINS)
    (here / "merge.yml").write_text(f"merge_method: linear\nmodels:\n{listed}{line}\n")
    recipes = {"recipe.yaml": document(), "file.yaml": document(merge="merge.yml")}
    for name, made in recipes.items():
        (here / name).write_text(yaml.safe_dump(made))
    text = (here / "recipe.yaml").read_text()
    (here / "recipe.yaml").write_text(f"# a recipe\n# {secret}\n{text}")
    said = ""
    for call, where in (
        (["merge", "merge.yml", "out", "-q"], "merge.yml, line 7"),
        (["init", "merge.yml"], "merge.yml, line 7"),
        (["check", "file.yaml"], "merge.yml, line 7"),
        (["run", "file.yaml", "--out", "run"], "merge.yml, line 7"),
        (["check", "recipe.yaml"], "recipe.yaml, line 2"),
        (["run", "recipe.yaml", "--out", "run"], "recipe.yaml, line 2"),
    ):
        assert command(call) == 2, call
        out, err = capsys.readouterr()
        assert f"{where}: holds what looks like {what}; take it out" in out + err
        said += out + err
    with pytest.raises(InputError, match="merge configuration: holds what looks like"):
        merge({"merge_method": "linear", "parameters": {secret: 1}}, here / "out")
    assert not [s for s in ALL if s in said]
    assert not (here / "out").exists()
    assert not (here / "run").exists()


def test_findings_hold_no_secret_and_steer_no_terminal() -> None:
    finding = Finding("warning", f"of {ADDRESS}\nand {TOKEN}\x1b[2J")
    assert finding.message == "of https://***@huggingface.co/owner/name and hf_***\\x1b[2J"
    assert finding.as_dict()["message"] == finding.message
