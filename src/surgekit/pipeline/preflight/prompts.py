"""Pre-flight of a domain's prompts: format, responses, and what stands in two sets."""

from __future__ import annotations

from surgekit.errors import InputError
from surgekit.findings import Finding, attempt
from surgekit.pipeline.prompts import DomainPrompts, read_domain
from surgekit.recipe import Recipe
from surgekit.states.prompts import Prompt, check_format


def check_domain(recipe: Recipe, name: str) -> tuple[DomainPrompts | None, list[Finding]]:
    """A domain's prompts, where they can be read, and what there is to say of them."""
    findings: list[Finding] = []
    domain = recipe.domains[name]
    prompts = attempt(findings, lambda: read_domain(name, domain, recipe.seeds))
    attempt(findings, lambda: _format(name, domain.format, prompts))
    if prompts is not None:
        findings += _shared_prompts(name, prompts)
        findings += _missing_responses(name, prompts, recipe)
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
    try:
        check_format(format)
    except InputError as error:
        raise InputError(f"domains.{name}: {error}") from error
    items = [] if prompts is None else [p for split in prompts.splits.values() for p in split]
    if format == "plain" and any(p.messages for p in items):
        raise InputError(
            f"domains.{name}: format 'plain' takes 'prompt', found 'messages'; use format chat"
        )


def _shared_prompts(name: str, prompts: DomainPrompts) -> list[Finding]:
    """The same prompt in two sets: what is reported would have been tuned on."""
    seen: dict[str, dict[str, int]] = {
        split: {_normalised(p): i for i, p in enumerate(items)}
        for split, items in prompts.splits.items()
    }
    findings: list[Finding] = []
    for one, other in (
        ("calibration", "test"),
        ("validation", "test"),
        ("calibration", "validation"),
    ):
        shared = seen[one].keys() & seen[other].keys()
        if shared:
            example = prompts.splits[other][seen[other][sorted(shared)[0]]]
            findings.append(
                Finding(
                    "error",
                    f"domains.{name}: {len(shared)} prompts stand in {one} and in {other}, e.g. "
                    f"{_normalised(example)[:60]!r}; the three sets must not share prompts",
                )
            )
    return findings


def _missing_responses(name: str, prompts: DomainPrompts, recipe: Recipe) -> list[Finding]:
    findings: list[Finding] = []
    for split, items in prompts.splits.items():
        without = sum(p.turns()[1] is None for p in items)
        if not without:
            continue
        texts = {m.calibration.text for m in recipe.methods()}
        if split == "calibration" and without == len(items) and "response" in texts:
            findings.append(
                Finding(
                    "error",
                    f"domains.{name}.calibration: text 'response' is asked for, but no prompt in "
                    "the file has a response; add responses, or use text: prompt",
                )
            )
        else:
            findings.append(
                Finding("warning", f"domains.{name}.{split}: {without} prompts have no response")
            )
    return findings


def _normalised(prompt: Prompt) -> str:
    return " ".join(" ".join(t["content"] for t in prompt.turns()[0]).split()).casefold()
