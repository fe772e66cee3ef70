"""Which of the applications run."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Leave out what is marked ``apps``, unless ``-m`` speaks of it.

    Where it does, nothing is skipped: an application whose packages are not there fails.
    """
    if "apps" in (config.getoption("-m") or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("apps")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("apps")]
