"""``jsm account``: what an account uses, read back by hand."""

from __future__ import annotations

from fix_jsm import Jsm
from rawnats import RawClient


def test_info_starts_with_usage_and_limits(jsm: Jsm, raw: RawClient) -> None:
    """Without a word of configuration, it shows how much of what there is is used."""
    raw.api("STREAM.CREATE.A", name="A", subjects=["a"], storage="memory")
    lines = jsm("account", "info").ok().out.splitlines()
    assert lines[0].strip().startswith("Memory: 0 B of ")
    assert lines[1].strip().startswith("Storage: 0 B of ")
    assert lines[2].strip() == "Streams: 1 of Unlimited"
    assert lines[3].strip() == "Consumers: 0 of Unlimited"


def test_info_as_json_is_what_the_server_said(jsm: Jsm, raw: RawClient) -> None:
    """With -j the server's answer is there as it was."""
    raw.api("STREAM.CREATE.A", name="A", subjects=["a"], storage="memory")
    answer = raw.api("INFO")
    said = jsm("account", "info", "-j").ok().json
    assert said["jetstream"]["limits"] == answer["limits"]
    assert said["jetstream"]["streams"] == answer["streams"] == 1
    assert said["connection"]["server_id"] == raw.info["server_id"]
