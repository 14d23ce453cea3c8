"""States: prompts, tokens, and the last hidden states models have on them."""
