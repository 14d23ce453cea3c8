"""Wrong text files: recipes, merge configurations, prompts. Every verb that takes one refuses it.

What a key or value of a recipe may not be is in ``test_recipe_errors``; here are the files.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.parsing import YAML_BYTES
from surgekit.recipe import parse_recipe
from surgekit.states.prompts import read_prompts

from .runs import document, make_world
from .tiny import checkpoint, jsonl, llama, prompts
from .wrong import TEST, drift, fit, linear_of, math_with, refused, write_recipe

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
CODE = "x: !!python/object/apply:os.system ['touch code-has-run']\n"
LISTED = "models: [{model: ./math}, {model: ./code}]\n"
HUGE = "# long\n" * (YAML_BYTES // 7 + 1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_world(tmp_path_factory.mktemp("world"))
    write_recipe(root, "recipe.yaml")
    checkpoint(root / "no-template", llama(0), template=None)
    return root


def bytes_of(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


# --- any YAML: as a recipe, and as a merge configuration ----------------------------------------

YAML: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("expected a mapping",)),
    "blank": (" \n# nothing\n", ("expected a mapping",)),
    "a list": ("- a\n", ("expected a mapping",)),
    "a word": ("hello\n", ("expected a mapping",)),
    "binary": (bytes(range(256)), ("as UTF-8 text, found binary data",)),
    "UTF-16": ("base: ./x\n".encode("utf-16"), ("found UTF-16; save it as UTF-8",)),
    "UTF-32": ("base: ./x\n".encode("utf-32"), ("found UTF-32; save it as UTF-8",)),
    "UTF-16 without a mark": ("base: ./x\n".encode("utf-16-le"), ("found binary data",)),
    "latin-1": ("x: 1\n# ä\n".encode("latin-1"), ("found byte 0xe4 in line 2; save it as UTF-8",)),
    "zeros": (b"\0" * 4096, ("found binary data",)),
    "huge": (HUGE, ("found more than 1024 KiB",)),
    "tab": ("x: 1\n\ty: 2\n", ("line 2: not YAML", "'\\t'")),
    "open bracket": ("x: [\n", ("line 2: not YAML",)),
    "indentation": ("x: 1\n  y: 2\n", ("line 2: not YAML",)),
    "alias of nothing": ("x: *y\n", ("line 1: not YAML (found undefined alias 'y')",)),
    "aliases of aliases": (BOMB, ("line 6: its aliases", "more than 1,000,000 values")),
    "contains itself": ("x: &a [*a]\n", ("line 1: this value contains itself",)),
    "code": (CODE, ("line 1: not YAML", "could not determine a constructor")),
    "two documents": ("x: 1\n---\ny: 2\n", ("line 2: not YAML", "a single document")),
    "double key": ("x: 1\ny: 2\nx: 3\n", ("line 3: key 'x' is given twice (first in line 1)",)),
    "double key inside": ("x:\n  y: 1\n  y: 2\n", ("line 3: key 'y' is given twice",)),
    "a number of 5,000 digits": ("x: " + "1" * 5000, ("not YAML that can be read",)),
    "deep": ("x: " + "[" * 2000 + "]" * 2000, ("not YAML that can be read",)),
}


@pytest.mark.parametrize("case", YAML)
@pytest.mark.parametrize("verb", ["run", "check", "merge", "init"])
def test_a_text_that_is_no_yaml(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
    verb: str,
) -> None:
    monkeypatch.chdir(root)
    content, words = YAML[case]
    (root / "text.yaml").write_bytes(bytes_of(content))
    out = {"run": " --out new", "merge": " new"}
    refused(root, capsys, f"{verb} text.yaml{out.get(verb, '')}", "text.yaml", *words)
    assert not (root / "code-has-run").exists()


def test_a_merge_configuration_of_a_recipe_is_read_as_strictly(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    (root / "twice.yml").write_text("merge_method: linear\nmerge_method: ties\n")
    write_recipe(root, "merge-file.yaml", merge="twice.yml")
    refused(root, capsys, "run merge-file.yaml --out new", "twice.yml, line 2: key 'merge_method'")


@pytest.mark.parametrize("form", ["mark", "CRLF", "CR"])
def test_marks_and_line_ends_of_other_systems_are_fine(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    form: str,
) -> None:
    def as_written(text: str) -> bytes:
        if form == "mark":
            return b"\xef\xbb\xbf" + text.encode()
        return text.replace("\n", "\r\n" if form == "CRLF" else "\r").encode()

    monkeypatch.chdir(root)
    test = as_written((root / TEST).read_text())
    (tmp_path / "p.jsonl").write_bytes(test)
    made = document(**math_with(test=str(tmp_path / "p.jsonl")))
    (tmp_path / "r.yaml").write_bytes(as_written(yaml.safe_dump(made, sort_keys=False)))
    for name in ("base", "math", "code", "data"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "m.yml").write_bytes(as_written(linear_of("./math")))
    assert command(["check", str(tmp_path / "r.yaml")]) == 0
    assert command(["init", str(tmp_path / "m.yml")]) == 0
    out = capsys.readouterr().out
    assert "ready to run" in out
    assert "\r" not in out


# --- mergekit's own keys ------------------------------------------------------------------------

KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "method": (f"merge_methd: linear\n{LISTED}", ("line 1: unknown key 'merge_methd'; did you",)),
    "models": ("merge_method: linear\nmdels: []\n", ("line 2: unknown key 'mdels'", "'models'")),
    "parameters": (
        f"merge_method: linear\n{LISTED}paramters: {{normalize: true}}\n",
        ("line 3: unknown key 'paramters'; did you mean 'parameters'?",),
    ),
    "out_dtype": (
        f"merge_method: linear\n{LISTED}outdtype: float32\n",
        ("line 3: unknown key 'outdtype'; did you mean 'out_dtype'?",),
    ),
    "model": (
        "merge_method: linear\nmodels:\n- modle: ./math\n",
        ("line 3: unknown key 'models.0.modle'; did you mean 'model'?",),
    ),
    "layer_range": (
        "merge_method: passthrough\nslices:\n- sources:\n  - model: ./math\n"
        "    layers_range: [0, 1]\n",
        ("line 5: unknown key 'slices.0.sources.0.layers_range'", "'layer_range'"),
    ),
    "of a module": (
        "merge_method: linear\nmodules:\n  text_decoder:\n    modles: []\n",
        ("line 4: unknown key 'modules.text_decoder.modles'; did you mean 'models'?",),
    ),
    "of the tokenizer": (
        f"merge_method: linear\n{LISTED}tokenizer: {{sorce: base}}\n",
        ("line 3: unknown key 'tokenizer.sorce'; did you mean 'source'?",),
    ),
    "models no list": (
        "merge_method: linear\nmodels: math\n",
        ("line 2: models: expected a list, found 'math'",),
    ),
    "a model no mapping": (
        "merge_method: linear\nmodels: [math]\n",
        ("line 2: models.0: expected a mapping such as {model: FOLDER}, found 'math'",),
    ),
    "a model a number": (
        "merge_method: linear\nmodels: [{model: 3}]\n",
        ("line 2: models.0.model: expected a folder or a hub id, found 3",),
    ),
    "method a list": (f"merge_method: [linear]\n{LISTED}", ("merge_method is missing",)),
}


@pytest.mark.parametrize("case", KEYS)
def test_a_misspelt_key_of_mergekit_is_refused_with_the_right_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """mergekit itself passes over them in silence, and merges something else."""
    monkeypatch.chdir(root)
    text, words = KEYS[case]
    (root / "m.yml").write_text(text)
    write_recipe(root, "keys.yaml", merge="m.yml")
    for call in ("merge m.yml new", "init m.yml", "run keys.yaml --out new"):
        refused(root, capsys, call, *words)


VALUES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no number": (
        {"parameters": {"weight": "much"}},
        ("models[0].parameters.weight: expected a number, found 'much'",),
    ),
    "a decimal comma": (
        {"parameters": {"weight": "0,5"}},
        ("models[0].parameters.weight: expected a number, found '0,5'; write 0.5",),
    ),
    "one of several is none": (
        {"parameters": {"weight": [{"filter": "mlp", "value": [1, "0,5"]}, {"value": 1}]}},
        ("models[0].parameters.weight[0].value: expected a number, found '0,5'",),
    ),
    "nothing": (
        {"parameters": {"weight": None}},
        (
            "models[0].parameters.weight: expected a number, a list or a list of {value, filter}, "
            "found nothing",
        ),
    ),
    "a filter alone": (
        {"parameters": {"weight": [{"filter": "mlp"}]}},
        ("models[0].parameters.weight[0].value: expected a number", "found nothing"),
    ),
    "lists in lists": (
        {"parameters": {"weight": [[1], [2]]}},
        ("models[0].parameters.weight: expected a number", "found [1]"),
    ),
    "the same again": (
        {"model": "code"},
        ("models: code is listed twice", "list it once"),
    ),
    "misspelt": ({"parameters": {"weigth": 1}}, ("weigth", "did you mean 'weight'?")),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_wrong_parameter_of_a_model(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(root)
    entry, words = VALUES[case]
    listed = [{"model": "./math", **entry}, {"model": "./code", "parameters": {"weight": 1}}]
    (root / "m.yml").write_text(yaml.safe_dump({"merge_method": "linear", "models": listed}))
    refused(root, capsys, "merge m.yml new", *words)


def test_a_switch_of_a_merge_is_true_or_false(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    config = {"merge_method": "ties", "base_model": "./base", "models": [{"model": "./math"}]}
    config |= {"parameters": {"weight": 1, "normalize": "yes please"}}
    (root / "m.yml").write_text(yaml.safe_dump(config))
    words = "parameters.normalize: expected a boolean, found 'yes please'"
    refused(root, capsys, "merge m.yml new", words)
    write_recipe(root, "switch.yaml", merge="m.yml")
    refused(root, capsys, "run switch.yaml --out new", words)


RECIPE: dict[str, tuple[dict[str, Any], str]] = {
    "no surgery": ({"surgery": []}, "surgery: expected at least 1 entry, found none"),
    "no domain": ({"domains": {}}, "domains: expected at least 1 entry, found none"),
    "no expert": (
        math_with(expert=""),
        "domains.math.expert: expected a folder, a hub id, {model: FOLDER}, {lora: FOLDER}, "
        "{gguf: FILE} or {package: NAME}, found nothing",
    ),
    "experts in a list": (math_with(expert=["./math"]), "{package: NAME}"),
}


@pytest.mark.parametrize("case", RECIPE)
def test_an_empty_entry_of_a_recipe_is_said_with_what_belongs_there(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(root)
    changes, words = RECIPE[case]
    name = write_recipe(root, "entry.yaml", **changes)
    file = root / name
    file.write_text(file.read_text().replace("expert: ''", "expert:"))
    refused(root, capsys, f"check {name}", words)
    refused(root, capsys, f"run {name} --out new", words)


@pytest.mark.parametrize("case", [k for k, (_, words) in KEYS.items() if "line " in words[0]])
def test_a_misspelt_key_within_a_recipe_is_named_with_its_line(root: Path, case: str) -> None:
    text, words = KEYS[case]
    merge = "".join(f"  {line}\n" for line in text.splitlines())
    head = yaml.safe_dump(document(merge=None), sort_keys=False)
    above = len(head.splitlines()) + 1
    with pytest.raises(InputError) as caught:
        parse_recipe(f"{head}merge:\n{merge}", root, "r.yaml")
    line, said = words[0].removeprefix("line ").split(": ", 1)
    assert f"r.yaml, merge, line {above + int(line)}: {said}" in str(caught.value)


# --- prompts ------------------------------------------------------------------------------------

GOOD = '{"prompt": "fine", "response": "yes"}\n'

PROMPTS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("expected at least one prompt, found none",)),
    "blank": ("\n \n", ("expected at least one prompt, found none",)),
    "binary": (bytes(range(256)) * 9, ("prompt file expected as UTF-8 text, found binary data",)),
    "weights": (b"GGUF\3\0\0\0" + b"x" * 99, ("found binary data",)),
    "UTF-16": (GOOD.encode("utf-16"), ("found UTF-16; save it as UTF-8",)),
    "latin-1": (GOOD.encode() + b'{"prompt": "\xe4"}', ("found byte 0xe4 in line 2",)),
    "no JSON": (f"{GOOD}hello\n", ("line 2: not JSON", "expected one object a line")),
    "one array": ('[{"prompt": "a"},\n{"prompt": "b"}]', ("line 1: not JSON", "object a line")),
    "a list": (f'{GOOD}["a"]', ("line 2: expected a JSON object, found ['a']",)),
    "a number": ("3", ("line 1: expected a JSON object, found 3",)),
    "null": ("null", ("line 1: expected a JSON object, found None",)),
    "no prompt": (
        '{"response": "x"}',
        ("line 1: expected either 'prompt' or 'messages', found 'response'",),
    ),
    "no key": ("{}", ("line 1: expected either 'prompt' or 'messages', found no key",)),
    "another form": (
        '{"instruction": "x", "output": "y"}',
        ("line 1: expected either 'prompt' or 'messages', found 'instruction', 'output'",),
    ),
    "ShareGPT": (
        '{"conversations": [{"from": "human", "value": "x"}]}',
        ("found 'conversations'; make 'messages' of", "'value' becomes 'content'"),
    ),
    "both forms": (
        '{"prompt": "x", "messages": []}',
        ("line 1: expected either 'prompt' or 'messages', found both",),
    ),
    "blank prompt": (f'{GOOD}{{"prompt": " "}}', ("line 2: the prompt is empty",)),
    "prompt a number": ('{"prompt": 3}', ("line 1: prompt: expected a string, found 3",)),
    "misspelt prompt": (
        '{"promt": "a"}',
        ("line 1: unknown key 'promt'; did you mean 'prompt'?",),
    ),
    "misspelt response": ('{"prompt": "a", "respnse": "b"}', ("did you mean 'response'?",)),
    "misspelt messages": ('{"mesages": []}', ("did you mean 'messages'?",)),
    "misspelt role": (
        '{"messages": [{"rol": "user", "content": "x"}]}',
        ("line 1: key 'messages.0.role' is missing; found 'rol' instead",),
    ),
    "misspelt content": (
        '{"messages": [{"role": "user", "contents": "x"}]}',
        ("line 1: key 'messages.0.content' is missing; found 'contents' instead",),
    ),
    "a role of another form": (
        '{"messages": [{"role": "human", "content": "x"}]}',
        ("line 1: messages.0.role: unknown role 'human'; did you mean 'user'?",),
    ),
    "an answer of another form": (
        '{"messages": [{"role": "user", "content": "x"}, {"role": "gpt", "content": "y"}]}',
        ("line 1: messages.1.role: unknown role 'gpt'; did you mean 'assistant'?",),
    ),
    "a role in capitals": (
        '{"messages": [{"role": "User", "content": "x"}]}',
        ("unknown role 'User'; did you mean 'user'?",),
    ),
    "a misspelt answer": (
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistent", "content": "y"}]}',
        ("unknown role 'assistent'; did you mean 'assistant'?",),
    ),
    "double key": ('{"prompt": "a", "prompt": "b"}', ("line 1: key 'prompt' is given twice",)),
    "half of a character": (
        '{"prompt": "a\\ud800", "response": "b"}',
        ("line 1: no Unicode text: \\ud800 is half of a character",),
    ),
    "half of a character in a response": ('{"prompt": "a", "response": "\\udfff"}', ("\\udfff",)),
    "a raw NUL": (b'{"prompt": "a\0b"}', ("found binary data",)),
    "a NUL far down": (b" " * 70_000 + b'{"prompt": "a\0b"}', ("line 1: not JSON",)),
    "deep": ("[" * 100_000, ("line 1: not JSON",)),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_a_wrong_prompt_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(root)
    content, words = PROMPTS[case]
    (root / "p.jsonl").write_bytes(bytes_of(content))
    write_recipe(root, "p.yaml", **math_with(calibration="p.jsonl"))
    write_recipe(root, "plain.yaml", plain_text="p.jsonl")
    calls = (drift(prompts="p.jsonl"), fit(prompts="p.jsonl"))
    for call in (*calls, "run p.yaml --out new", "run plain.yaml --out new"):
        refused(root, capsys, call, "p.jsonl", *words)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_a_prompt_file_that_is_no_file_is_refused_and_not_waited_for(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    found = "a pipe" if kind == "pipe" else "a device or a socket"
    with pytest.raises(InputError, match=f"found {found}; write it to a file and name that"):
        read_prompts(path)


def test_what_looks_odd_in_a_prompt_and_is_text_is_taken(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [{"prompt": "a\0b\u2028c\ufeff", "response": "\U0001f600"}, {"prompt": "x", "n": 1}]
    jsonl(root / "odd.jsonl", odd)
    monkeypatch.chdir(root)
    assert command([*drift(prompts="odd.jsonl").split(), "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_a_cut_is_told_by_every_verb(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(root)
    long = jsonl(root / "long.jsonl", [*prompts(9), {"prompt": "so " * 99, "response": "long"}])
    write_recipe(root, "long.yaml", max_length=200, seeds=[0], **math_with(test=str(long)))
    out = str(tmp_path / "out")
    for call in (
        drift(prompts="long.jsonl", more="--max-length 200"),
        fit(prompts="long.jsonl", more="--max-length 200").replace("--out new", f"--out {out}"),
        f"run long.yaml --out {tmp_path / 'run'}",
    ):
        assert command(call.split()) == 0
        assert "1 sequences were cut at max_length" in capsys.readouterr().err


def test_a_tokenizer_without_a_template_is_no_place_for_chat(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    words = ("format 'chat' needs a chat template", "use format 'plain' or give a jinja template")
    refused(root, capsys, drift(merged="no-template"), *words)
    refused(root, capsys, fit(merged="no-template"), *words)
    jsonl(root / "turns.jsonl", [{"messages": [{"role": "user", "content": "x"}]}])
    call = drift(prompts="turns.jsonl", more="--format plain")
    refused(root, capsys, call, "turns.jsonl: prompt 0: format 'plain' takes 'prompt'")


def test_duplicates_within_a_file_are_a_warning(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonl(root / "twice.jsonl", [*prompts(6, "six"), *prompts(3, "six")])
    write_recipe(root, "twice.yaml", **math_with(calibration="twice.jsonl"))
    monkeypatch.chdir(root)
    assert command(["check", "twice.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [f for f in found if f["level"] == "warning" and "calibration" in f["message"]], found
