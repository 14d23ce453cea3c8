"""Pre-flight of a domain's prompts: format, responses, number of items."""

from __future__ import annotations

from surgekit.errors import InputError
from surgekit.findings import Finding, attempt
from surgekit.pipeline.prompts import SPLITS, DomainPrompts, read_domain
from surgekit.recipe import Recipe
from surgekit.states.prompts import ROLES
from surgekit.states.rendering import check_format, expect_renderable

FEW_ITEMS = 10
"""Prompts below which a set says little."""
_USE = {
    "calibration": "what is fitted on so few does not carry over",
    "validation": "methods are chosen by chance on so few",
    "test": "figures on so few have wide intervals",
}


def check_domain(recipe: Recipe, name: str) -> tuple[DomainPrompts | None, list[Finding]]:
    """A domain's prompts, where they can be read, and what there is to say of them."""
    findings: list[Finding] = []
    domain = recipe.domains[name]
    prompts = attempt(findings, lambda: read_domain(name, domain, recipe.seeds))
    attempt(findings, lambda: _format(name, domain.format, prompts))
    if prompts is not None:
        findings += _missing_responses(name, prompts, recipe)
        findings += _strange_roles(name, prompts)
        findings += _few_items(name, prompts)
    if domain.tasks:
        findings.append(
            Finding(
                "warning",
                f"domains.{name}.tasks: this version runs no lm-eval tasks; they are left out",
            )
        )
    return prompts, findings


def _format(name: str, format: str, prompts: DomainPrompts | None) -> None:
    """A format that does not parse, or that some prompts cannot be put into."""
    items = [] if prompts is None else [p for split in prompts.splits.values() for p in split]
    try:
        check_format(format)
        expect_renderable(items, format)
    except InputError as error:
        raise InputError(f"domains.{name}: {error}") from error


def _missing_responses(name: str, prompts: DomainPrompts, recipe: Recipe) -> list[Finding]:
    findings: list[Finding] = []
    for split, items in prompts.splits.items():
        # Of an empty response only the end of the text is left to fit.
        responses = [p.turns()[1] for p in items]
        without = sum(r is None or not r.strip() for r in responses)
        empty = without - responses.count(None)
        if not without:
            continue
        texts = {m.calibration.text for m in recipe.methods()}
        if split == "calibration" and without == len(items) and "response" in texts:
            findings.append(
                Finding(
                    "error",
                    f"domains.{name}.calibration: text 'response' is asked for, but no prompt in "
                    f"the file has a response{' that is not empty' if empty else ''}; add "
                    "responses, or use text: prompt",
                )
            )
        else:
            what = "no response, or an empty one" if empty else "no response"
            findings.append(
                Finding("warning", f"domains.{name}.{split}: {without} prompts have {what}")
            )
    return findings


def _strange_roles(name: str, prompts: DomainPrompts) -> list[Finding]:
    """Roles that only a template of its own knows."""
    findings: list[Finding] = []
    for split, items in prompts.splits.items():
        used = {m.role for p in items for m in p.messages or ()}
        strange = sorted(used.difference(ROLES))
        if strange:
            findings.append(
                Finding(
                    "warning",
                    f"domains.{name}.{split}: messages of the role {', '.join(map(repr, strange))};"
                    f" a chat template may not know it (usual are {', '.join(ROLES)}), and only a "
                    "last turn of the assistant is a response",
                )
            )
    return findings


def _few_items(name: str, prompts: DomainPrompts) -> list[Finding]:
    counts = {split: len(prompts.splits[split]) for split in SPLITS}
    counts["calibration"] = len(next(iter(prompts.draws.values())))
    return [
        Finding(
            "warning",
            f"domains.{name}.{split}: {count} prompts; {_USE[split]}, give at least {FEW_ITEMS}",
        )
        for split, count in counts.items()
        if count < FEW_ITEMS
    ]
