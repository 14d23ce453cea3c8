"""Surgery: the modules that correct hidden states, and how they are fitted."""
