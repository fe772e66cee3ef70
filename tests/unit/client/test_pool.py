"""The server pool and its order."""

from __future__ import annotations

import random

import pytest

from jetstream_sync.address import ServerAddress, parse_servers
from jetstream_sync.client.connector import ServerPool

A, B, C = parse_servers("a,b,c")


def pool(servers=(A, B, C), *, randomize=False, max_failures=60):
    return ServerPool(servers, randomize=randomize, max_failures=max_failures)


def hosts(servers):
    return [address.host for address in servers.addresses()]


def test_shuffling_spreads_clients():
    """With shuffling, every server comes first for some clients, and none is lost."""
    random.seed(1)
    made = [hosts(pool(randomize=True)) for _ in range(100)]
    assert {order[0] for order in made} == {"a", "b", "c"}
    assert {tuple(sorted(order)) for order in made} == {("a", "b", "c")}


def test_a_limit_of_minus_one_keeps_a_server():
    """-1: a server is tried without limit."""
    servers = pool((A,), max_failures=-1)
    for _ in range(1000):
        servers.failed(A)
    assert hosts(servers) == ["a"]


def test_zero_attempts_give_a_lost_server_up():
    """`max_reconnect_attempts=0`: it is not tried again, and the others once."""
    servers = pool(max_failures=0)
    servers.lost(A)
    assert hosts(servers) == ["b", "c"]
    servers.failed(B)
    assert hosts(servers) == ["c"]


def test_the_first_round_does_not_count():
    """A server that failed in the first round is tried later, as often as the others."""
    servers = pool((A, B), max_failures=1)
    servers.skipped(A)
    assert hosts(servers) == ["b", "a"]


def test_a_repeated_refusal_is_recognised():
    """The same text from the same server, without a success in between, is a repeated refusal."""
    servers = pool()
    assert not servers.refused(A, "no")
    assert not servers.refused(B, "no")
    servers.failed(A)
    assert servers.refused(A, "no")
    assert not servers.refused(A, "expired")
    assert not servers.refused(A, "no")
    servers.succeeded(A)
    assert not servers.refused(A, "no")
    assert not servers.refused(ServerAddress("unknown", 1), "no")


def test_discovered_servers_are_added():
    """Discovered servers follow the known ones, with the login and TLS of the current one."""
    current = ServerAddress("a", 4222, scheme="tls", user="u", password="p")
    servers = pool((current,))
    new = servers.discovered(("d:1", "[::1]:2", "a:4222"), current)
    assert new == [
        ServerAddress("d", 1, scheme="tls", user="u", password="p"),
        ServerAddress("::1", 2, scheme="tls", tls_name="a", user="u", password="p"),
    ]
    assert servers.addresses() == [current, *new]


def test_an_ip_is_verified_with_the_name_of_its_announcer():
    """Also where that one was itself discovered; a host name keeps its own name."""
    seed = ServerAddress("seed", 4222, scheme="tls")
    servers = pool((seed,))
    [first] = servers.discovered(("10.0.0.1:1",), seed)
    assert (first.host, first.tls_name) == ("10.0.0.1", "seed")
    second, named = servers.discovered(("10.0.0.1:1", "10.0.0.2:1", "d:1"), first)
    assert (second.host, second.tls_name) == ("10.0.0.2", "seed")
    assert (named.host, named.tls_name) == ("d", "")
    alone = ServerAddress("10.0.0.3", 4222)
    assert pool((alone,)).discovered(("10.0.0.1:1",), alone)[0].tls_name == ""


def test_a_return_is_not_a_discovery():
    """A server that left and returned, or was given up, is used again and not reported again."""
    servers = pool((A, B), max_failures=1)
    assert servers.discovered(("d:1",), A) != []
    assert servers.discovered(("e:1",), A) != []
    assert hosts(servers) == ["a", "b", "e"]
    servers.failed(B)
    assert servers.discovered(("e:1", "d:1", "b:4222"), A) == []
    assert hosts(servers) == ["a", "e", "d", "b"]


def test_servers_that_left_the_cluster_are_forgotten():
    """Configured servers and the current one stay."""
    servers = pool((A,))
    d, e = servers.discovered(("d:1", "e:2"), A)
    assert servers.discovered(("f:3",), d)[0].host == "f"
    assert hosts(servers) == ["a", "d", "f"]
    assert e not in servers.addresses()
    servers.discovered(("f:3",), A)
    assert hosts(servers) == ["a", "f"]


@pytest.mark.parametrize("junk", ["", " ", "a b", "h:x", "h:99999", "http://h", "[::1", "a,b c"])
def test_an_invalid_address_in_an_info_is_ignored(junk):
    """An invalid address in an INFO does not affect the others."""
    servers = pool((A,))
    assert [item.host for item in servers.discovered((junk, "d:1"), A)] == ["d"]
    assert servers.discovered((junk,), A) == []
    assert hosts(servers) == ["a", "d"]


def test_discovered_servers_are_shuffled():
    """Clients spread over the discovered servers of a cluster."""
    random.seed(1)
    urls = tuple(f"s{i}:1" for i in range(5))
    firsts = set()
    for _ in range(100):
        servers = pool((A,), randomize=True)
        servers.discovered(urls, A)
        firsts.add(hosts(servers)[1])
    assert firsts == {f"s{i}" for i in range(5)}
    assert [item.host for item in pool((A,)).discovered(urls, A)] == [f"s{i}" for i in range(5)]


def test_the_server_in_use_keeps_its_place():
    """Discovered servers are shuffled with those tried later, behind the current one."""
    random.seed(1)
    orders = set()
    for _ in range(50):
        servers = pool()
        servers._randomize = True
        servers.discovered(("d:1",), A)
        orders.add(tuple(hosts(servers)))
    assert {order[0] for order in orders} == {"a"}
    assert {order[1] for order in orders} == {"b", "c", "d"}


def test_the_pool_can_be_replaced():
    """Only the new servers are tried; a known one keeps its failures."""
    servers = pool()
    servers.failed(B)
    d, b = parse_servers("d,nats://b:4222")
    servers.replace_all((d, b, d))
    assert hosts(servers) == ["d", "b"]
    assert [server.reconnects for server in servers.servers()] == [0, 1]
    assert servers.has(B)
    assert not servers.has(A)
    servers.failed(A)
    servers.lost(A)
    assert hosts(servers) == ["d", "b"]


def test_servers_are_discovered_after_the_pool_was_replaced():
    """Discovered servers join the new pool; servers of the old pool are not reported as discovered."""
    servers = pool((A,))
    servers.replace_all((B,))
    assert hosts(servers) == ["b"]
    new = servers.discovered(("a:4222", "c:4222"), B)
    assert [address.host for address in new] == ["c"]
    assert {server.uri: server.discovered for server in servers.servers()} == {
        "nats://b:4222": False,
        "nats://a:4222": True,
        "nats://c:4222": True,
    }


def test_discovered_servers_are_bounded():
    """A server that announces very many others does not grow memory."""
    servers = pool((A,))
    many = tuple(f"10.{number >> 8}.{number & 255}.1:4222" for number in range(5000))
    assert len(servers.discovered(many, A)) == 1000
    assert len(servers.servers()) == 1001
    for around in range(40):
        told = tuple(f"11.{around}.{number >> 8}.{number & 255}:4222" for number in range(1000))
        servers.discovered(told, A)
    assert len(servers.servers()) == 1001
    assert len(servers._seen) <= 11_000
