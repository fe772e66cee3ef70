"""A Ctrl-C at any moment of a call that removes a consumer of the server does not leave the consumer."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.threads import wait_until

from jetstream_sync import JetStream, errors

pytestmark = sends_ctrl_c


class Removal(NamedTuple):
    """How an object with a consumer is made, and the call that ends it."""

    make: Callable[[JetStream], Any]
    end: str


def ordered(js: JetStream) -> Any:
    """Return an ordered consumer that has a consumer on the server."""
    made = js.ordered_consumer("S")
    made.fetch_no_wait(1)
    return made


REMOVALS = {
    "push subscription": Removal(lambda js: js.subscribe("s.a"), "unsubscribe"),
    "queue subscription": Removal(lambda js: js.subscribe("s.a", "q"), "unsubscribe"),
    "ordered subscription": Removal(
        lambda js: js.subscribe("s.a", ordered_consumer=True), "unsubscribe"
    ),
    "pull subscription": Removal(lambda js: js.pull_subscribe("s.a", "D"), "unsubscribe"),
    "ordered consumer": Removal(ordered, "close"),
    "ordered messages": Removal(lambda js: js.ordered_consumer("S").messages(), "stop"),
    "watch": Removal(lambda js: js.key_value("B").watch(), "stop"),
    "watch with a callback": Removal(lambda js: js.key_value("B").watch(cb=print), "stop"),
    "replica": Removal(lambda js: js.key_value("B").replica(), "close"),
}


@pytest.mark.parametrize("name", REMOVALS)
def test_an_interrupted_removal_is_finished(js, name):
    """At each moment: the consumer is gone soon, or the call had not begun and can be repeated."""
    js.create_stream(name="S", subjects=["s.*"], storage="memory")
    js.create_key_value(bucket="B", storage="memory")
    stream = "KV_B" if name.startswith(("watch", "replica")) else "S"
    left, moment, goes_on = [], 0, True
    while goes_on:
        moment += 1
        made = REMOVALS[name].make(js)
        assert len(js.consumer_names(stream)) == 1
        end = getattr(made, REMOVALS[name].end)
        goes_on = interrupted(end, moment)
        try:
            wait_until(lambda: not js.consumer_names(stream), 0.5)
        except pytest.fail.Exception:
            with suppress(errors.Error):
                end()
            try:
                wait_until(lambda: not js.consumer_names(stream), 1)
            except pytest.fail.Exception:
                left.append(moment)
                for consumer in js.consumer_names(stream):
                    js.delete_consumer(stream, consumer)
        del made, end
    gc.collect()
    assert left == []
