"""JetStream in a domain, in the domain of another server, and under an imported prefix."""

from __future__ import annotations

import contextlib
import pickle
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fixtures.internals import api_of
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import Connection, JetStream, Stream, errors
from jetstream_sync.server import NatsServer

# JetStream belongs to one account; another one imports it as `acme.JS.API`, with its subjects.
IMPORTED = """
accounts {
    OWNER {
        jetstream: enabled
        users: [ { user: owner, password: owner } ]
        exports: [
            { service: "$JS.API.>", response_type: stream, accounts: [APP] }
            { service: "$JS.ACK.>", accounts: [APP] }
            { service: "orders.>", accounts: [APP] }
        ]
    }
    APP {
        users: [ { user: app, password: app } ]
        imports: [
            { service: { account: OWNER, subject: "$JS.API.>" }, to: "acme.JS.API.>" }
            { service: { account: OWNER, subject: "$JS.ACK.>" } }
            { service: { account: OWNER, subject: "orders.>" } }
        ]
    }
}
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[NatsServer]:
    """A server whose JetStream domain is `hub`."""
    with NatsServer(name="hub", config="jetstream { domain: hub }") as server:
        yield server


@pytest.fixture(scope="module")
def owner() -> Iterator[NatsServer]:
    """A server with an account that imports the JetStream of another one."""
    with NatsServer(name="owner", config=IMPORTED) as server:
        yield server


@pytest.fixture(params=["usual", "domain", "prefix of domain", "import"])
def js(request: pytest.FixtureRequest, hub: NatsServer, owner: NatsServer) -> Iterator[JetStream]:
    """JetStream contexts, one for each way to reach the API."""
    if request.param == "import":
        with jetstream_sync.connect(owner.url, user="app", password="app") as nc:
            yield nc.jetstream(prefix="acme.JS.API")
        return
    with jetstream_sync.connect(hub.url) as nc:
        if request.param == "domain":
            yield nc.jetstream(domain="hub")
        elif request.param == "prefix of domain":
            yield nc.jetstream(prefix="$JS.hub.API")
        else:
            yield nc.jetstream()


def test_everything_works_there(js):
    """Every call of the API uses the prefix of the context."""
    for name in js.stream_names():
        js.delete_stream(name)
    before = js.account_info()
    stream = js.create_stream(name="ORDERS", subjects=["orders.>"], allow_direct=True)
    assert js.account_info().streams - before.streams == 1
    assert js.publish("orders.a", b"1").stream == "ORDERS"
    js.publish("orders.b", b"2")
    assert js.stream_names() == ["ORDERS"]
    assert [info.config.name for info in js.list_streams("orders.*")] == ["ORDERS"]
    assert js.find_stream_name_by_subject("orders.x") == "ORDERS"
    assert js.get_stream("ORDERS").info(subjects_filter=">").state.subjects == {
        "orders.a": 1,
        "orders.b": 1,
    }
    assert js.update_stream(stream.cached_info.config).name == "ORDERS"
    assert js.create_or_update_stream(stream.cached_info.config).name == "ORDERS"
    read_messages(stream)
    manage_consumers(js)
    stream.delete_msg(1)
    assert stream.purge() == 1
    js.delete_stream("ORDERS")
    with pytest.raises(errors.StreamNotFoundError):
        js.get_stream("ORDERS")


def read_messages(stream: Stream) -> None:
    assert stream.get_msg(1).data == b"1"
    assert stream.get_msg(last_by_subject="orders.b").data == b"2"
    assert stream.get_msg(next_by_subject="orders.*").data == b"1"
    with pytest.raises(errors.MessageNotFoundError):
        stream.get_msg(3)
    info = stream.info()
    by_leader = Stream(
        api_of(stream), replace(info, config=replace(info.config, allow_direct=False))
    )
    assert by_leader.get_msg(1) == stream.get_msg(1)


def manage_consumers(js: JetStream) -> None:
    consumer = js.create_consumer("ORDERS", durable_name="C", filter_subject="orders.a")
    assert consumer.info().num_pending == 1
    js.update_consumer("ORDERS", consumer.cached_info.config)
    js.create_or_update_consumer("ORDERS", durable_name="D")
    assert js.consumer_names("ORDERS") == ["C", "D"]
    assert [info.name for info in js.list_consumers("ORDERS")] == ["C", "D"]
    assert js.get_consumer("ORDERS", "D").name == "D"
    messages = consumer.fetch(1, timeout=2)
    assert [message.data for message in messages] == [b"1"]
    messages[0].ack_sync(timeout=2)
    assert consumer.info().num_ack_pending == 0
    js.delete_consumer("ORDERS", "D")
    assert js.consumer_names("ORDERS") == ["C"]


def test_acks_and_infos_name_the_domain(hub):
    """The metadata of messages and infos name the domain."""
    with jetstream_sync.connect(hub.url) as nc:
        js = nc.jetstream(domain="hub")
        stream = js.create_stream(name="NAMED", subjects=["named"], storage="memory")
        assert js.publish("named", b"x").domain == "hub"
        assert stream.info().domain == "hub"
        assert js.account_info().domain == "hub"
        js.delete_stream("NAMED")


@pytest.mark.parametrize("where", [{"domain": "spoke"}, {"prefix": "nothing.here"}])
def test_a_domain_without_responders_is_an_error_at_once(hub, where):
    """A domain or prefix without responders is an error at once, not after a timeout."""
    with jetstream_sync.connect(hub.url) as nc:
        js = nc.jetstream(**where)
        with between(0, 1):
            with pytest.raises(errors.JetStreamNotEnabledError):
                js.account_info()
            with pytest.raises(errors.JetStreamNotEnabledError):
                js.create_stream(name="S")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def leaf_of_hub() -> Iterator[tuple[Connection, NatsServer]]:
    """A connection to a leaf node, with its own domain, and its hub."""
    port = free_port()
    hub_config = f"""
    jetstream {{ domain: hub }}
    leafnodes {{ listen: "127.0.0.1:{port}" }}
    """
    leaf_config = f"""
    jetstream {{ domain: leaf }}
    leafnodes {{ reconnect: 1, remotes: [ {{ url: "nats-leaf://127.0.0.1:{port}" }} ] }}
    """
    with (
        NatsServer(name="hub", config=hub_config) as hub,
        NatsServer(name="leaf", config=leaf_config) as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        wait_until(lambda: responds(nc.jetstream(domain="hub", timeout=1)), limit=15)
        yield nc, hub


@pytest.fixture
def leaf(leaf_of_hub: tuple[Connection, NatsServer]) -> Connection:
    """A connection to a leaf node."""
    return leaf_of_hub[0]


def responds(js: JetStream) -> bool:
    with contextlib.suppress(errors.Error):
        js.account_info()
        return True
    return False


def test_a_leaf_node_reaches_both_domains(leaf):
    """Streams of one name in two domains are independent, each managed through its domain."""
    hub, own, usual = (
        leaf.jetstream(domain="hub"),
        leaf.jetstream(domain="leaf"),
        leaf.jetstream(),
    )
    assert (hub.account_info().domain, own.account_info().domain) == ("hub", "leaf")
    there = hub.create_stream(name="S", subjects=["there"], storage="memory", allow_direct=True)
    here = own.create_stream(name="S", subjects=["here"], storage="memory", allow_direct=True)
    assert (there.info().domain, here.info().domain) == ("hub", "leaf")
    assert hub.publish("there", b"1").domain == "hub"
    assert own.publish("here", b"2").domain == "leaf"
    assert (there.get_msg(1).data, here.get_msg(1).data) == (b"1", b"2")
    assert usual.get_stream("S").cached_info.config.subjects == ["here"]
    consumer = there.create_consumer(durable_name="C", filter_subject="there")
    assert hub.consumer_names("S") == ["C"]
    assert own.consumer_names("S") == []
    assert [message.data for message in consumer.fetch(1, timeout=2)] == [b"1"]
    own.delete_stream("S")
    assert hub.stream_names() == ["S"]


def test_a_leaf_node_that_is_cut_off(leaf_of_hub):
    """A silent hub may be unreachable, one that is gone does not answer, and a missing stream does not exist."""
    leaf, hub = leaf_of_hub
    far = leaf.jetstream(domain="hub", timeout=1)
    store = far.create_key_value(bucket="B")
    store.put("a", b"1")
    far.create_stream(name="S", subjects=["s"])
    calls = [
        lambda: far.get_stream("S"),
        lambda: far.get_consumer("S", "C"),
        lambda: far.key_value("B"),
        lambda: far.get_stream("NOPE"),
    ]
    with pytest.raises(errors.StreamNotFoundError, match="'NOPE'"):
        calls[-1]()
    hub.pause()
    try:
        for call in calls:
            with pytest.raises(
                errors.RequestTimeoutError, match="domain 'hub' may be unreach"
            ) as cut:
                call()
            assert str(pickle.loads(pickle.dumps(cut.value))) == str(cut.value)
    finally:
        hub.resume()
    hub.kill()
    wait_until(lambda: not responds(far))
    for call in calls:
        text = "domain 'hub' does not answer: the leaf node"
        with pytest.raises(errors.DomainUnreachableError, match=text) as gone:
            call()
        assert (gone.value.domain, gone.value.err_code) == ("hub", 10076)
    writes = [
        lambda: far.publish("s", b""),
        lambda: store.put("a", b"2"),
        lambda: far.publish_async("s", b"", timeout=10).result(10),
    ]
    for write in writes:
        with pytest.raises(errors.NoStreamResponseError, match=text):
            write()
    with pytest.raises(errors.JetStreamError, match=text):
        store.get("a")


@pytest.mark.server(">=2.14")
def test_batches_to_a_leaf_node_that_is_cut_off(leaf_of_hub):
    """The error of a batch has the reason as well."""
    leaf, hub = leaf_of_hub
    far = leaf.jetstream(domain="hub", timeout=1)
    far.create_stream(name="S", subjects=["s"], allow_atomic=True, allow_batched=True)
    far.publish_batch([("s", b"")])  # the level of the API is known from then on
    hub.kill()
    wait_until(lambda: not responds(far))
    for write in (
        lambda: far.publish_batch([("s", b"")], timeout=10),
        lambda: far.fast_publish(timeout=10).add("s"),
    ):
        text = "domain 'hub' does not answer: the leaf node"
        with pytest.raises(errors.NoStreamResponseError, match=text):
            write()
