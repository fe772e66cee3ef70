"""``jsm trace`` and ``jsm sub --match-replies``."""

from __future__ import annotations

import pytest
from fixtures.jsm import run_jsm
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync.server import NatsCluster


@pytest.mark.server(">=2.11")
def test_a_message_is_traced_without_delivery(jsm, nc, js):
    """Subscriptions and streams are shown, and get the message only with --deliver."""
    js.create_stream(name="S", subjects=["s.*"], storage="memory")
    with nc.subscribe("s.1", "workers") as subscription:
        nc.flush()
        shown = jsm("trace", "s.1", "body", "-H", "A:b").ok().out
        assert '--J JetStream action:"stored" stream:"S" subject:"s.1"' in shown
        assert 'subject:"s.1" queue:"workers"' in shown
        assert "Delivered to Client: 1, JetStream: 1" in shown
        (event,) = jsm("trace", "s.1", "-j").ok().json
        assert [step["type"] for step in event["events"]] == ["in", "js", "eg"]
        assert js.get_stream("S").cached_info.state.messages == 0
        assert jsm("trace", "s.1", "body", "--deliver").ok().out.startswith("Client")
        assert subscription.next_msg(5).data == b"body"
        assert js.get_stream("S").cached_info.state.messages == 1
    assert "--X No active interest" in jsm("trace", "nowhere").ok().out


@pytest.mark.server(">=2.11")
def test_the_servers_of_a_cluster_are_traced():
    """The part of the second server is indented below the first one."""
    with (
        NatsCluster() as servers,
        jetstream_sync.connect(servers.servers[1].url) as nc,
    ):
        nc.subscribe("far")

        def is_traced() -> bool:
            # Until the second server knows the first one, and if its part of a trace is late.
            lines = run_jsm("-s", servers.servers[0].url, "trace", "far").ok().out.splitlines()
            starts = (
                '--> Router "cluster-2" rid:',
                '    Router "cluster-1" rid:',
                "    --C Client cid:",
            )
            return [
                line.startswith(start) for line, start in zip(lines[1:4], starts, strict=False)
            ] == [True] * 3

        wait_until(is_traced, 10)


@pytest.mark.server("<2.11")
def test_an_old_server_is_not_traced(jsm, nc):
    """It would deliver the message, so that none is sent."""
    with nc.subscribe("s") as subscription:
        nc.flush()
        refused = jsm("trace", "s")
        assert refused.status == 2
        assert "2.11" in refused.err
        nc.publish("s", b"after")
        assert subscription.next_msg(5).data == b"after"


def test_requests_are_shown_with_their_replies(jsm, nc):
    """A request is shown when its reply arrives; a plain message at once."""
    child = jsm.spawn("sub", "service.*", "--match-replies", "--count", "3")
    assert child.stderr is not None
    assert b"Listening" in child.stderr.readline()

    def respond(msg: jetstream_sync.Msg) -> None:
        msg.respond(msg.data.upper())

    with nc.subscribe("service.echo", cb=respond):
        assert nc.request("service.echo", b"one", timeout=5).data == b"ONE"
        nc.publish("service.plain", b"two")
        assert nc.request("service.echo", b"three", timeout=5).data == b"THREE"
    out, _ = child.communicate(timeout=30)
    lines = out.decode().splitlines()
    assert child.returncode == 0
    assert len(lines) == 5
    matched = [line for line in lines if "Matched reply on [_INBOX." in line]
    assert [line.rpartition(": ")[2] for line in matched] == ["'ONE'", "'THREE'"]


def test_replies_in_json(jsm, nc):
    """The document of a request has that of its reply."""
    child = jsm.spawn("sub", "service", "--match-replies", "--count", "1", "-j")

    def is_done() -> bool:
        nc.request("service", b"", timeout=5)
        return child.poll() is not None

    with nc.subscribe("service", cb=lambda msg: msg.respond(b"ok")):
        wait_until(is_done, 20)
    out, _ = child.communicate()
    assert b'"response":{"subject":"_INBOX.' in out
    assert b'"text":"ok"' in out
