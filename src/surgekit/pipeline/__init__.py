"""The pipeline: a recipe's stages, one after the other, each run once."""
