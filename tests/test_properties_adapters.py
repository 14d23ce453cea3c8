"""Adapters under damage: a changed byte is found out, or changes nothing; never a wrong tensor."""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from surgekit.adapters.files import CONFIG_FILE, TENSOR_FILE, load_adapter, save_adapter
from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.files import file_checksum
from surgekit.surgery.config import SurgeryConfig
from surgekit.surgery.modules import SurgeryModule

from .damage import Damage, damaged, damages
from .examples import examples
from .invariants import adapter_of, bits, scratch
from .surgeries import FORMS, surgery

KINDS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@cache
def sound(form: str, seed: int = 0) -> tuple[bytes, bytes]:
    """Configuration and tensors of an adapter."""
    with scratch() as folder:
        module = surgery(form, seed, hidden=5, merged_fingerprint=f"sf1-{'0' * 64}", tokens=7)
        save_adapter(module, folder / "a", domain="math", method="m@both")
        return (folder / "a" / CONFIG_FILE).read_bytes(), (folder / "a" / TENSOR_FILE).read_bytes()


def same_module(a: SurgeryModule, b: SurgeryModule) -> bool:
    if (a.config, a.record) != (b.config, b.record):
        return False
    return all(bits(p.detach()) == bits(b.get_parameter(n)) for n, p in a.named_parameters())


@examples(300)
@given(
    form=st.sampled_from(list(FORMS)),
    settings=st.booleans(),
    tensors=st.booleans(),
    changes=damages(),
    more=damages(),
)
def test_a_damaged_adapter_is_refused_or_the_same(
    form: str, settings: bool, tensors: bool, changes: list[Damage], more: list[Damage]
) -> None:
    whole = sound(form)
    hit = (
        damaged(whole[0], changes) if settings or not tensors else whole[0],
        damaged(whole[1], more) if tensors else whole[1],
    )
    found = adapter_of(*hit)
    original = adapter_of(*whole)
    assert original is not None
    if found is not None and "settings_sha256" in json.loads(hit[0]):
        assert same_module(found, original)
    if found is not None and "tensors_sha256" in json.loads(hit[0]):
        assert hit[1] == whole[1]


@pytest.mark.parametrize("form", FORMS)
def test_no_flipped_bit_of_the_tensors_goes_unnoticed(form: str) -> None:
    settings, tensors = sound(form)
    start = 8 + struct.unpack("<Q", tensors[:8])[0]
    places = range(start, len(tensors), max(1, (len(tensors) - start) // 40))
    for place in [*range(0, start, 7), *places]:
        for bit in (0, 6):
            hit = bytearray(tensors)
            hit[place] ^= 1 << bit
            assert adapter_of(settings, bytes(hit)) is None, (place, bit)


def test_every_changed_letter_of_the_configuration_is_found_out() -> None:
    settings, tensors = sound("darts")
    original = adapter_of(settings, tensors)
    assert original is not None
    for place in range(len(settings)):
        for bit in (0, 1, 5):
            hit = bytearray(settings)
            hit[place] ^= 1 << bit
            found = adapter_of(bytes(hit), tensors)
            # Between two entries a blank may become a tab; nothing else may change.
            assert found is None or same_module(found, original), (place, bit)
            assert found is None or chr(hit[place]).isspace(), (place, bit)


def test_inspect_says_whether_checksums_were_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_adapter(surgery(), tmp_path / "a")
    assert command(["inspect", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checksums"] == "verified"
    path = tmp_path / "a" / CONFIG_FILE
    document = json.loads(path.read_text())
    bare = {k: v for k, v in document.items() if not k.endswith("_sha256")}
    path.write_text(json.dumps(bare))
    # Tensors of a type that torch computes little with are shown as well.
    tensors = tmp_path / "a" / TENSOR_FILE
    save_file({n: t.to(torch.float8_e4m3fn) for n, t in load_file(tensors).items()}, tensors)
    assert command(["inspect", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checksums"] == "missing"


@pytest.mark.parametrize("form", FORMS)
def test_files_of_two_adapters_do_not_mix(form: str) -> None:
    for other in FORMS:
        if (other, 1) != (form, 0):
            assert adapter_of(sound(form)[0], sound(other, 1)[1]) is None, other
    assert adapter_of(*sound(form)) is not None


def test_darts_is_not_taken_for_add(tmp_path: Path) -> None:
    # Both have the same tensors, so the checksum of the settings alone tells them apart.
    save_adapter(surgery("darts"), tmp_path / "a")
    path = tmp_path / "a" / CONFIG_FILE
    path.write_text(path.read_text().replace('"darts"', '"add"'))
    with pytest.raises(InputError, match="take settings_sha256 out of it"):
        load_adapter(tmp_path / "a")


@pytest.mark.parametrize(
    "record",
    [
        {"merged_fingerprint": 3},
        {"expert_fingerprint": [1]},
        {"calibration": "both"},
        {"tokens_per_position": 3},
    ],
)
def test_a_record_that_cannot_be_used_is_refused(record: dict[str, Any], tmp_path: Path) -> None:
    settings, tensors = sound("darts")
    document = json.loads(settings) | {"record": record}
    del document["settings_sha256"]
    assert adapter_of(json.dumps(document).encode(), tensors) is None
    module = surgery()
    module.record = record
    with pytest.raises(InputError, match=next(iter(record))):
        save_adapter(module, tmp_path / "a")
    module.record = {"a": object(), "b": "\ud800"}
    with pytest.raises(InputError, match="not JSON"):
        save_adapter(module, tmp_path / "a")
    with pytest.raises(InputError, match="cannot write"):
        save_adapter(surgery(), tmp_path / "a", domain="\ud800")
    assert not (tmp_path / "a").exists()


def test_a_change_on_purpose_has_a_way(tmp_path: Path) -> None:
    save_adapter(surgery(), tmp_path / "a", domain="math")
    path = tmp_path / "a" / CONFIG_FILE
    document: dict[str, Any] = json.loads(path.read_text())
    document["domain"] = "algebra"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="changed"):
        load_adapter(tmp_path / "a")
    del document["settings_sha256"]
    path.write_text(json.dumps(document))
    assert load_adapter(tmp_path / "a")[1].domain == "algebra"
    tensors = tmp_path / "a" / TENSOR_FILE
    assert document["tensors_sha256"] == file_checksum(tensors)
    content = bytearray(tensors.read_bytes())
    content[-3] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(InputError, match="checksum differs"):
        load_adapter(tmp_path / "a")
    for name in ("tensors_sha256", "settings_sha256"):
        path.write_text(json.dumps(document | {name: "no sum"}))
        with pytest.raises(InputError, match=name):
            load_adapter(tmp_path / "a")


RECORDS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@examples(100)
@example(record={"a": float("nan"), "b": (1, 2)}, form="table", kind=torch.float32)
@given(
    record=st.dictionaries(st.text(max_size=4), RECORDS, max_size=4),
    form=st.sampled_from(list(FORMS)),
    kind=st.sampled_from(KINDS),
)
def test_whatever_the_record_holds_its_checksum_fits(
    record: dict[str, Any], form: str, kind: torch.dtype
) -> None:
    module = surgery(form, hidden=4, dtype=kind)
    module.record = record
    with scratch() as folder:
        save_adapter(module, folder / "a")
        found, _ = load_adapter(folder / "a")
        assert all(bits(p) == bits(found.get_parameter(n)) for n, p in module.named_parameters())
        save_adapter(found, folder / "b")
        assert same_module(load_adapter(folder / "b")[0], found)


@examples(60)
@given(
    words=st.lists(st.text(max_size=8), min_size=4, max_size=4),
    figures=st.dictionaries(st.text(max_size=5), RECORDS, max_size=3),
)
def test_whatever_the_names_the_card_stays_a_table(
    words: list[str], figures: dict[str, Any]
) -> None:
    domain, method, merged, loss = words
    module = surgery("table", hidden=2, merged_fingerprint=merged, loss=loss)
    with scratch() as folder:
        save_adapter(module, folder / "a", domain=domain, method=method, figures=figures)
        card = (folder / "a" / "README.md").read_text(encoding="utf-8")
    plain = module.config.module in card and "library_name: surgekit" in card.splitlines()[1]
    assert plain
    start = card.index("|---|---|")
    table = card[start : card.index("\n\nMade with")].split("\n")
    for row in table:
        assert row.startswith("|")
        assert row.endswith("|")
        assert row.replace("\\|", "").count("|") == 3, row


@examples(60)
@given(
    form=st.sampled_from(list(FORMS)),
    hidden=st.integers(1, 9),
    rank=st.integers(1, 9),
    rows=st.integers(1, 7),
    kind=st.sampled_from(KINDS),
)
def test_any_valid_settings_build_save_and_load(
    form: str, hidden: int, rank: int, rows: int, kind: torch.dtype
) -> None:
    sizes: dict[str, Any] = {
        k: min(rank, hidden) if k == "rank" else v for k, v in FORMS[form].items()
    }
    if "max_positions" in sizes:
        sizes["max_positions"] = rows
    module = SurgeryModule(SurgeryConfig(hidden_size=hidden, **sizes), seed=rows).to(kind)
    with scratch() as folder:
        save_adapter(module, folder / "a")
        found = adapter_of(
            (folder / "a" / CONFIG_FILE).read_bytes(), (folder / "a" / TENSOR_FILE).read_bytes()
        )
    assert found is not None
    assert same_module(found, module)
