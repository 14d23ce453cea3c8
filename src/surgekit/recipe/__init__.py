"""The recipe: the one YAML a user writes, read into checked settings."""

from surgekit.recipe.model import (
    RESERVED_NAMES,
    Domain,
    Method,
    PromptSet,
    Recipe,
    SurgerySpec,
)
from surgekit.recipe.reading import load_recipe, parse_recipe

__all__ = [
    "RESERVED_NAMES",
    "Domain",
    "Method",
    "PromptSet",
    "Recipe",
    "SurgerySpec",
    "load_recipe",
    "parse_recipe",
]
