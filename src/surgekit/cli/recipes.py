"""Verbs on recipes: init, check, run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from surgekit.cli.display import (
    TerminalReporter,
    print_json,
    results_table,
    stdout,
    tell_findings,
)
from surgekit.cli.options import option_error
from surgekit.errors import InputError
from surgekit.files import expect_writable, write_text
from surgekit.findings import Finding, has_error
from surgekit.merging import read_merge_config
from surgekit.merging.examining import takes_task_vectors
from surgekit.models.source import ModelSource
from surgekit.pipeline.preflight import preflight
from surgekit.pipeline.run import run_recipe
from surgekit.recipe import RESERVED_NAMES, Recipe, load_recipe

_DOMAIN = """\
  {key}:
    expert: {expert}
    format: chat                       # chat | plain | a jinja template
    calibration: {{file: data/{name}/calibration.jsonl, items: 50}}
    validation: {{file: data/{name}/validation.jsonl}}
    test: {{file: data/{name}/test.jsonl}}
"""

_RECIPE = """\
# Each line of a prompt file is {{"prompt": ..., "response": ...}} or {{"messages": [...]}}.
base: {{model: {base}}}
domains:
{domains}merge: {merge}
surgery:
  - {{module: mean-shift, text: both}}
  - {{module: standard, loss: l1, text: both}}
  - {{module: darts, loss: ewl1, text: both}}
  - {{module: linear, text: both}}
seeds: [0]
max_length: 512
"""


def init(mergekit_yaml: Path, out: Path | None) -> None:
    """Write a recipe for a mergekit YAML to ``out``, or to stdout."""
    config = read_merge_config(mergekit_yaml)
    base, experts = _listed_models(config)
    if not experts:
        raise InputError(f"{mergekit_yaml}: expected models to merge, found none")
    names: dict[str, str] = {}
    for expert in experts:
        name = _domain_name(expert)
        while name in names:
            name += "-2"
        names[name] = expert
    here = mergekit_yaml.resolve().parent
    folder = Path.cwd() if out is None else out.resolve().parent

    def placed(model: str) -> str:
        """A model as the recipe must name it: paths move from the one folder to the other."""
        path = ModelSource.parse(model).relative_to(here).model or model
        return model if path == model else _relative(Path(path), folder)

    if out is not None:
        if out.exists() or out.is_symlink():
            raise InputError(f"{out} exists already; name another file")
        expect_writable(out)
    text = _RECIPE.format(
        base="BASE" if base is None else _scalar(placed(base)),
        domains="".join(
            _DOMAIN.format(key=_scalar(n), name=n, expert=_scalar(placed(e)))
            for n, e in names.items()
        ),
        merge=_scalar(_relative(mergekit_yaml.resolve(), folder)),
    )
    if out is None:
        sys.stdout.write(text)
        return
    write_text(out, text)


def check(
    recipe_file: Path, out: Path | None, *, deep: bool, trust_remote_code: bool, as_json: bool
) -> int:
    """Show what preflight finds; returns the exit status."""
    try:
        findings = preflight(
            load_recipe(recipe_file),
            out=out or _default_out(recipe_file),
            deep=deep,
            trust_remote_code=trust_remote_code,
        )
    except InputError as error:
        if not as_json:
            raise
        findings = [Finding("error", str(error))]
    wrong = has_error(findings)
    if as_json:
        print_json({"ok": not wrong, "findings": [f.as_dict() for f in findings]})
        return 2 if wrong else 0
    for finding in findings:
        stdout().print(str(finding), markup=False, soft_wrap=True)
    if not wrong:
        stdout().print(f"ready to run{_open_points(findings)}", markup=False)
    return 2 if wrong else 0


def _open_points(findings: list[Finding]) -> str:
    """How many warnings a recipe goes with, and how much of it is not verified."""
    warnings = sum(f.level == "warning" for f in findings)
    unverified = sum(f.level == "unverified" for f in findings)
    said = [f"{warnings} warning{'s' if warnings > 1 else ''}"] if warnings else []
    said += [f"{unverified} not verified"] if unverified else []
    return f" ({', '.join(said)})" if said else ""


def _default_out(recipe_file: Path) -> Path:
    return Path("runs") / recipe_file.stem


def run(
    recipe_file: Path,
    out: Path | None,
    changes: dict[str, Any],
    *,
    limit: int | None,
    trust_remote_code: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a recipe and show its results."""
    recipe = load_recipe(recipe_file)
    if changes:
        given = recipe.model_dump() | changes
        try:
            recipe = Recipe.model_validate(given)
        except ValueError as error:
            raise option_error(error, given, {"seeds": "--seed"}) from error
    if limit is not None:
        recipe = _limited(recipe, limit)
    out = out or _default_out(recipe_file)
    reporter = TerminalReporter(quiet=quiet)
    told = preflight(recipe, out=out, beginning=True, trust_remote_code=trust_remote_code)
    tell_findings(told, reporter, "warning", "unverified")
    results = run_recipe(recipe, out, reporter=reporter, trust_remote_code=trust_remote_code)
    reporter.end()
    if as_json:
        print_json(results)
        return
    console = stdout()
    for table in results_table(results):
        console.print(table)
    console.print(f"Results: {out / 'results.json'}", markup=False, soft_wrap=True)
    console.print(f"Adapters: {out / 'adapters'}/DOMAIN/METHOD", markup=False, soft_wrap=True)


def _limited(recipe: Recipe, limit: int) -> Recipe:
    domains = {}
    for name, domain in recipe.domains.items():
        update: dict[str, Any] = {}
        for split in ("validation", "test"):
            prompts = getattr(domain, split)
            if prompts is not None:
                items = min(limit, prompts.items or limit)
                update[split] = prompts.model_copy(update={"items": items})
        domains[name] = domain.model_copy(update=update)
    return recipe.model_copy(update={"domains": domains})


def _listed_models(config: dict[str, Any]) -> tuple[str | None, list[str]]:
    """(the base that experts were tuned from where the merge tells it, the experts)."""
    base = config.get("base_model")
    modules = config.get("modules")
    sections = [config, *(modules.values() if isinstance(modules, dict) else ())]
    listed: list[Any] = []
    for section in (s for s in sections if isinstance(s, dict)):
        listed += [m.get("model") for m in section.get("models") or []]
        for part in section.get("slices") or []:
            listed += [s.get("model") for s in part.get("sources") or []]
    # What slerp and its like call the base is one of the models that are merged.
    if base in listed and not takes_task_vectors(config["merge_method"]):
        base = None
    experts = list(dict.fromkeys(str(m) for m in listed if m is not None and m != base))
    return (None if base is None else str(base)), experts


def _domain_name(model: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", model.rstrip("/").rsplit("/", 1)[-1]).strip("-_")
    name = name.lower() or "expert"
    return f"{name}-expert" if name in RESERVED_NAMES else name


def _relative(path: Path, folder: Path) -> str:
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)


def _scalar(text: str) -> str:
    return yaml.safe_dump(text, width=10_000, default_flow_style=True).split("\n")[0]
