"""The warning about calls that block an asyncio event loop."""

from __future__ import annotations

import asyncio
import sys
import types
import warnings

import pytest

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.client import request
from jetstream_sync.server import NatsServer


@pytest.fixture(autouse=True)
def _no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "_warned", {})


def test_a_connect_in_an_event_loop_warns(nats_server: NatsServer):
    """The warning names the line of the program, and the call succeeds."""

    async def program() -> None:
        jetstream_sync.connect(nats_server.url).close()

    with pytest.warns(RuntimeWarning, match="event loop") as caught:
        asyncio.run(program())
    assert [warning.filename for warning in caught] == [__file__]


def test_each_line_that_blocks_an_event_loop_warns_once(js: JetStream, stream_name: str):
    """A publish in a loop of a coroutine gives one warning, whatever the filters of other modules."""
    js.create_stream(name=stream_name, subjects=[stream_name])

    async def program() -> None:
        for _ in range(3):
            js.publish(stream_name, b"x")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        asyncio.run(program())
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert js.get_stream(stream_name).info().state.messages == 3


@pytest.mark.parametrize("thread", [True, False], ids=["in a thread", "in a notebook"])
def test_a_call_that_blocks_nothing_does_not_warn(
    js: JetStream, stream_name: str, monkeypatch: pytest.MonkeyPatch, thread: bool
):
    """Another thread has no event loop, and a notebook has nothing else to do in it."""
    js.create_stream(name=stream_name, subjects=[stream_name])
    if not thread:
        monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))

    async def program() -> int:
        if thread:
            return (await asyncio.to_thread(js.publish, stream_name, b"x")).seq
        return js.publish(stream_name, b"x").seq

    assert asyncio.run(program()) == 1  # warnings are errors
