"""How many examples a property is tried on: few in CI and always the same, many on request."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("SURGEKIT_EXAMPLES", "ci")
"""``ci`` or ``long``; the latter draws forty times as many, and others each time."""
_FACTOR = {"ci": 1, "long": 40}


def register() -> None:
    """Make the profile hypothesis' default."""
    fixture = [
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ]
    common = settings(deadline=None, suppress_health_check=fixture)
    settings.register_profile("ci", common, derandomize=True, database=None, max_examples=60)
    settings.register_profile("long", common, print_blob=True, max_examples=2400)
    settings.load_profile(PROFILE)


def examples(count: int) -> settings:
    """Settings for a property that takes ``count`` examples in CI."""
    return settings(max_examples=count * _FACTOR[PROFILE])
