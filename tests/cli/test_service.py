"""``jsm service``, ``jsm reply``, ``jsm counter``, ``jsm stream schedules`` and ``jsm pub --atomic``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from fixtures.jsm import spawn_jsm
from fixtures.threads import wait_until

from jetstream_sync import Connection, NoRespondersError, connect
from jetstream_sync.server import NatsServer
from jetstream_sync.services import Service


@pytest.fixture
def service(nc: Connection) -> Iterator[Service]:
    """A service with two endpoints and three requests, one of them with an error."""

    def refuse(_: object) -> None:
        raise ValueError

    with nc.add_service("orders", "1.2.0", "Order management", {"team": "a"}) as running:
        running.add_endpoint("total", lambda request: request.respond(b"1"))
        running.add_group("v1", queue_group="").add_endpoint("bad", refuse)
        nc.request("total", timeout=5.0)
        nc.request("total", timeout=5.0)
        nc.request("v1.bad", timeout=5.0)
        yield running


def test_services_are_listed_and_described(jsm, service):
    """The list has each instance; the description has the endpoints."""
    shown = jsm("service", "ls").ok().out
    assert "orders  1.2.0" in shown
    assert service.id in shown
    (listed,) = jsm("service", "ls", "orders", "-j").ok().json
    assert (listed["id"], listed["type"]) == (service.id, "io.nats.micro.v1.info_response")
    shown = jsm("service", "info", "orders").ok().out
    for text in (service.id, "Order management", "team: a", "v1.bad", "Queue Group: q"):
        assert text in shown
    (found,) = jsm("micro", "info", "orders", service.id, "-j").ok().json
    assert [item["subject"] for item in found["endpoints"]] == ["total", "v1.bad"]


def test_statistics_and_ping(jsm, service):
    """Requests and errors are counted; a ping shows each instance with its reply time."""
    shown = jsm("service", "stats").ok().out.splitlines()
    assert shown[2].split()[2:5] == ["total", "2", "0"]
    assert shown[3].split()[2:5] == ["bad", "1", "1"]
    (found,) = jsm("service", "stats", "orders", "-j").ok().json
    assert [item["num_requests"] for item in found["endpoints"]] == [2, 1]
    assert jsm("service", "ping").ok().out.startswith(f"orders 1.2.0 {service.id} in ")
    (pinged,) = jsm("service", "ping", "orders", "-j").ok().lines
    assert pinged["rtt_ms"] > 0


def test_a_reply_that_cannot_be_read_hides_no_service(jsm, nc, service):
    """The other services are shown, and the command fails and says why."""
    with nc.subscribe("$SRV.>", cb=lambda msg: msg.respond(b"{")):
        nc.flush()
        for command in ("ls", "info orders", "stats", "ping"):
            found = jsm("service", *command.split())
            assert found.status == 1, found
            assert service.id in found.out
            assert "1 of the replies cannot be read: invalid JSON" in found.err


@pytest.mark.parametrize("command", [("info", "absent"), ("stats", "absent"), ("ping", "absent")])
def test_an_unknown_service(jsm, command):
    """The exit status is 3; an empty list is no error."""
    assert jsm("service", *command).status == 3
    assert jsm("service", "ls").ok().out == "No services\n"


@pytest.mark.server(">=2.12")
def test_counters(jsm, js):
    """Values of any size are added, shown, listed and reset."""
    js.create_stream(name="HITS", subjects=["hits.>"], allow_msg_counter=True, allow_direct=True)
    assert jsm("counter", "add", "HITS", "hits.eu").ok().out == "1\n"
    big = str(10**30)
    assert jsm("counter", "add", "HITS", "hits.us", big, "-j").ok().json["value"] == big
    assert jsm("counter", "add", "HITS", "hits.eu", "-3").ok().out == "-2\n"
    assert jsm("counter", "get", "HITS", "hits.eu").ok().out == "-2\n"
    shown = jsm("counter", "ls", "HITS").ok().out
    assert big in shown
    (found,) = jsm("counter", "ls", "HITS", "hits.eu", "-j").ok().json
    assert (found["value"], found["increment"]) == ("-2", "-3")
    jsm("counter", "reset", "HITS", "hits.eu").ok()
    assert jsm("counter", "get", "HITS", "hits.eu", "-j").ok().json["value"] == "0"
    for command in ("get", "reset"):
        missing = jsm("counter", command, "HITS", "hits.absent")
        text = "jsm: stream HITS has no counter 'hits.absent'\n"
        assert (missing.status, missing.err) == (3, text)


@pytest.mark.server(">=2.12")
def test_schedules(jsm, js):
    """A schedule is listed with its rule and target."""
    js.create_stream(name="JOBS", subjects=["jobs.>"], allow_msg_schedules=True)
    assert jsm("stream", "schedules", "JOBS").ok().out == "No schedules\n"
    at = datetime.now(timezone.utc) + timedelta(hours=1)
    js.schedule("jobs.plan", target="jobs.due", at=at)
    shown = jsm("stream", "schedules", "JOBS").ok().out
    assert "jobs.plan" in shown
    (found,) = jsm("stream", "schedules", "JOBS", "-j").ok().json
    assert (found["subject"], found["target"]) == ("jobs.plan", "jobs.due")
    assert found["rule"].startswith("@at ")


@pytest.mark.server(">=2.12")
def test_a_message_is_scheduled_once(jsm, js):
    """A duration counts from now; the id makes a second attempt a duplicate."""
    js.create_stream(name="JOBS", subjects=["jobs.>"], allow_msg_schedules=True, allow_msg_ttl=True)
    words = ("pub", "jobs.plan", "run", "--schedule-dest", "jobs.due", "--schedule-at")
    before = datetime.now(timezone.utc)
    jsm(*words, "1h", "--msg-id", "1", "-H", "A:b").ok()
    assert jsm(*words, "2h", "--msg-id", "1", "-j").ok().json["duplicate"]
    (found,) = js.get_stream("JOBS").schedules()
    at = datetime.fromisoformat(found.rule.removeprefix("@at ")[:19]).replace(tzinfo=timezone.utc)
    assert timedelta(minutes=59) < at - before < timedelta(minutes=61)
    assert (found.target, found.payload) == ("jobs.due", b"run")
    assert found.headers["A"] == "b"
    jsm(*words, "2020-01-01T00:00:00Z").ok()
    due = wait_until(lambda: jsm("stream", "get", "JOBS", "--last-for", "jobs.due", "-j").out)
    assert '"text": "run"' in due


@pytest.mark.server(">=2.14")
def test_a_message_is_scheduled_again_and_again(jsm, js):
    """By an interval or a cron expression."""
    js.create_stream(name="JOBS", subjects=["jobs.>"], allow_msg_schedules=True)
    words = ("pub", "jobs.a", "run", "--schedule-dest", "jobs.due")
    jsm(*words, "--schedule-every", "90s").ok()
    cron = ("--schedule-cron", "0 30 7 * * *", "--schedule-time-zone", "Europe/Berlin")
    jsm("pub", "jobs.b", "", *words[3:], *cron).ok()
    every, daily = js.get_stream("JOBS").schedules()
    assert every.rule == "@every 90s"
    assert (daily.rule, daily.time_zone) == ("0 30 7 * * *", "Europe/Berlin")


def test_an_invalid_interval_is_refused(jsm):
    """The option is named as it was typed, and nothing is sent."""
    words = ("pub", "jobs.plan", "run")
    refused = jsm(*words, "--schedule-dest", "b", "--schedule-every", "0.5s")
    assert refused.status == 2
    assert "--schedule-every '0.5s'" in refused.err


@pytest.mark.server(">=2.12")
def test_an_atomic_batch_is_published(jsm, js):
    """All lines are stored, or none."""
    stream = js.create_stream(name="A", subjects=["a.>"], allow_atomic=True)
    lines = b"".join(b"line %d\n" % number for number in range(30))
    jsm("pub", "a.b", "--send-on", "newline", "--atomic", stdin=lines).ok()
    assert stream.info().state.messages == 30
    expected = ("-H", "Nats-Expected-Last-Subject-Sequence:7")
    refused = jsm("pub", "a.b", "x", "--count", "2", "--atomic", *expected)
    assert refused.status == 1
    assert jsm("pub", "a.b", "x", "--count", "1001", "--atomic").status == 1
    assert stream.info().state.messages == 30


def test_requests_are_answered(jsm, nc):
    """With the text, or with the request itself; the command ends after its number of requests."""
    for options, data in ((("ok",), b"ok"), (("--echo",), b"ping")):
        process = jsm.spawn("reply", "echo", *options, "--count", "1")

        def respond() -> bytes:
            try:
                return nc.request("echo", b"ping", timeout=5.0).data
            except NoRespondersError:
                return b""

        assert wait_until(respond, limit=20.0) == data
        out, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "Received [echo] : 'ping'" in str(out)


def test_requests_are_answered_after_a_restart_of_the_server():
    """The command continues as ``jsm sub`` does, with the subscription of before."""
    with NatsServer() as server:
        process = spawn_jsm("-s", server.url, "reply", "echo", "ok", "--count", "2")
        for is_last in (False, True):
            with connect(server.url) as nc:

                def respond() -> bytes:
                    try:
                        return nc.request("echo", b"ping", timeout=5.0).data
                    except NoRespondersError:
                        return b""

                assert wait_until(respond, limit=20.0) == b"ok"
            if not is_last:
                server.restart()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert b"reconnecting" in err
