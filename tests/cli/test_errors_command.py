"""``jsm errors``: what the codes of the server mean."""

from __future__ import annotations

from fixtures.jsm import run_jsm


def test_lookup_says_what_a_code_means(raw):
    """The description is the one that the server sends."""
    said = raw.api("STREAM.INFO.NOT_THERE")["error"]
    known = run_jsm("errors", "lookup", str(said["err_code"]), "-j").ok().json
    assert known["description"] == said["description"]
    assert known["code"] == said["code"]
    assert known["raised_as"] == "StreamNotFoundError"
    assert "nats-server 2." in known["source"]
    out = run_jsm("errors", "lookup", "10059").ok().out
    assert "Description: stream not found" in out


def test_a_code_that_nobody_knows():
    """An unknown code is not found; text that is not a code is a usage error."""
    assert run_jsm("errors", "lookup", "9").status == 3
    assert run_jsm("errors", "lookup", "stream").status == 2


def test_all_can_be_listed_and_searched():
    """A pattern finds errors by their text or name."""
    everything = run_jsm("errors", "ls", "-j").ok().json
    assert len(everything) > 150
    assert len({item["err_code"] for item in everything}) == len(everything)
    found = run_jsm("errors", "ls", "stream not found", "-j").ok().json
    assert 10059 in [item["err_code"] for item in found]
    assert len(found) < len(everything)
    assert run_jsm("errors", "ls", "no such thing", "-j").ok().json == []
    assert run_jsm("errors", "ls", "(").status == 2
