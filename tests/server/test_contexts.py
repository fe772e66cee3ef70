"""Connections with a context of the ``nats`` command (ADR-21)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync import InvalidOptionError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the contexts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    return folder


def test_a_context_has_servers_and_login(folder, nats_server):
    """Options that are given replace those of the context."""
    fields = {"url": nats_server.url, "description": "d", "user": "", "inbox_prefix": "_IN.me"}
    (folder / "a.json").write_text(json.dumps(fields))
    with jetstream_sync.connect(context="a") as nc:
        assert nc.new_inbox().startswith("_IN.me.")
        assert nc.jetstream().account_info()
    with jetstream_sync.connect(context="a", inbox_prefix="_OTHER") as nc:
        assert nc.new_inbox().startswith("_OTHER.")
    with jetstream_sync.connect(nats_server.url, context="a") as nc:
        assert nc.connected_url == nats_server.url


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none", None, "there is no file"),
        ("../a", None, "is not the name of a context"),
        ("a", "[]", "expected a JSON object"),
        ("a", "{", "Expecting"),
        ("a", {"url": 7}, "url: expected text"),
        ("a", {"socks_proxy": "socks5://h"}, "'socks_proxy' is not supported"),
    ],
)
def test_a_context_that_cannot_be_used(folder, name, content, reason):
    """The error names the option and the reason, and nothing is connected."""
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    with pytest.raises(InvalidOptionError, match=reason) as caught:
        jetstream_sync.connect(context=name)
    assert caught.value.option == "context"
