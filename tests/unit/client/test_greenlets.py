"""Incomplete monkey patching of gevent is refused; complete patching, or none, is allowed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from jetstream_sync.client.threads import check_patches
from jetstream_sync.errors import Error


def patched(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkey = SimpleNamespace(is_module_patched=lambda name: name in names)
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)


def test_all_or_nothing_is_fine(monkeypatch):
    """The package may be missing, imported without patching, or have patched everything."""
    monkeypatch.delitem(sys.modules, "gevent.monkey", raising=False)
    check_patches()
    patched(monkeypatch)
    check_patches()
    patched(monkeypatch, "time", "ssl")
    check_patches()
    patched(monkeypatch, "select", "socket", "threading", "time")
    check_patches()


def test_a_partial_patch_of_gevent_is_refused(monkeypatch):
    """The error lists the patched and the unpatched modules."""
    patched(monkeypatch, "socket")
    with pytest.raises(Error, match="patched socket, but not select and threading: "):
        check_patches()
