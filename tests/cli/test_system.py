"""``jsm server ls``, ``info``, ``ping`` and ``report``, and ``jsm account report``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fixtures.jsm import Result, run_jsm
from fixtures.server import wait_for_peers
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.server import NatsCluster, NatsServer

ACCOUNTS = """
accounts {
    SYS: { users: [{user: sys, password: sys}] }
    APP: { jetstream: enabled, users: [{user: app, password: app}] }
}
system_account: SYS
no_auth_user: app
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[NatsCluster]:
    """Three servers with a system account and a stream of the account APP."""
    with NatsCluster(config=ACCOUNTS) as cluster:
        wait_for_peers(cluster)
        yield cluster


@pytest.fixture(scope="module")
def app(servers: NatsCluster) -> Iterator[Connection]:
    """A connection of the account APP to the first server, with two messages in a stream."""
    with jetstream_sync.connect(servers.urls[0], name="shop") as nc:
        js = nc.jetstream()
        js.create_stream(name="ORDERS", subjects=["orders"], num_replicas=3).create_consumer(
            durable_name="C"
        )
        for _ in range(2):
            js.publish("orders", b"order")
        yield nc


@pytest.fixture
def system(servers: NatsCluster, app: Connection) -> Callable[..., Result]:
    """Run ``jsm`` as a user of the system account."""
    del app
    login = ("--user", "sys", "--password", "sys")
    return lambda *args: run_jsm("-s", servers.urls[0], *login, *args)


NAMES = ["cluster-1", "cluster-2", "cluster-3"]


def test_ls_and_ping_wait_for_all_servers(system):
    """Each server has a line; too few replies are an error."""
    shown = system("server", "ls", "--sort", "name").ok().out.splitlines()
    assert [line.split()[0] for line in shown[2:]] == NAMES
    found = system("server", "ls", "3", "--sort", "name", "-R", "-j").ok().json
    assert [item["server"]["name"] for item in found] == NAMES[::-1]
    assert all(item["rtt_ns"] > 0 for item in found)
    times = [item["rtt_ns"] for item in system("server", "ping", "-j").ok().json]
    assert times == sorted(times)
    missing = system("server", "ping", "4")
    assert (missing.status, missing.out.count("cluster-")) == (4, 3)
    assert "3 of 4 servers answered" in missing.err


def test_info_of_a_server(system):
    """A server is named by its name or its id; without one it is the connected server."""
    varz = system("server", "info", "-j").ok().json
    assert varz["server_name"] == "cluster-1"
    assert system("server", "info", varz["server_id"], "-j").ok().json["server_name"] == "cluster-1"
    shown = system("server", "info", "cluster-2").ok().out
    for text in ("Server: cluster-2", "Cluster:", "Maximum Payload: 1.0 MiB", "JetStream:"):
        assert text in shown
    assert system("server", "info", "absent", "--timeout", "1s").status == 3


def test_report_of_jetstream(system):
    """Each server has its numbers; one is the meta leader."""
    shown = system("server", "report", "jetstream").ok().out
    assert shown.count("*") == 1
    words = ("server", "report", "js", "-j")

    def is_replicated() -> bool:
        found = system(*words).ok().json
        numbers = ("streams", "messages", "consumers")
        got = {item["server"]["name"]: [item["data"][name] for name in numbers] for item in found}
        return got == {name: [1, 2, 1] for name in NAMES}

    wait_until(is_replicated, 10)
    assert len(system(*words, "--host", "cluster-3").ok().json) == 1


def test_report_of_connections_and_accounts(system):
    """Connections of all accounts are listed, and the traffic of each account is summed up."""
    words = ("server", "report", "connections", "--account", "APP")
    (found,) = system(*words, "-j").ok().json
    assert (found["name"], found["server"], found["account"]) == ("shop", "cluster-1", "APP")
    assert "shop" in system(*words, "--sort", "uptime", "--top", "1").ok().out
    assert system(*words, "--username", "absent", "-j").ok().json == []
    closed = system("server", "report", "conn", "--state", "closed", "-j").ok().json
    assert all(item["reason"] for item in closed)
    by_name = {item["account"]: item for item in system("server", "report", "accounts", "-j").json}
    assert by_name["APP"]["conns"] == 1
    assert by_name["APP"]["in_bytes"] >= 10
    (only,) = system("server", "report", "accounts", "APP", "-j").ok().json
    assert only["account"] == "APP"
    assert "Out Bytes" in system("server", "report", "accounts", "--sort", "in-bytes").ok().out


@pytest.mark.parametrize("report", ["accounts", "connections", "jetstream", "health"])
@pytest.mark.parametrize("selection", [("--cluster", "absent"), ("--host", "absent")])
def test_a_report_of_no_server_is_not_empty(system, report, selection):
    """Servers that do not exist have no results: that is an error, not a report without rows."""
    found = system("server", "report", report, *selection, "--timeout", "2s")
    assert found.status == 4
    assert "no server answered" in found.err


def test_report_of_health(system):
    """A stream that does not exist makes each server unhealthy."""
    shown = system("server", "report", "health").ok().out
    assert shown.count("ok (200)") == 3
    words = ("--account", "APP", "--stream", "ABSENT")
    found = system("server", "report", "health", *words, "-j")
    assert "ok" not in {item["data"]["status"] for item in found.json}
    assert found.status == 1
    assert "3 servers not healthy" in found.err
    assert "ok (200)" not in system("server", "report", "health", *words).out


def test_report_of_the_own_account(servers, app):
    """A user of any account sees the connections and the traffic of this account."""
    del app
    words = ("-s", servers.urls[0], "account", "report")
    found = run_jsm(*words, "connections", "-j").ok().json
    assert "shop" in {item.get("name") for item in found}
    (shop,) = run_jsm(*words, "connections", "--subject", "_INBOX.>", "--top", "1", "-j").ok().json
    assert shop["server"] == "cluster-1"
    found = run_jsm(*words, "statistics", "-j").ok().json
    first = next(item for item in found if item["server"]["name"] == "cluster-1")
    assert first["in_bytes"] >= 10
    assert "cluster-1" in run_jsm(*words, "stats").ok().out


@pytest.mark.parametrize("command", ["ls", "ping", "info", "report health", "report jetstream"])
def test_other_users_are_told_to_log_in(servers, command):
    """The servers do not answer them."""
    refused = run_jsm("-s", servers.urls[0], "server", *command.split())
    assert refused.status == 6
    assert "log in as a user of the system account" in refused.err


def test_a_single_server_without_jetstream():
    """What a server does not have is left out."""
    config = "accounts { SYS: { users: [{user: sys, password: sys}] } }\nsystem_account: SYS"
    with NatsServer(jetstream=False, config=config) as server:
        login = ("-s", server.url, "--user", "sys", "--password", "sys")
        for command in ("ls", "info", "ping", "report jetstream", "report health"):
            assert run_jsm(*login, "server", *command.split()).ok().out


def test_the_meta_group(system):
    """The check names the leader; a step-down elects another one, and an unknown peer is refused."""
    checked = system("server", "check", "meta", "--expect", "3").ok().out
    assert checked.startswith("OK Meta OK:meta leader cluster-")
    assert system("server", "check", "meta", "--expect", "5").status == 2
    found = system("server", "cluster", "step-down", "-j", "--timeout", "20s").ok().json
    assert found["leader"] in NAMES
    assert found["leader"] != found["previous_leader"]
    wait_until(lambda: system("server", "check", "meta").status == 0, 20)
    assert system("server", "cluster", "peer-remove", "cluster-9", "--force").status == 3
    assert system("server", "cluster", "peer-remove", "cluster-1").status == 2


def test_reports_of_links_and_any_request(system):
    """Routes have a row for each connection; a request returns the replies as they are."""
    rows = system("server", "report", "routes", "-j").ok().json
    assert {row["server"] for row in rows} == set(NAMES)
    assert system("server", "report", "gateways").ok().out == "No results\n"
    assert system("server", "report", "leafnodes", "-j").ok().json == []
    (response,) = system("server", "request", "varz", "--host", "cluster-2").ok().json
    assert response["data"]["server_name"] == "cluster-2"
    found = system(
        "server", "request", "jsz", "--filter", "streams=true", "--filter", "account=APP"
    )
    details = [
        stream["name"]
        for item in found.ok().json
        for account in item["data"].get("account_details") or ()
        for stream in account.get("stream_detail") or ()
    ]
    assert "ORDERS" in details
