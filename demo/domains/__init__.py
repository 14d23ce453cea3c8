"""The three task domains of the demonstration, one module each, and the plain prose set."""
