"""Tests of properties: how long an example takes is the machine's matter, and says nothing."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
