"""What goes into CONNECT for a login."""

from __future__ import annotations

import dataclasses

import pytest

from jetstream_sync.protocol.auth import Credentials


@pytest.mark.parametrize(
    ("credentials", "fields"),
    [
        (Credentials(), {}),
        (Credentials(user="u"), {"user": "u"}),
        (Credentials("u", "p"), {"user": "u", "pass": "p"}),
        (Credentials("u", ""), {"user": "u", "pass": ""}),
        (Credentials(token="t"), {"auth_token": "t"}),
    ],
)
def test_the_fields_are_those_of_the_protocol(credentials, fields):
    """What is not given is not in CONNECT; what is empty is."""
    assert credentials.connect_fields() == fields


def test_credentials_do_not_show():
    """Neither `repr` nor `str` has any of it."""
    credentials = Credentials("s3cret", "s3cret", "s3cret")
    assert "s3cret" not in f"{credentials!r} {credentials}"
    assert all(not each.repr for each in dataclasses.fields(credentials))
