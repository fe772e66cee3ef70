"""``python -m jetstream_sync.workers``: its options."""

from __future__ import annotations

import sys

import pytest

from jetstream_sync.workers.command import main


def test_a_wrong_option_ends_with_status_2(capsys, monkeypatch):
    """What cannot be run is refused in one line, and nothing is started."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for arguments, text in {
        ("worker",): "worker='worker': must be MODULE:ATTRIBUTE",
        ("no_such_module:worker",): "there is no module 'no_such_module'",
        ("json:loads",): "json.loads is not a Worker; the module has none",
        ("app:worker", "--processes", "0"): "processes=0: must be a whole number, 1 or above",
        ("app:worker", "--max-age", "0"): "max_age=0.0: must be above 0",
    }.items():
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1
