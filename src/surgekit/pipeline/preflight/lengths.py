"""Pre-flight of the prompts as tokens: what is cut, what is left to learn and to judge."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from surgekit.errors import InputError
from surgekit.findings import Finding
from surgekit.models.loading import load_tokenizer
from surgekit.pipeline.preflight.facts import ModelFacts
from surgekit.pipeline.prompts import SPLITS, DomainPrompts
from surgekit.recipe import Recipe
from surgekit.states.prompts import Prompt, tokenize_prompts
from surgekit.states.rendering import expect_renderable
from surgekit.surgery.config import POSITIONAL

SECONDS = 30.0
"""How long tokenising may take; what is left then is reported as not verified."""
FEW_TOKENS = 5
"""Calibration tokens at a position below which its row of the table rests on little."""
_UNCUT = 1 << 30
_CHUNK = 128
# Architectures that look their positions up in a table of weights: beyond it they fail.
_POSITIONS_IN_A_TABLE = ("gpt2", "gpt_neo", "gpt_bigcode", "opt", "biogpt", "openai-gpt")


@dataclass(frozen=True)
class Counts:
    """Tokens of some prompts.

    Attributes:
        prompt: of each prompt without its response.
        whole: of each with it, before any cut.
    """

    prompt: list[int]
    whole: list[int]

    def kept(self, limit: int) -> int:
        """Tokens that are left after the cut."""
        return sum(min(n, limit) for n in self.whole)

    def scored(self, limit: int) -> int:
        """Tokens whose prediction is judged."""
        total = 0
        for prompt, whole in zip(self.prompt, self.whole, strict=True):
            end = min(whole, limit)
            total += end - prompt if prompt < end else end - 1
        return total


DomainCounts = Mapping[str, Counts]


def count_tokens(
    recipe: Recipe, domains: Mapping[str, DomainPrompts], *, trust_remote_code: bool
) -> tuple[dict[str, DomainCounts], list[Finding]]:
    """Tokens of every split of every domain, where the tokenizer is at hand.

    The tokenizer is that of a merge the user brings, else the base's, which the merged model
    gets unless the merge says otherwise.

    Returns:
        By domain and split (only domains that were counted to the end), and what went wrong.
    """
    source = recipe.merged_folder or recipe.base
    try:
        tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
    except InputError as error:
        return {}, [Finding("unverified", f"lengths of prompts: no tokenizer at hand ({error})")]
    counted: dict[str, DomainCounts] = {}
    findings: list[Finding] = []
    deadline = time.monotonic() + SECONDS
    for name, prompts in domains.items():
        try:
            for items in prompts.splits.values():
                expect_renderable(items, recipe.domains[name].format)
        except InputError:
            continue  # an error with any tokenizer, which the domain's own check has told
        try:
            counted[name] = {
                split: _count(
                    prompts.splits[split], tokenizer, recipe.domains[name].format, deadline
                )
                for split in SPLITS
            }
        except InputError as error:
            if recipe.merged_folder is not None:
                findings.append(Finding("error", f"domains.{name}: {error}"))
            else:
                said = f"domains.{name}: with the base's tokenizer, {error}"
                findings.append(Finding("warning", said))
        except TimeoutError:
            findings.append(
                Finding(
                    "unverified",
                    f"domains.{name}: lengths of prompts (tokenising all of them takes more than "
                    f"{SECONDS:.0f} s)",
                )
            )
    return counted, findings


def _count(
    prompts: list[Prompt], tokenizer: PreTrainedTokenizerBase, format: str, deadline: float
) -> Counts:
    heads: list[int] = []
    wholes: list[int] = []
    for start in range(0, len(prompts), _CHUNK):
        if time.monotonic() > deadline:
            raise TimeoutError
        tokens = tokenize_prompts(
            prompts[start : start + _CHUNK], tokenizer, format=format, max_length=_UNCUT
        )
        heads += tokens.response_starts.tolist()
        wholes += tokens.lengths()
    return Counts(heads, wholes)


def check_lengths(
    recipe: Recipe, counted: Mapping[str, DomainCounts], facts: ModelFacts | None
) -> list[Finding]:
    """What is cut at ``max_length``, beyond the model's or a table's positions, or too short."""
    findings: list[Finding] = []
    for name, splits in counted.items():
        for split, counts in splits.items():
            findings += _cuts(f"domains.{name}.{split}", split, counts, recipe)
        findings += _tables(name, splits["calibration"], recipe)
        findings += _short_responses(name, splits["calibration"], recipe)
    if facts is not None:
        findings += _positions(counted, facts, recipe)
    return findings + _thin_rows(counted, recipe)


def _cuts(where: str, split: str, counts: Counts, recipe: Recipe) -> list[Finding]:
    limit = recipe.max_length
    cut = sum(n > limit for n in counts.whole)
    if not cut:
        return []
    lost = sum(counts.whole) - counts.kept(limit)
    findings = [
        Finding(
            "warning",
            f"{where}: {cut} of {len(counts.whole)} sequences are cut at max_length {limit} "
            f"({100 * lost / sum(counts.whole):.0f} % of the tokens); the longest has "
            f"{max(counts.whole)} tokens",
        )
    ]
    with_response = [(p, n) for p, n in zip(counts.prompt, counts.whole, strict=True) if p < n]
    gone = sum(p >= limit for p, _ in with_response)
    if not gone:
        return findings
    said = f"{where}: of {gone} of {len(with_response)} prompts the whole response is cut at "
    said += f"max_length {limit}"
    texts = {m.calibration.text for m in recipe.methods()}
    if split == "calibration" and gone == len(with_response) and "response" in texts:
        longest = max(p for p, _ in with_response)
        said += f", so text 'response' has nothing to fit; prompts have up to {longest} tokens"
        return [*findings, Finding("error", said)]
    if split != "calibration":
        said += "; what is judged there are the prompt's own tokens"
    return [*findings, Finding("warning", said)]


def _tables(name: str, calibration: Counts, recipe: Recipe) -> list[Finding]:
    """Sequences that pass the last row of a position table."""
    rows = _table_rows(recipe)
    if not rows:
        return []
    method, fewest = min(rows, key=lambda r: r[1])
    beyond = sum(min(n, recipe.max_length) > fewest for n in calibration.whole)
    if not beyond:
        return []
    return [
        Finding(
            "warning",
            f"domains.{name}.calibration: {beyond} sequences are longer than the {fewest} rows of "
            f"the position table of {method}; tokens beyond get no position part; raise "
            "max_positions or lower max_length",
        )
    ]


def _thin_rows(counted: Mapping[str, DomainCounts], recipe: Recipe) -> list[Finding]:
    """Rows of position tables that few calibration tokens reach."""
    rows = _table_rows(recipe)
    if not rows or not counted:
        return []
    last = min(max(r for _, r in rows), recipe.max_length)
    thin: list[str] = []
    for name, splits in counted.items():
        deep = sorted((min(n, last) for n in splits["calibration"].whole), reverse=True)
        reach = deep[FEW_TOKENS - 1] if len(deep) >= FEW_TOKENS else 0
        if reach < last:
            thin.append(f"{reach} ({name})")
    if not thin:
        return []
    return [
        Finding(
            "note",
            f"rows of the position tables rest on fewer than {FEW_TOKENS} calibration tokens each "
            f"from position {', '.join(thin)} on",
        )
    ]


def _table_rows(recipe: Recipe) -> list[tuple[str, int]]:
    """(method, rows of its table) of each method that has one."""
    return [
        (m.id, m.config(1 << 30).max_positions or 0)
        for m in recipe.methods()
        if m.module in POSITIONAL
    ]


def _short_responses(name: str, calibration: Counts, recipe: Recipe) -> list[Finding]:
    methods = [m.id for m in recipe.methods() if m.calibration.text == "response"]
    limit = recipe.max_length
    lengths = sorted(
        min(n, limit) - p
        for p, n in zip(calibration.prompt, calibration.whole, strict=True)
        if p < min(n, limit)
    )
    # A response's tokens include the end of turn.
    if not methods or not lengths or lengths[len(lengths) // 2] > 2:
        return []
    return [
        Finding(
            "warning",
            f"domains.{name}.calibration: most responses are a single token, and text 'response' "
            f"fits {methods[0]} on {sum(lengths)} tokens in all; use text: both, or longer "
            "responses",
        )
    ]


def _positions(
    counted: Mapping[str, DomainCounts], facts: ModelFacts, recipe: Recipe
) -> list[Finding]:
    if facts.positions is None:
        return []
    longer = sum(
        min(n, recipe.max_length) > facts.positions
        for splits in counted.values()
        for counts in splits.values()
        for n in counts.whole
    )
    if not longer:
        return []
    fails = facts.kind in _POSITIONS_IN_A_TABLE
    return [
        Finding(
            "error" if fails else "warning",
            f"{longer} sequences are longer than the {facts.positions} positions the model was "
            f"made for; set max_length: {facts.positions}",
        )
    ]
