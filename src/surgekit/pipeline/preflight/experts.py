"""Pre-flight that loads models: is each expert better than the base on its own domain?"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from surgekit.errors import InputError
from surgekit.findings import Finding
from surgekit.models.anatomy import find_anatomy
from surgekit.models.loading import load_model, load_tokenizer, parse_dtype
from surgekit.pipeline.expert_check import compare_losses, expert_warnings, prompt_losses
from surgekit.pipeline.prompts import read_domain
from surgekit.recipe import Recipe
from surgekit.states.capture import capture
from surgekit.states.prompts import TokenizedPrompts, tokenize_prompts
from surgekit.statistics import Array

PROMPTS = 16
"""Prompts of a domain that are looked at: enough to see an expert that is none."""

Losses = tuple[Array, Array]


def check_experts(recipe: Recipe, trust_remote_code: bool) -> list[Finding]:
    """Load base and experts, one at a time, and compare their losses on a few prompts.

    The prompts are the first of validation (of what is set aside for it, without such a file);
    test prompts are never looked at. A merge that the user brings is compared too.

    Returns:
        A warning for an expert that is worse than the base, or than the merged model already; a
        note of the figures for each other one; an error for a model that cannot be run.
    """
    try:
        tokenizer = load_tokenizer(
            recipe.merged_folder or recipe.base, trust_remote_code=trust_remote_code
        )
        tokens = {name: _tokens(recipe, name, tokenizer) for name in recipe.domains}
        common = {"base": _losses(recipe, recipe.base, tokens, trust_remote_code)}
        if recipe.merged_folder is not None:
            common["merged"] = _losses(recipe, recipe.merged_folder, tokens, trust_remote_code)
    except InputError as error:
        return [Finding("error", str(error))]
    findings: list[Finding] = []
    for name, domain in recipe.domains.items():
        try:
            source = domain.expert.over(recipe.base)
            own = _losses(recipe, source, {name: tokens[name]}, trust_remote_code)
            compared = compare_losses(
                {"expert": own[name]} | {model: losses[name] for model, losses in common.items()}
            )
        except InputError as error:
            findings.append(Finding("error", f"domains.{name}: {error}"))
            continue
        warnings = expert_warnings(compared)
        findings += [Finding("warning", f"domains.{name}: {w}") for w in warnings]
        if not warnings:
            figures = ", ".join(f"{model} {loss:.3f}" for model, loss in compared["loss"].items())
            findings.append(
                Finding(
                    "note",
                    f"domains.{name}: loss on {compared['prompts']} validation prompts: {figures}",
                )
            )
    return findings


def _tokens(recipe: Recipe, name: str, tokenizer: PreTrainedTokenizerBase) -> TokenizedPrompts:
    domain = recipe.domains[name]
    prompts = read_domain(name, domain, recipe.seeds).splits["validation"][:PROMPTS]
    try:
        return tokenize_prompts(
            prompts, tokenizer, format=domain.format, max_length=recipe.max_length
        )
    except InputError as error:
        raise type(error)(f"domains.{name}: {error}") from error


def _losses(
    recipe: Recipe, source: Any, tokens: dict[str, TokenizedPrompts], trust_remote_code: bool
) -> dict[str, Losses]:
    """Losses of one model on the prompts of some domains; it is let go of at the end."""
    model = load_model(
        source,
        dtype=recipe.dtype,
        device=None if recipe.device == "cpu" else recipe.device,
        trust_remote_code=trust_remote_code,
    )
    head = find_anatomy(model, body=recipe.body, head=recipe.head)[1].prepared(
        model.dtype, device="cpu"
    )
    return {
        name: prompt_losses(
            capture(
                model,
                wanted,
                batch_size=recipe.batch_size,
                dtype=parse_dtype(recipe.dtype) or model.dtype,
                body=recipe.body,
                head=recipe.head,
                model_fingerprint="not needed",
            ),
            head,
        )
        for name, wanted in tokens.items()
    }
