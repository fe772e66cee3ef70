"""The install command in error texts."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from jetstream_sync import version


def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str | None) -> None:
    """Make the package appear to be installed from a URL, or from an index if it is None."""
    if url is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {}}))
    (tmp_path / "METADATA").write_text("Name: jetstream-sync\nVersion: 1\n")
    monkeypatch.setattr(
        version, "__file__", str(tmp_path / "site" / "jetstream_sync" / "version.py")
    )
    found = importlib.metadata.PathDistribution(tmp_path)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: found)


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)


def test_a_package_from_an_index_is_named(monkeypatch, tmp_path):
    """Without a recorded URL, pip finds the distribution by its name."""
    install(monkeypatch, tmp_path, None)
    assert version.install_command("cli,server") == "pip install 'jetstream-sync[cli,server]'"


def test_a_clone_or_wheel_is_named_by_its_path(monkeypatch, tmp_path):
    """The folder or file of the installation is named; no index may have the package."""
    source = tmp_path / "a clone"
    source.mkdir()
    install(monkeypatch, tmp_path, source.as_uri())
    assert version.install_command("cli") == f"pip install '{source}[cli]'"


@pytest.mark.parametrize("url", ["file:///no/such/folder", "https://example.com/package.whl"])
def test_a_source_that_is_not_here_is_not_named(monkeypatch, tmp_path, url):
    """A folder that was removed after the installation, and other URLs, are not part of the command."""
    install(monkeypatch, tmp_path, url)
    assert version.install_command("cli") == "pip install '.[cli]' in a clone of the repository"


def test_a_source_tree_without_installation_is_named_by_its_path(monkeypatch, tmp_path):
    """In a clone that is not installed, pip would not find the distribution by its name."""
    uninstall(monkeypatch)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(version, "__file__", str(tmp_path / "jetstream_sync" / "version.py"))
    assert version.install_command("cli") == f"pip install '{tmp_path}[cli]'"


def test_copied_modules_name_a_clone(monkeypatch, tmp_path):
    """Without a source tree, as in a zip for Spark, the command needs a clone."""
    uninstall(monkeypatch)
    monkeypatch.setattr(version, "__file__", str(tmp_path / "jetstream_sync" / "version.py"))
    assert version.install_command("nkeys") == "pip install '.[nkeys]' in a clone of the repository"
