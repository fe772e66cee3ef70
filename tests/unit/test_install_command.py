"""The install command in error texts."""

from __future__ import annotations

import importlib.metadata

import pytest

from jetstream_sync import version


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)


def test_an_installed_package_is_named(monkeypatch):
    """The command names the distribution, from whatever it was installed."""
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: object())
    assert version.install_command("cli,server") == "pip install 'jetstream-sync[cli,server]'"


def test_a_source_tree_without_installation_is_named_by_its_path(monkeypatch, tmp_path):
    """In a clone that is not installed, pip would not find the distribution by its name."""
    uninstall(monkeypatch)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(version, "__file__", str(tmp_path / "jetstream_sync" / "version.py"))
    assert version.install_command("cli") == f"pip install '{tmp_path}[cli]'"


def test_copied_modules_name_the_distribution(monkeypatch, tmp_path):
    """Without a source tree, as in a zip for Spark, the command names the distribution."""
    uninstall(monkeypatch)
    monkeypatch.setattr(version, "__file__", str(tmp_path / "jetstream_sync" / "version.py"))
    assert version.install_command("nkeys") == "pip install 'jetstream-sync[nkeys]'"
