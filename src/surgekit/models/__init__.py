"""Models: where they come from, how they are loaded, what they are made of."""
