"""The keyword types of configs agree with the records."""

from __future__ import annotations

from make_config_fields import CONNECT_FILE, FILE, connect_options, contents


def test_the_types_of_keywords_are_up_to_date():
    """Run ``python tests/make_config_fields.py`` when this fails."""
    assert FILE.read_text(encoding="utf-8") == contents()
    assert CONNECT_FILE.read_text(encoding="utf-8") == connect_options()
