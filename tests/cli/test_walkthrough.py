"""
The walk-through of 2020, with the ``jsm`` of today: docs/tutorial/jsm.rst from top to bottom.

With ``JSM_WALKTHROUGH=write`` in the environment the page gets what the commands show; otherwise it
has to have it already.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fix_threads import wait_until
from fix_walk import Page, Walk, masked
from rawnats import RawClient

from jetstream_sync.server import NatsServer

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "jsm.rst"
YEAR = 365 * 24 * 3600 * 10**9


class Effects:
    """What the commands did, read back from the server by hand."""

    def __init__(self, raw: RawClient, walk: Walk) -> None:
        self._raw = raw
        self._walk = walk

    def all(self) -> dict[str, Callable[[], None]]:
        return {
            name.removeprefix("see_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("see_")
        }

    def _stream(self) -> dict[str, Any]:
        return self._raw.api("STREAM.INFO.ORDERS")

    def _consumer(self, name: str) -> dict[str, Any]:
        return self._raw.api(f"CONSUMER.INFO.ORDERS.{name}")

    def see_orders_made(self) -> None:
        config = self._stream()["config"]
        assert config["subjects"] == ["ORDERS.*"]
        assert (config["storage"], config["retention"]) == ("file", "limits")
        assert config["max_age"] == YEAR
        assert (config["max_msgs"], config["max_bytes"], config["max_msg_size"]) == (-1, -1, -1)
        assert not config.get("no_ack")

    def see_three_stored(self) -> None:
        found = [(each.seq, each.subject, each.data) for each in self._raw.stored("ORDERS")]
        assert found == [(number, "ORDERS.scratch", b"hello") for number in (1, 2, 3)]

    def see_purged(self) -> None:
        state = self._stream()["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 4, 3)

    def see_orders_anew(self) -> None:
        assert self._stream()["state"]["last_seq"] == 0
        self.see_orders_made()

    def see_new_made(self) -> None:
        config = self._consumer("NEW")["config"]
        assert config["filter_subject"] == "ORDERS.received"
        assert "deliver_subject" not in config
        wanted = {
            "durable_name": "NEW",
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "max_deliver": 20,
            "sample_freq": "100",
        }
        assert {name: config[name] for name in wanted} == wanted

    def see_monitor_made(self) -> None:
        config = self._consumer("MONITOR")["config"]
        wanted = {
            "deliver_subject": "monitor.ORDERS",
            "ack_policy": "none",
            "deliver_policy": "last",
            "replay_policy": "instant",
        }
        assert {name: config[name] for name in wanted} == wanted
        assert not config.get("filter_subject")

    def see_two_done(self) -> None:
        info = self._consumer("DISPATCH")
        assert info["ack_floor"]["stream_seq"] == info["delivered"]["stream_seq"] == 2
        assert info["num_pending"] == 1

    def _tracked(self, delivered: int, stream: int, floor: int, pending: int, again: int) -> None:
        info = self._consumer("DISPATCH")
        assert info["delivered"]["consumer_seq"] == delivered
        assert info["delivered"]["stream_seq"] == stream
        assert info["ack_floor"]["stream_seq"] == floor
        assert (info["num_ack_pending"], info["num_redelivered"]) == (pending, again)

    def see_acked_once(self) -> None:
        self._tracked(1, 1, 1, 0, 0)

    def see_one_pending(self) -> None:
        self._tracked(2, 2, 1, 1, 0)

    def see_redelivered(self) -> None:
        self._tracked(3, 2, 1, 1, 1)

    def see_acked_at_last(self) -> None:
        self._tracked(4, 2, 2, 0, 0)

    def see_hundred(self) -> None:
        bodies = [each.data for each in self._raw.stored("ORDERS")]
        assert bodies == [b"order %d" % number for number in range(1, 101)]

    def see_starts(self) -> None:
        shown = {
            block.commands[-1].split()[-1]: "\n".join(outputs[-1])
            for block, outputs in self._walk.results
            if "obs next" in block.commands[-1]
        }
        for consumer, order in (("ALL", 1), ("LAST", 100), ("TEN", 10), ("6SEC", 2)):
            assert f"\norder {order}\n" in shown[consumer] + "\n"

    def _ephemeral(self) -> list[dict[str, Any]]:
        return [
            each
            for each in self._raw.api("CONSUMER.LIST.ORDERS")["consumers"]
            if each["config"].get("deliver_subject") == "my.monitor"
        ]

    def see_ephemeral(self) -> None:
        (info,) = self._ephemeral()
        assert "durable_name" not in info["config"]
        assert info["push_bound"] is True

    def see_ephemeral_gone(self) -> None:
        wait_until(lambda: not self._ephemeral(), 30)

    def see_replayed(self) -> None:
        (lines,) = [
            outputs[0] for block, outputs in self._walk.results if "sub -t" in block.commands[0]
        ]
        times = [
            datetime.strptime(line[:25], "%Y/%m/%d %H:%M:%S %z")
            for line in lines
            if "Received on [ORDERS.processed]" in line
        ]
        assert len(times) == 3
        # Two seconds, of which whole ones are shown.
        assert 1 <= (times[-1] - times[0]).total_seconds() < 10

    def see_sampled(self) -> None:
        info = self._consumer("NEW")
        assert info["config"]["sample_freq"] == "100"
        assert info["ack_floor"]["consumer_seq"] == 2
        samples = [
            line
            for block, outputs in self._walk.results
            if "obs sample" in block.commands[0]
            for line in outputs[0]
        ]
        assert any(re.match(r"\[\d\d:\d\d:\d\d\] ORDERS > NEW$", line) for line in samples)
        assert any('"type":"io.nats.jetstream.metric.v1.consumer_ack"' in line for line in samples)


@pytest.mark.timeout(120)
@pytest.mark.server(">=2.15")
def test_the_walk_through(tmp_path: Path) -> None:
    """A newcomer follows the document of 2020 with jsm alone, and sees what the page shows."""
    page = Page(PAGE)
    with (
        NatsServer(name="js1") as server,
        RawClient(server.port, timeout=60) as raw,
        Walk(page, server.url, tmp_path) as walk,
    ):
        walk.run(Effects(raw, walk).all())
    if os.environ.get("JSM_WALKTHROUGH") == "write":
        page.write(walk.results)
        return
    differences: list[str] = []
    for block, shown in walk.results:
        expected, found = (masked(block.lines(each)) for each in (block.shown, shown))
        differences += difflib.unified_diff(
            expected, found, f"line {block.first} of the page", "as it is shown", lineterm=""
        )
    assert not differences, "\n".join(differences)
