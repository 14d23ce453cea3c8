"""The prompts of a recipe: read, split, drawn by seed, tokenised."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from surgekit.errors import InputError
from surgekit.models.loading import has_tokenizer, load_tokenizer
from surgekit.recipe import Domain, PromptSet, Recipe
from surgekit.states.prompts import Prompt, TokenizedPrompts, read_prompts, tokenize_prompts
from surgekit.states.rendering import check_same_tokenizer

SPLITS = ("calibration", "validation", "test")


@dataclass(frozen=True)
class DomainPrompts:
    """One domain's prompts.

    Attributes:
        splits: the prompts of calibration (all that any seed draws), validation and test.
        draws: for each seed, indices into the calibration prompts.
    """

    splits: Mapping[str, list[Prompt]]
    draws: Mapping[int, list[int]]


@dataclass(frozen=True)
class DomainTokens:
    """The same, tokenised as the model sees them."""

    splits: Mapping[str, TokenizedPrompts]
    draws: Mapping[int, list[int]]

    def items(self) -> dict[str, int]:
        """Counts of items used, and of sequences cut at max_length."""
        counts = {split: len(tokens) for split, tokens in self.splits.items()}
        counts["calibration"] = len(next(iter(self.draws.values())))
        return counts | {"cut": sum(tokens.cut for tokens in self.splits.values())}


def read_domain(name: str, domain: Domain, seeds: Sequence[int]) -> DomainPrompts:
    """Read a domain's files and draw the calibration items of each seed.

    Raises:
        InputError: a file with fewer items than asked for, or a bad file.
    """
    pool = read_prompts(domain.calibration.file)
    if domain.validation is not None:
        validation = _first(domain.validation, f"domains.{name}.validation")
    else:
        held_out = max(1, len(pool) // 5)
        if held_out >= len(pool):
            raise InputError(
                f"domains.{name}: one calibration item leaves none for validation; "
                "give more, or a validation file"
            )
        pool, validation = pool[:-held_out], pool[-held_out:]
    wanted = domain.calibration.items or len(pool)
    if wanted > len(pool):
        raise InputError(
            f"domains.{name}.calibration: {wanted} items wanted, {len(pool)} at hand in "
            f"{domain.calibration.file}"
        )
    drawn = {seed: sorted(random.Random(seed).sample(range(len(pool)), wanted)) for seed in seeds}
    used = sorted({i for indices in drawn.values() for i in indices})
    place = {index: k for k, index in enumerate(used)}
    return DomainPrompts(
        {
            "calibration": [pool[i] for i in used],
            "validation": validation,
            "test": _first(domain.test, f"domains.{name}.test"),
        },
        {seed: [place[i] for i in indices] for seed, indices in drawn.items()},
    )


def read_plain(recipe: Recipe) -> list[Prompt] | None:
    """The prompts of ``plain_text``, or None where the recipe has none."""
    return None if recipe.plain_text is None else _first(recipe.plain_text, "plain_text")


def tokenize_domain(
    name: str,
    prompts: DomainPrompts,
    domain: Domain,
    tokenizer: PreTrainedTokenizerBase,
    limit: int,
) -> DomainTokens:
    """Tokenise all splits in the domain's own format."""
    splits: dict[str, TokenizedPrompts] = {}
    for split, items in prompts.splits.items():
        try:
            splits[split] = tokenize_prompts(
                items, tokenizer, format=domain.format, max_length=limit
            )
        except InputError as error:
            raise InputError(f"domains.{name}.{split}: {error}") from error
    return DomainTokens(splits, prompts.draws)


def check_tokenizers(
    folders: Mapping[str, Path],
    domains: Mapping[str, DomainPrompts],
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    *,
    trust_remote_code: bool,
) -> None:
    """Raise MismatchError where a model reads a prompt as other tokens than the merged one.

    Args:
        folders: by name: ``base``, and each domain for its expert. One without a tokenizer of its
            own has nothing to say.
        domains: the prompts; of each all splits are compared, for the base all domains' test.
        tokenizer: the merged model's.
    """
    wanted = [("base", name, ("test",)) for name in domains]
    wanted += [(name, name, SPLITS) for name in domains]
    known: dict[str, PreTrainedTokenizerBase] = {}
    for model, name, splits in wanted:
        folder = str(folders[model])
        if not has_tokenizer(folder):
            continue
        if model not in known:
            known[model] = load_tokenizer(folder, trust_remote_code=trust_remote_code)
        for split in splits:
            check_same_tokenizer(
                domains[name].splits[split],
                tokenizer,
                known[model],
                format=recipe.domains[name].format,
                whose=f"base, on {name}" if model == "base" else f"expert of {name}",
            )


def tokens_digest(tokens: TokenizedPrompts) -> str:
    """Identity of token sequences."""
    digest = hashlib.sha256()
    for tensor in (tokens.ids, tokens.offsets, tokens.response_starts):
        digest.update(tensor.to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _first(prompt_set: PromptSet, key: str) -> list[Prompt]:
    prompts = read_prompts(prompt_set.file)
    if prompt_set.items is not None and prompt_set.items > len(prompts):
        raise InputError(
            f"{key}: {prompt_set.items} items wanted, {len(prompts)} at hand in {prompt_set.file}"
        )
    return prompts[: prompt_set.items]
