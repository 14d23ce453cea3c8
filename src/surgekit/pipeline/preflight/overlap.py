"""Pre-flight of what stands in two sets of prompts, or is an item of a public benchmark."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial

from surgekit.errors import InputError
from surgekit.findings import Finding
from surgekit.pipeline.preflight.benchmarks import Sketches, load_sketches
from surgekit.pipeline.preflight.text import Text, near_matches
from surgekit.pipeline.prompts import SPLITS, DomainPrompts
from surgekit.recipe import Recipe
from surgekit.states.prompts import Prompt

LONG_RESPONSE = 12
"""Words from which on two equal responses are more than a common short answer."""

Place = tuple[str, str]
"""(domain, split)."""


def check_overlap(domains: Mapping[str, DomainPrompts]) -> list[Finding]:
    """Prompts that are the same, or nearly, in what is fitted or chosen on and what is reported."""
    texts = {
        (name, split): [Text(prompt_text(p)) for p in prompts.splits[split]]
        for name, prompts in domains.items()
        for split in SPLITS
    }
    findings: list[Finding] = []
    for name, prompts in domains.items():
        for split in SPLITS:
            findings += _twice(name, split, texts[name, split])
        findings += _against(texts, (name, "validation"), [(name, "calibration")])
        # Of the domain itself first: a match with it is what is told.
        fitted = [(name, s) for s in ("calibration", "validation")]
        fitted += [(d, s) for d in domains if d != name for s in ("calibration", "validation")]
        findings += _against(texts, (name, "test"), fitted)
        findings += _same_responses(name, prompts)
    return findings


def check_benchmarks(
    recipe: Recipe, domains: Mapping[str, DomainPrompts], sketches: Sketches | None = None
) -> list[Finding]:
    """Items of public benchmarks among the prompts that are calibrated or chosen on.

    Args:
        sketches: of the benchmarks; those of the package where none are given.
    """
    try:
        known = sketches or load_sketches()
    except InputError as error:
        return [Finding("unverified", f"items of public benchmarks among the prompts ({error})")]
    findings: list[Finding] = []
    for name, prompts in domains.items():
        for split in ("calibration", "validation"):
            hits: Counter[str] = Counter()
            examples: dict[str, Text] = {}
            for text in (Text(prompt_text(p)) for p in prompts.splits[split]):
                for title in known.find(text):
                    hits[title] += 1
                    examples.setdefault(title, text)
            for title, count in hits.items():
                named = [t for t in recipe.domains[name].tasks if _is_task_of(t, title)]
                doing = "calibrating" if split == "calibration" else "choosing methods"
                said = (
                    f"domains.{name}.{split}: {_prompts(count)} of {title}, e.g. "
                    f"{_short(examples[title])}; {doing} on them makes a score there meaningless"
                )
                if named:
                    said += f", and tasks names {named[0]}"
                findings.append(Finding("error" if named else "warning", said))
    return findings


def prompt_text(prompt: Prompt) -> str:
    """All that a model is given of a prompt, its response left out."""
    return " ".join(turn["content"] for turn in prompt.turns()[0])


def _twice(name: str, split: str, texts: list[Text]) -> list[Finding]:
    counts = Counter(t.same for t in texts)
    surplus = len(texts) - len(counts)
    if not surplus:
        return []
    example = next(t for t in texts if counts[t.same] > 1)
    return [
        Finding(
            "warning",
            f"domains.{name}.{split}: {surplus} of {len(texts)} prompts stand there before, e.g. "
            f"{_short(example)}; such prompts weigh double",
        )
    ]


def _against(
    texts: Mapping[Place, list[Text]], judged: Place, fitted: list[Place]
) -> list[Finding]:
    """What of the texts at ``judged`` is found in one of the sets at ``fitted``."""
    searched = [(place, t) for place in fitted for t in texts[place]]
    first: dict[str, int] = {}
    for i, (_, text) in enumerate(searched):
        first.setdefault(text.same, i)
    same: defaultdict[Place, list[Text]] = defaultdict(list)
    rest: list[Text] = []
    for text in texts[judged]:
        if text.same in first:
            same[searched[first[text.same]][0]].append(text)
        else:
            rest.append(text)
    findings = [_same(judged, place, found) for place, found in same.items()]
    matches, whole = near_matches([t for _, t in searched], rest)
    near: defaultdict[Place, list[tuple[Text, Text]]] = defaultdict(list)
    for k, i in matches.items():
        near[searched[i][0]].append((rest[k], searched[i][1]))
    findings += [_near(judged, place, found) for place, found in near.items()]
    if not whole:
        findings.append(
            Finding(
                "unverified",
                f"domains.{'.'.join(judged)}: prompts that are nearly the same as fitted ones "
                "(too many are alike to compare all)",
            )
        )
    return findings


def _same(judged: Place, place: Place, found: list[Text]) -> Finding:
    if judged[0] == place[0]:
        return Finding(
            "error",
            f"domains.{judged[0]}: {len(found)} prompts stand in {place[1]} and in {judged[1]}, "
            f"e.g. {_short(found[0])}; the three sets must not share prompts",
        )
    return Finding(
        "warning",
        f"domains.{judged[0]}.{judged[1]}: {len(found)} prompts stand in domains.{place[0]}."
        f"{place[1]} too, e.g. {_short(found[0])}; what the adapter of {place[0]} does to the text "
        f"of {judged[0]} is then measured on what it was made with",
    )


def _near(judged: Place, place: Place, found: list[tuple[Text, Text]]) -> Finding:
    one, other = found[0]
    where = place[1] if judged[0] == place[0] else f"domains.{place[0]}.{place[1]}"
    return Finding(
        "warning",
        f"domains.{judged[0]}.{judged[1]}: {_prompts(len(found), 'nearly the same as one')} of "
        f"{where}, e.g. {_short(one)} and {_short(other)}; figures on them flatter, take them out "
        "of one of the sets",
    )


def _same_responses(name: str, prompts: DomainPrompts) -> list[Finding]:
    """Responses in test that stand in calibration under another prompt."""
    fitted: dict[str, str] = {}
    for prompt in prompts.splits["calibration"]:
        response = _long_response(prompt)
        if response is not None:
            fitted.setdefault(response.same, Text(prompt_text(prompt)).same)
    found: list[Text] = []
    for prompt in prompts.splits["test"]:
        response = _long_response(prompt)
        if response is not None and response.same in fitted:
            own = Text(prompt_text(prompt)).same
            found += [response] if fitted[response.same] != own else []
    if not found:
        return []
    return [
        Finding(
            "warning",
            f"domains.{name}.test: {len(found)} responses are those of calibration prompts that "
            f"are worded otherwise, e.g. {_short(found[0])}; figures on them flatter",
        )
    ]


def _long_response(prompt: Prompt) -> Text | None:
    response = prompt.turns()[1]
    text = None if response is None else Text(response)
    return text if text is not None and len(text.words) >= LONG_RESPONSE else None


def _is_task_of(task: str, title: str) -> bool:
    bare = partial(re.sub, r"[^a-z0-9]", "")
    return bare(task.casefold()).startswith(bare(title.split()[0].casefold()))


def _prompts(count: int, what: str = "an item") -> str:
    if count == 1:
        return f"1 prompt is {what}"
    return f"{count} prompts are {'items' if what == 'an item' else what}"


def _short(text: Text) -> str:
    return repr(" ".join(text.raw.split())[:60])
