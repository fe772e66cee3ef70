"""The account info, and requests that JetStream does not serve."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from fixtures.threads import wait_until, within

import jetstream_sync
from jetstream_sync import (
    APICall,
    ConsumerNotFoundError,
    InvalidOptionError,
    JetStreamNotEnabledError,
    JetStreamNotEnabledForAccountError,
    ServerTooOldError,
)
from jetstream_sync.server import NatsServer


def test_the_account_counts_its_streams_and_consumers(js, stream_name):
    """The account info counts streams and consumers."""
    before = js.account_info()
    js.create_stream(name=stream_name, subjects=[f"{stream_name}.*"], storage="memory")
    js.create_consumer(stream_name, durable_name="one")
    js.create_consumer(stream_name, durable_name="two")
    js.publish(f"{stream_name}.a", b"x" * 1000)
    after = js.account_info()
    assert after.streams - before.streams == 1
    assert after.consumers - before.consumers == 2
    assert after.memory - before.memory >= 1000
    assert after.storage == before.storage
    assert after.api.total > before.api.total


def test_without_jetstream_every_call_raises_at_once():
    """On a server without JetStream every call fails at once with an error that says so."""
    with (
        NatsServer(jetstream=False) as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        js = nc.jetstream()
        for call in (
            js.account_info,
            js.stream_names,
            lambda: js.create_stream(name="S"),
            lambda: js.get_stream("S"),
            lambda: js.get_consumer("S", "C"),
        ):
            with within(1), pytest.raises(JetStreamNotEnabledError):
                call()
        assert nc.is_connected


def test_an_account_without_jetstream_gets_a_specific_error():
    """An account without JetStream on a server that has it gets a specific error."""
    config = """
    accounts {
        WITH { jetstream: enabled, users: [ { user: a, password: a } ] }
        WITHOUT { users: [ { user: b, password: b } ] }
    }
    """
    with (
        NatsServer(config=config) as server,
        jetstream_sync.connect(server.url, user="b", password="b") as nc,
        pytest.raises(JetStreamNotEnabledForAccountError),
    ):
        nc.jetstream().account_info()


@pytest.mark.parametrize("timeout", [0.1, timedelta(milliseconds=100)])
def test_the_contexts_timeout_ends_the_wait(nc, timeout):
    """A request that a subscriber receives and does not answer ends with the context's timeout."""
    _kept = nc.subscribe("silent.API.>")
    js = nc.jetstream(prefix="silent.API", timeout=timeout)
    began = time.monotonic()
    with within(1), pytest.raises(TimeoutError):
        js.account_info()
    assert time.monotonic() - began >= 0.1


# --- the hook, and the required level ---------------------------------------------------------------


def test_a_function_gets_each_request_to_the_api(nc, stream_name):
    """It gets subject, sizes, duration and error of requests, and of direct gets."""
    calls: list[APICall] = []
    js = nc.jetstream(api_cb=calls.append)
    stream = js.create_stream(name=stream_name, subjects=[stream_name], allow_direct=True)
    js.publish(stream_name, b"12345")
    stream.get_msg(1)
    with pytest.raises(ConsumerNotFoundError) as caught:
        stream.consumer_info("none")
    create, get, info = calls
    assert create.subject == f"$JS.API.STREAM.CREATE.{stream_name}"
    assert create.error is None
    assert create.request_size > 20
    assert create.response_size > 100
    assert 0 < create.duration < 1
    assert get.subject.startswith(f"$JS.API.DIRECT.GET.{stream_name}")
    assert (get.response_size, get.error) == (5, None)
    assert info.subject == f"$JS.API.CONSUMER.INFO.{stream_name}.none"
    assert info.error is caught.value


def test_a_function_for_requests_that_raises(nats_server, caplog):
    """Its error is logged and reported; the request has its result."""
    errors: list[Exception] = []

    def fail(call: APICall) -> None:
        raise ZeroDivisionError(call.subject)

    with jetstream_sync.connect(nats_server.url, error_cb=errors.append) as nc:
        assert nc.jetstream(api_cb=fail).account_info()
        wait_until(lambda: len(errors) == 1)
    assert isinstance(errors[0], ZeroDivisionError)
    assert "api_cb raised" in caplog.text


@pytest.mark.server(">=2.12")
def test_a_server_below_the_required_level(nc):
    """It refuses the requests that demand a higher level than it has."""
    assert nc.jetstream(required_api_level=1).account_info()
    with pytest.raises(ServerTooOldError, match="API level 9999 needs"):
        nc.jetstream(required_api_level=9999).account_info()


@pytest.mark.parametrize(
    ("option", "value"), [("required_api_level", "1"), ("required_api_level", True), ("api_cb", 1)]
)
def test_an_invalid_option_of_the_api(nc, option, value):
    """It is refused before any request."""
    with pytest.raises(InvalidOptionError, match=option):
        nc.jetstream(**{option: value})
