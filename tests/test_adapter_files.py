"""Adapters on disk: what is saved comes back, damage is refused, old files keep loading."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import surgekit
from surgekit.adapters import files
from surgekit.adapters.attach import SurgeryHandle, attach
from surgekit.adapters.files import check_adapter_name, is_adapter, load_adapter, save_adapter
from surgekit.errors import InputError, MismatchError, SurgekitError
from surgekit.files import read_tensors
from surgekit.models.fingerprint import fingerprint
from surgekit.surgery.config import LOW_RANK, POSITIONAL, SurgeryConfig
from surgekit.surgery.modules import SurgeryModule

from .surgeries import FORMS, surgery, tokens
from .tiny import llama, shifted

GOLDEN = Path(__file__).parent / "golden" / "adapter-v1"
CONFIG, TENSORS = "surgery_config.json", "surgery.safetensors"
SUMS = ("tensors_sha256", "settings_sha256")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound adapter: darts, with a table."""
    save_adapter(surgery(), tmp_path / "adapter", domain="math", method="darts-l1@both")
    return tmp_path / "adapter"


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refuse(folder: Path, *words: str) -> None:
    """Loading fails with one short line that holds all ``words``."""
    with pytest.raises(InputError) as caught:
        load_adapter(folder)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert len(message) < 700
    assert "\n" not in message


# -- what was written once keeps its meaning -------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_adapters_of_format_1_give_the_recorded_numbers(form: str) -> None:
    recorded = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
    module, info = load_adapter(GOLDEN / form)
    found = module(torch.tensor(recorded["hidden"]), torch.tensor(recorded["positions"]))
    assert found.tolist() == recorded["corrected"][form]
    assert (info.format, info.domain, info.method[0]) == (1, "math", "m")
    assert module.record["merged_fingerprint"] == f"sf1-{'0' * 64}"
    assert set(content(GOLDEN / form)) == {CONFIG, TENSORS, "README.md"}


def test_the_form_of_a_saved_adapter_is_frozen(tmp_path: Path) -> None:
    for form in FORMS:
        module, info = load_adapter(GOLDEN / form)
        save_adapter(module, tmp_path / form, domain=info.domain, method=info.method)
        old, new = (json.loads((d / form / CONFIG).read_text()) for d in (GOLDEN, tmp_path))
        sums = [new.pop(name) for name in SUMS]
        assert [len(bytes.fromhex(s)) for s in sums] == [32, 32]
        assert new == old | {"surgekit": surgekit.__version__}
        (old, about), (new, about_new) = (
            read_tensors(d / form / TENSORS, "tensors") for d in (GOLDEN, tmp_path)
        )
        assert about == about_new == {"format": "1"}
        assert {n: (t.dtype, t.tolist()) for n, t in new.items()} == {
            n: (t.dtype, t.tolist()) for n, t in old.items()
        }


# -- there and back --------------------------------------------------------------------------------


@st.composite
def modules(draw: st.DrawFn) -> SurgeryModule:
    form = draw(st.sampled_from([*LOW_RANK, "mean-shift", "table", "linear"]))
    sizes: dict[str, Any] = {"hidden_size": draw(st.integers(1, 9))}
    if form in LOW_RANK or (form == "linear" and draw(st.booleans())):
        sizes["rank"] = draw(st.integers(1, sizes["hidden_size"]))
    if form in POSITIONAL:
        sizes["max_positions"] = draw(st.integers(1, 7))
    module = SurgeryModule(SurgeryConfig(module=form, **sizes), seed=draw(st.integers(0, 99)))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    module.record = draw(
        st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(), max_size=3)
    )
    return module.to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64])))


@settings(deadline=None, max_examples=60)
@given(module=modules(), domain=st.text(max_size=8), method=st.text(max_size=8))
def test_an_adapter_comes_back_as_it_was(
    module: SurgeryModule, domain: str, method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("adapters") / "a"
    save_adapter(module, folder, domain=domain, method=method)
    again, info = load_adapter(folder)
    assert (again.config, again.record) == (module.config, module.record)
    assert (info.surgery, info.domain, info.method) == (module.config, domain, method)
    before, after = dict(module.named_parameters()), dict(again.named_parameters())
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name], tensor)
        assert not after[name].requires_grad


def test_saving_and_loading_gives_the_same_logits_bit_for_bit(tmp_path: Path) -> None:
    model, ids = llama(1), tokens(2, 9)
    mark = fingerprint(model)
    adapters = {f: surgery(f, seed=i, merged_fingerprint=mark) for i, f in enumerate(FORMS)}
    adapters["low"] = surgery("darts", seed=9, dtype=torch.bfloat16)
    expected = {}
    with attach(model, adapters) as handle:
        for name in adapters:
            handle.set_adapter(name)
            expected[name] = model(input_ids=ids).logits
        handle.save_pretrained(tmp_path / "all")
    (tmp_path / "all" / ".low.part-7").mkdir()  # of a save that was killed
    (tmp_path / "all" / ".low.part-7" / CONFIG).write_text("{}")
    (tmp_path / "all" / "notes").mkdir()
    with SurgeryHandle.from_pretrained(model, tmp_path / "all") as handle:
        assert sorted(handle.adapter_names) == sorted(adapters)
        for name, logits in expected.items():
            handle.set_adapter(name)
            assert torch.equal(model(input_ids=ids).logits, logits)
    with SurgeryHandle.from_pretrained(model, tmp_path / "all" / "low") as handle:
        assert handle.adapter_names == ["low"]
        assert torch.equal(model(input_ids=ids).logits, expected["low"])
    with pytest.raises(MismatchError):
        SurgeryHandle.from_pretrained(shifted(model, 3), tmp_path / "all")


def test_a_handle_saves_domain_and_method_as_it_loaded_them(folder: Path, tmp_path: Path) -> None:
    with attach(llama(1), {"mine": folder}) as handle:
        handle.save_pretrained(tmp_path / "all")
    assert surgekit.load_adapter(tmp_path / "all" / "mine")[1] == load_adapter(folder)[1]


def test_uploading_sends_every_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, Any] = {}

    class Api:
        def create_repo(self, repo_id: str, **options: Any) -> str:
            sent["repo"] = (repo_id, options)
            return f"https://hub/{repo_id}"

        def upload_folder(self, *, folder_path: str, **options: Any) -> None:
            sent["files"], sent["options"] = sorted(content(Path(folder_path))), options

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    with attach(llama(1), {"math": surgery(), "code": surgery("table")}) as handle:
        assert handle.push_to_hub("me/mine", private=True, commit_message="new").endswith("me/mine")
    assert sent["repo"] == ("me/mine", {"exist_ok": True, "private": True})
    assert sent["options"] == {"repo_id": "me/mine", "commit_message": "new"}
    names = [CONFIG, TENSORS, "README.md"]
    assert sent["files"] == sorted(f"{a}/{n}" for a in ("code", "math") for n in names)


@pytest.mark.parametrize("kind", [None, "empty", "file"])
def test_a_place_without_adapters_is_refused(kind: str | None, tmp_path: Path) -> None:
    model, place = llama(1), tmp_path / "place"
    if kind:
        place.mkdir()
    if kind == "file":
        (place / "notes.txt").write_text("x")
    with pytest.raises(SurgekitError, match="place"):
        SurgeryHandle.from_pretrained(model, place)
    assert not model.model._forward_hooks


# -- damage ----------------------------------------------------------------------------------------


def altered(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Other settings, and no checksum that would tell of the change."""

    def apply(old: bytes) -> bytes:
        document = json.loads(old)
        del document["settings_sha256"]
        change(document)
        return json.dumps(document).encode()

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (altered(lambda d: d.update(format=2)), ["format 1", "found 2"]),
        (altered(lambda d: d.update(format="1")), ["format 1", "found '1'"]),
        (altered(lambda d: d.pop("format")), ["format 1", "found None"]),
        (altered(lambda d: d.update(extra=1)), [CONFIG, "extra"]),
        (altered(lambda d: d["surgery"].update(extra=1)), [CONFIG, "surgery.extra"]),
        (altered(lambda d: d["surgery"].update(module="magic")), [CONFIG, "surgery.module"]),
        (altered(lambda d: d["surgery"].update(rank=0)), [CONFIG, "surgery.rank"]),
        (altered(lambda d: d["surgery"].update(rank=99)), [CONFIG, "rank 99"]),
        (altered(lambda d: d["surgery"].pop("hidden_size")), [CONFIG, "surgery.hidden_size"]),
        (altered(lambda d: d.pop("surgery")), [CONFIG, "surgery"]),
        (altered(lambda d: d.update(record=[])), [CONFIG, "record"]),
        # Sizes that lie must be found out before memory is taken for them.
        (altered(lambda d: d["surgery"].update(hidden_size=10**9)), ["(4, 1000000000)", "(4, 32)"]),
        (altered(lambda d: d["surgery"].update(max_positions=10**30)), ["table", "(6, 32)"]),
        (altered(lambda d: d["surgery"].update(rank=None)), ["down", "(16, 32)"]),
        (lambda old: b"[]", ["a JSON object, found a list"]),
        (lambda old: old[:-5], [CONFIG, "JSON"]),
        (lambda old: b"\xff" + old, [CONFIG, "UTF-8"]),
        (lambda old: b"[" * 100_000, [CONFIG, "JSON"]),
        (lambda old: b"", [CONFIG, "JSON"]),
    ],
)
def test_a_wrong_configuration_is_refused(
    change: Callable[[bytes], bytes], words: list[str], folder: Path
) -> None:
    path = folder / CONFIG
    path.write_bytes(change(path.read_bytes()))
    refuse(folder, *words)


def filled(name: str, value: float) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name].clone()
        tensors[name][1, 2] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("table"), ["missing", "'table'"]),
        (lambda t: t.update(up2=torch.zeros(2)), ["surplus", "'up2'"]),
        (lambda t: t.update(table=torch.zeros(7, 32)), ["'table'", "(6, 32)", "(7, 32)"]),
        (lambda t: t.update(table=torch.zeros(6 * 32)), ["'table'", "(6, 32)", "(192,)"]),
        (lambda t: t.update(up=t["up"].T.contiguous()), ["'up'", "(32, 4)", "(4, 32)"]),
        (lambda t: t.update(up=t["up"].to(torch.int32)), ["'up'", "floating", "int32"]),
        (lambda t: t.update(up=t["up"] > 0), ["'up'", "floating", "bool"]),
        (filled("up", float("nan")), ["'up'", "NaN or infinity"]),
        (filled("table", float("-inf")), ["'table'", "NaN or infinity"]),
        (lambda t: t.clear(), ["missing", "'down'"]),
    ],
)
def test_a_wrong_tensor_is_refused(
    change: Callable[[dict[str, Any]], None], words: list[str], folder: Path
) -> None:
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)
    refuse(folder, TENSORS, *words)


def test_infinity_is_found_in_eight_bit_tensors_too(folder: Path) -> None:
    document = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({k: v for k, v in document.items() if k not in SUMS}))
    tensors = {n: t.to(torch.float8_e4m3fn) for n, t in load_file(folder / TENSORS).items()}
    save_file(tensors, folder / TENSORS)
    load_adapter(folder)
    tensors["up"].view(torch.uint8)[0, 0] = 0x7F  # its NaN
    save_file(tensors, folder / TENSORS)
    refuse(folder, TENSORS, "NaN or infinity")


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b[:-1],
        lambda b: b[: len(b) // 2],
        lambda b: b[:5],
        lambda b: b"",
        lambda b: b + b"x",
        lambda b: struct.pack("<Q", 1 << 40) + b[8:],
        lambda b: struct.pack("<Q", (1 << 64) - 1) + b[8:],
        lambda b: b.replace(b"[6,32]", b"[9,32]"),
        lambda b: b.replace(b"F32", b"F99"),
        lambda b: b"PK\x03\x04" + b,
    ],
)
def test_a_damaged_tensor_file_is_refused(change: Callable[[bytes], bytes], folder: Path) -> None:
    path = folder / TENSORS
    assert change(path.read_bytes()) != path.read_bytes()
    path.write_bytes(change(path.read_bytes()))
    refuse(folder, TENSORS, "whole safetensors file")


def test_what_is_no_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    refuse(tmp_path / "absent", CONFIG)
    (folder / TENSORS).unlink()
    refuse(folder, TENSORS, "not found")
    peft = tmp_path / "lora"
    peft.mkdir()
    (peft / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_file({"x": torch.zeros(1)}, peft / "adapter_model.safetensors")
    refuse(peft, "lora", CONFIG)
    assert not is_adapter(peft)


# -- saving ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a", "math", "Code_2", "darts-ewl1@both", "x.y+z", "_a", "a" * 128]
)
def test_names_that_are_safe(name: str) -> None:
    assert check_adapter_name(name) == name


BAD_NAMES = ["", ".", "..", "../a", "a/../b", "/a", "a/b", "a\\b", ".a", "-a", "a b", "a\n", "ä"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "__a", "__base__", "a\0", "a" * 129, "C:a"])
def test_names_that_are_not(name: str, folder: Path) -> None:
    with pytest.raises(InputError, match="adapter name"):
        check_adapter_name(name)
    save_adapter(surgery(), folder, domain=name)
    model = llama(1)
    if name:  # without a domain it is called default
        with pytest.raises(InputError):
            attach(model, folder)
    assert not model.model._forward_hooks


def test_an_old_adapter_is_replaced_whole(folder: Path) -> None:
    save_adapter(surgery("mean-shift"), folder)
    assert set(content(folder)) == {CONFIG, TENSORS, "README.md"}
    assert load_adapter(folder)[0].config.module == "mean-shift"
    assert [p.name for p in folder.parent.iterdir()] == ["adapter"]
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {
        (folder / CONFIG).stat().st_mode & 0o777
    }


def test_saving_through_a_link_keeps_the_link(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    save_adapter(surgery("mean-shift"), link)
    assert link.is_symlink()
    assert load_adapter(folder)[0].config.module == "mean-shift"


def test_nothing_but_an_adapter_is_saved_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    save_adapter(surgery(), tmp_path / "empty")
    beside = tmp_path / "beside"  # an adapter in its clone, or beside its model
    save_adapter(surgery(), beside)
    (beside / ".git").mkdir()
    (beside / "model.safetensors").write_bytes(b"years of work")
    (tmp_path / "read").mkdir()
    (tmp_path / "read" / "README.md").write_text("of another thing")
    before = content(tmp_path)
    monkeypatch.chdir(folder)
    others = (beside, tmp_path / "read")
    for place in (
        *others,
        *(tmp_path / "mine", tmp_path / "file", tmp_path / "file" / "below", Path()),
    ):
        with pytest.raises(InputError):
            save_adapter(surgery(), place)
    assert content(tmp_path) == before


@pytest.mark.parametrize("kind", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["write_text", "write_tensors", "adapter_card", "rename"])
def test_a_failed_save_leaves_the_old_adapter(
    kind: BaseException, at: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(folder.parent)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise kind

    if at == "rename":
        rename = Path.rename
        # The new folder cannot take the place that the old one has just left.
        monkeypatch.setattr(
            Path, "rename", lambda p, to: fail() if ".part-" in p.name else rename(p, to)
        )
    else:
        monkeypatch.setattr(files, at, fail)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        save_adapter(surgery("mean-shift"), folder)
    if isinstance(kind, OSError):
        assert str(caught.value).endswith("No space left on device")
    assert content(folder.parent) == before
    assert [p.name for p in folder.parent.iterdir()] == ["adapter"]


def test_what_could_not_be_loaded_is_not_saved_over_what_could(folder: Path) -> None:
    before = content(folder)
    for value, shape in ((float("nan"), None), (float("inf"), None), (1.0, (3, 3))):
        spoiled = surgery("table")
        kept = torch.full_like(spoiled.table, value) if shape is None else torch.ones(shape)
        spoiled.table = torch.nn.Parameter(kept)
        with pytest.raises(InputError, match="the module: tensor 'table'"):
            save_adapter(spoiled, folder)
    with pytest.raises(InputError, match="expected a surgery module to save, found str"):
        save_adapter("adapter", folder)  # type: ignore[arg-type]
    assert content(folder) == before


def test_threads_that_save_to_one_folder_take_turns(tmp_path: Path) -> None:
    modules = [surgery("table", seed=k) for k in range(4)]
    errors: list[BaseException] = []

    def work(module: SurgeryModule) -> None:
        try:
            for _ in range(5):
                save_adapter(module, tmp_path / "a", domain="math")
        except BaseException as error:  # noqa: BLE001 - told to the test below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(m,)) for m in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = load_adapter(tmp_path / "a")[0].table
    assert any(torch.equal(found, m.table) for m in modules)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("nothing", [None, "", 42])
def test_a_folder_that_is_none_is_refused(nothing: Any) -> None:
    with pytest.raises(InputError, match="expected the folder of an adapter"):
        load_adapter(nothing)


def test_a_format_that_only_looks_like_one_is_refused(folder: Path) -> None:
    for value in (True, 1.0, "1"):
        edited = json.loads((folder / CONFIG).read_text()) | {"format": value}
        (folder / CONFIG).write_text(json.dumps(edited))
        with pytest.raises(InputError, match="reads adapters of format 1"):
            load_adapter(folder)
