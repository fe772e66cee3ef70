"""Settings for property tests: no deadline, which a busy machine would miss."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
