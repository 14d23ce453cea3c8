"""What is depended on is declared, licensed and looked up; and no reader runs what it reads."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src" / "surgekit").rglob("*.py"))


def tool(name: str) -> ModuleType:
    """A script of ``tools/`` as a module."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


audit, licences = tool("audit"), tool("licences")


@cache
def trees() -> dict[str, ast.Module]:
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text(encoding="utf-8")) for p in SOURCES}


def imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names of the modules imported anywhere in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def third_party(names: Iterator[str]) -> set[str]:
    return {n for n in names if n not in sys.stdlib_module_names and n != "surgekit"}


# --- what is declared ---------------------------------------------------------------------------


def test_each_import_is_declared_and_each_declaration_imported() -> None:
    owners = packages_distributions()
    imported: set[str] = set()
    for place, tree in trees().items():
        for module in third_party(imports(tree)):
            assert module in owners, f"{place} imports {module}, which no installed package holds"
            packages = {audit.canonical(name) for name in owners[module]}
            assert packages & licences.direct().keys(), f"{place} imports {module}, undeclared"
            imported |= packages
    unused = licences.direct().keys() - imported - set(licences.IMPORTED_BY_OTHERS)
    assert not unused


def test_an_extra_is_imported_where_it_is_used() -> None:
    extras = {name for name, wanted in licences.direct().items() if wanted}
    modules = {
        m
        for m, owners in packages_distributions().items()
        if extras & {*map(audit.canonical, owners)}
    }
    for place, tree in trees().items():
        at_once = ast.Module([n for n in tree.body if not isinstance(n, ast.FunctionDef)], [])
        hidden = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try)
        at_once.body = [n for n in at_once.body if not isinstance(n, hidden)]
        assert not modules & third_party(imports(at_once)), place


def test_adapters_come_without_mergekit() -> None:
    script = "import sys, surgekit; surgekit.attach, surgekit.load_adapter; print(*sys.modules)"
    call = [sys.executable, "-c", script]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert "surgekit.adapters.attach" in done.stdout.split()
    assert "mergekit" not in done.stdout.split()


# --- licences -----------------------------------------------------------------------------------


def test_the_page_says_what_is_installed() -> None:
    old = licences.PAGE.read_text(encoding="utf-8")
    written, found = licences.table(old), licences.table(licences.page(old))
    assert written.keys() == found.keys(), "run tools/licences.py"
    for name, (_, licence) in found.items():
        assert written[name][1] == licence, name


def test_the_page_keeps_the_row_of_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = licences.PAGE.read_text(encoding="utf-8")
    real = licences.distribution

    def without_plotly(name: str) -> Any:
        if name == "plotly":
            raise licences.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(licences, "distribution", without_plotly)
    assert licences.table(licences.page(old))["plotly"] == licences.table(old)["plotly"]
    with pytest.raises(SystemExit, match="plotly"):
        licences.page()


def test_every_direct_dependency_has_a_reason() -> None:
    assert licences.WHY.keys() == licences.direct().keys()
    assert all(licences.WHY.values())
    versions = audit.read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert licences.direct().keys() <= versions.keys()


def test_no_licence_is_unknown_or_copyleft_without_a_word() -> None:
    text = licences.PAGE.read_text(encoding="utf-8")
    for name, (_, licence) in licences.table(text).items():
        if licences.is_copyleft(licence):
            assert name in licences.EXPLAINED, f"{name}: {licence}"
            assert f"- {name}:" in text
    assert licences.EXPLAINED.keys() <= licences.table(text).keys()
    assert "### mergekit and the LGPL" in text


@pytest.mark.parametrize(
    ("licence", "asks"),
    [
        ("GPL-3.0-or-later", True),
        ("AGPL-3.0-only", True),
        ("LGPL-3.0-only", True),
        ("GNU General Public License v3 (GPLv3)", True),
        ("MIT AND MPL-2.0", True),
        ("LicenseRef-NVIDIA-Proprietary", True),
        ("unknown", True),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("BSD", False),
    ],
)
def test_which_licences_ask_for_something(licence: str, asks: bool) -> None:
    assert licences.is_copyleft(licence) == asks


# --- known vulnerabilities ----------------------------------------------------------------------

PINS = {"jinja2": "3.1.6", "ruamel-yaml": "0.19.1"}
HOLE = {"id": "PYSEC-1", "fix_versions": ["3.1.7"], "aliases": [], "description": ""}
CLEAN = {"name": "ruamel.yaml", "version": "0.19.1", "vulns": []}


def report(*entries: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(entries), "fixes": []})


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (report({"name": "jinja2", "version": "3.1.6", "vulns": []}, CLEAN), 0, ["2 of 2"]),
        (
            report({"name": "Jinja2", "version": "3.1.6", "vulns": [HOLE]}, CLEAN),
            1,
            ["jinja2 3.1.6: PYSEC-1, fixed in 3.1.7", "2 of 2", "1 known"],
        ),
        # What pip-audit says, with status 0, where an index has no advisories.
        (
            report(
                {
                    "name": "jinja2",
                    "skip_reason": "Dependency not found on PyPI and could not be audited",
                },
                CLEAN,
            ),
            3,
            ["jinja2 3.1.6: not looked up", "1 of 2"],
        ),
        (report(CLEAN), 3, ["jinja2 3.1.6: not looked up"]),
        (report({"name": "jinja2", "version": "9", "vulns": []}, CLEAN), 3, ["not looked up"]),
        ("", 3, ["0 of 2"]),
        ("Traceback", 3, ["0 of 2"]),
        ("[]", 3, ["0 of 2"]),
    ],
)
def test_only_an_answer_about_every_pin_is_a_clean_one(
    text: str, status: int, words: list[str]
) -> None:
    found, lines = audit.judge(text, PINS)
    assert found == status
    assert all(word in "\n".join(lines) for word in words), lines


def test_an_explained_vulnerability_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "EXPLAINED", {"PYSEC-1": "sandboxed", "PYSEC-2": "gone"})
    text = report({"name": "jinja2", "version": "3.1.6", "vulns": [HOLE]}, CLEAN)
    status, lines = audit.judge(text, PINS)
    assert status == 0
    assert "sandboxed" in lines[0]
    assert "PYSEC-2: explained in tools/audit.py, and no longer found" in lines


def test_all_pins_are_asked_about() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = audit.read_pins(text)
    assert len(pins) == len(text.split())
    with pytest.raises(ValueError, match="numpy>=1"):
        audit.read_pins("numpy>=1")
    script = [sys.executable, str(ROOT / "tools" / "audit.py"), "--pip-audit", "/no/such"]
    assert subprocess.run(script, capture_output=True, check=False).returncode == 2


# --- the project's own code ---------------------------------------------------------------------


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str, Any]]]:
    """(dotted name, constant keyword arguments) of each call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            constant = {
                k.arg: k.value.value
                for k in node.keywords
                if k.arg and isinstance(k.value, ast.Constant)
            }
            yield ast.unparse(node.func), constant


def test_no_reader_in_the_code_runs_what_it_reads() -> None:
    never = ("eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load")
    never += ("yaml.unsafe_load", "yaml.full_load", "joblib.load", "torch.jit.load", "dill.load")
    seen = 0
    for place, tree in trees().items():
        assert not {"dill", "joblib", "shelve", "marshal"} & set(imports(tree)), place
        for name, constant in calls(tree):
            assert name not in never, f"{place}: {name}"
            assert constant.get("trust_remote_code") is not True, f"{place}: {name}"
            assert constant.get("shell") is not True, f"{place}: {name}"
            if name == "torch.load":
                assert constant.get("weights_only") is True, place
            if name in ("np.load", "numpy.load"):
                assert constant.get("allow_pickle") is False, place
            if name.endswith("from_pretrained") and name.startswith("Auto"):
                seen += 1
    assert seen >= 3  # the walk finds calls
