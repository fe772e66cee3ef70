"""The calls of a connection's callbacks."""

from __future__ import annotations

import functools
import threading
from queue import SimpleQueue
from unittest.mock import Mock

import pytest

from jetstream_sync.address import parse_servers
from jetstream_sync.client.events import Events
from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.options import ConnectionEvent, ConnectionOptions, EventKind

NOTHING = object()
BROKE = ConnectionEvent(EventKind.DISCONNECTED, "nats://a:1", ConnectionResetError())
OVER = ConnectionEvent(EventKind.CLOSED)


def told(make):
    """Return the argument that a callback made of a queue's put receives."""
    got: SimpleQueue = SimpleQueue()
    events = Events("test", options(disconnected_cb=make(got)))
    events.tell(BROKE)
    events.closed(OVER)
    return got.get(timeout=5)


def options(**callbacks):
    return ConnectionOptions(servers=parse_servers("a"), **callbacks)


class Odd:
    """A callable whose signature Python cannot read, like that of some functions in C."""

    __signature__ = "none"

    def __init__(self, got):
        self._got = got

    def __call__(self):
        self._got.put(NOTHING)


class Listener:
    def __init__(self, got):
        self._got = got

    def plain(self):
        self._got.put(NOTHING)

    def __call__(self, event):
        self._got.put(event)


def default_of_its_own(got):
    def callback(event=NOTHING):
        got.put(event)

    return callback


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda got: lambda: got.put(NOTHING), NOTHING),
        (lambda got: got.put, BROKE),
        (lambda got: lambda event, /: got.put(event), BROKE),
        (default_of_its_own, NOTHING),
        (lambda got: lambda *args: got.put(args), ()),
        (lambda got: lambda event, _=1: got.put(event), BROKE),
        (lambda got: Listener(got).plain, NOTHING),
        (Listener, BROKE),
        (lambda got: functools.partial(got.put, NOTHING), NOTHING),
        (Odd, NOTHING),
        (lambda got: Mock(side_effect=lambda *args: got.put(args)), ()),
    ],
)
def test_a_callback_with_a_parameter_gets_the_event(make, expected):
    """A callback with a required parameter gets the event; one without is called without."""
    got = told(make)
    assert got == expected
    assert got is expected or expected == ()


@pytest.mark.parametrize(
    "option",
    ["disconnected_cb", "reconnected_cb", "closed_cb", "discovered_server_cb", "lame_duck_mode_cb"],
)
@pytest.mark.parametrize("callback", [lambda _, __: None, lambda *, _: None])
def test_a_callback_with_two_parameters_is_refused(option, callback):
    """A callback with more required parameters is refused by connect(), by option."""
    with pytest.raises(InvalidOptionError) as caught:
        Events("test", options(**{option: callback}))
    assert caught.value.option == option


def test_each_kind_has_its_callback():
    """Each kind of event has its callback; the close is reported last, and once."""
    got: SimpleQueue = SimpleQueue()
    names = ("disconnected", "reconnected", "closed", "discovered_server", "lame_duck_mode")
    callbacks = {
        f"{name}_cb": lambda event, name=name: got.put((name, event.kind)) for name in names
    }
    events = Events("test", options(**callbacks, error_cb=lambda error: got.put(("error", error))))
    mistake = ValueError()
    events.error(mistake)
    for kind in EventKind:
        if kind is not EventKind.CLOSED:
            events.tell(ConnectionEvent(kind))
    events.closed(OVER)
    events.closed(OVER)
    events.error(mistake)
    events._thread.join(5)
    assert [got.get() for _ in range(got.qsize())] == [
        ("error", mistake),
        ("disconnected", EventKind.DISCONNECTED),
        ("reconnected", EventKind.RECONNECTED),
        ("discovered_server", EventKind.DISCOVERED_SERVERS),
        ("lame_duck_mode", EventKind.LAME_DUCK),
        ("closed", EventKind.CLOSED),
    ]


def test_a_slow_callback_does_not_grow_memory(caplog):
    """Events above a limit are dropped and counted, and the close is reported."""
    go_on = threading.Event()
    heard = []

    def slow(error):
        heard.append(error)
        assert go_on.wait(10)

    over = threading.Event()
    events = Events("test", options(error_cb=slow, closed_cb=over.set))
    for _ in range(3000):
        events.error(ValueError("again"))
    assert 1900 <= events.dropped <= 2000
    assert len([record for record in caplog.records if "dropped" in record.message]) == 1
    events.closed(OVER)
    go_on.set()
    assert over.wait(10)
    assert len(heard) == 3000 - events.dropped
