"""Untrusted text is shown without controlling the terminal."""

from __future__ import annotations

import json

import pytest
from fixtures.jsm import Jsm
from fixtures.rawnats import RawClient

from jetstream_sync.cli.shared.env import readable, single_line, visible

RED = "\x1b[31mred\x9b2J"


@pytest.fixture
def hostile(jsm: Jsm, raw: RawClient) -> Jsm:
    """Streams and consumers whose names or descriptions have escape sequences."""
    for name, subject in (("A", "a.*"), ("A\x1b[2J", "b.*")):
        made = raw.api(f"STREAM.CREATE.{name}", name=name, subjects=[subject], description=RED)
        assert "error" not in made, made
        for consumer in ("B", "B\x1b[2J"):
            config = {"durable_name": consumer, "description": f"{RED}\nsecond"}
            body = json.dumps({"stream_name": name, "config": config}).encode()
            response = raw.request(f"$JS.API.CONSUMER.CREATE.{name}.{consumer}", body)
            assert b'"error"' not in response, response
    raw.request("a.\x1b[2J", b"x")
    return jsm


@pytest.mark.parametrize(
    "command",
    [
        ("stream", "ls"),
        ("stream", "info", "A"),
        ("stream", "view", "A"),
        ("consumer", "ls", "A"),
        ("consumer", "info", "A", "B"),
        ("top", "--once", "--interval", "10ms"),
    ],
)
def test_names_and_descriptions_do_not_steer_a_terminal(hostile, command):
    """Control characters in names and descriptions are escaped."""
    shown = hostile(*command).ok()
    assert "\\x1b[" in shown.out
    assert not {"\x1b", "\x9b"} & set(shown.out + shown.err)


def test_an_error_does_not_steer_a_terminal(hostile):
    """A name that is suggested is shown as it is in a list."""
    refused = hostile("stream", "info", "A[2J")
    assert refused.status == 3
    assert "did you mean A\\x1b[2J?" in refused.err


def test_a_stream_that_can_not_be_named_hides_no_others(hostile):
    """A stream with an invalid name does not break commands that list all streams."""
    for command in (("consumer", "ls", "-n"), ("consumer", "ls"), ("consumer", "report")):
        found = hostile(*command, "-j").ok().json
        names = found if "-n" in command else [item["stream_name"] for item in found]
        assert any(name.split()[0] == "A" for name in names)


def test_a_body_does_not_turn_its_line_around(jsm, raw):
    """A control character for right-to-left text is shown as an escape, and JSON on a terminal has one."""
    body = "\u202egnp.exe\x9b2J"
    raw.api("STREAM.CREATE.T", name="T", subjects=["t"])
    raw.request("t", body.encode())
    for command in (("stream", "view", "T"), ("stream", "get", "T", "1")):
        shown = jsm(*command).ok().out
        assert "\\u202egnp.exe\\x9b2J" in shown
    shown = jsm("stream", "view", "T", "-j", tty=True).ok()
    assert "\\u202egnp.exe\\u009b2J" in shown.out
    assert shown.json["text"] == body


@pytest.mark.parametrize(
    ("text", "function", "shown"),
    [
        ("é\udcff", visible, "é\\xff"),
        ("a\tb\nc\rd", readable, "a\tb\nc\\x0dd"),
        (b"\xff\x00", readable, "\\xff\\x00"),
        ("a\tb\nc\x7f", single_line, "a\\tb\\nc\\x7f"),
        ("\u202etxt\u2066", readable, "\\u202etxt\\u2066"),
        (
            "\u061c\u200e\u200f\u202a\u2069".encode(),
            readable,
            "\\u061c\\u200e\\u200f\\u202a\\u2069",
        ),
    ],
)
def test_text_is_made_fit(text, function, shown):
    """Invalid UTF-8 and control characters become escapes."""
    assert function(text) == function(shown) == shown
