"""``python -m surgekit``."""

from surgekit.cli import main

main()
