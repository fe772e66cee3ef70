"""The servers that a connection may use, and their order."""

from __future__ import annotations

import random

import pytest

from jetstream_sync.address import ServerAddress, parse_servers
from jetstream_sync.client.pool import ServerPool

A, B, C = parse_servers("a,b,c")


def pool(servers=(A, B, C), *, randomize=False, max_failures=60):
    return ServerPool(servers, randomize=randomize, max_failures=max_failures)


def hosts(servers):
    return [address.host for address in servers.addresses()]


def test_the_order_is_the_users():
    """Without shuffling, servers are tried in the order in which they were given."""
    servers = pool()
    assert hosts(servers) == ["a", "b", "c"]
    assert len(servers) == 3


def test_shuffling_spreads_clients():
    """With shuffling, every server comes first for some clients, and none is lost."""
    random.seed(1)
    made = [hosts(pool(randomize=True)) for _ in range(100)]
    assert {order[0] for order in made} == {"a", "b", "c"}
    assert {tuple(sorted(order)) for order in made} == {("a", "b", "c")}


def test_a_server_that_failed_goes_to_the_end():
    """The others are tried before it is tried again."""
    servers = pool()
    servers.failed(A)
    assert hosts(servers) == ["b", "c", "a"]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_server_is_given_up_after_so_many_failures(most):
    """`max_reconnect_attempts` failures in a row, and it is forgotten."""
    servers = pool((A,), max_failures=most)
    for _ in range(most - 1):
        servers.failed(A)
        assert hosts(servers) == ["a"]
    servers.failed(A)
    assert hosts(servers) == []
    servers.failed(A)
    assert len(servers) == 0


def test_minus_one_is_never_given_up():
    """-1: a server is tried for ever."""
    servers = pool((A,), max_failures=-1)
    for _ in range(1000):
        servers.failed(A)
    assert hosts(servers) == ["a"]


def test_success_ends_a_row_of_failures():
    """Only failures in a row count, and only of that server."""
    servers = pool((A, B), max_failures=2)
    servers.failed(A)
    servers.succeeded(A)
    servers.failed(A)
    assert hosts(servers) == ["b", "a"]
    servers.succeeded(B)
    servers.failed(A)
    assert hosts(servers) == ["b"]


def test_discovered_servers_are_added():
    """What a cluster tells of comes after what is known, with the login and TLS of the current."""
    current = ServerAddress("a", 4222, scheme="tls", user="u", password="p")
    servers = pool((current,))
    new = servers.discovered(("d:1", "[::1]:2", "a:4222"), current)
    assert new == [
        ServerAddress("d", 1, scheme="tls", user="u", password="p"),
        ServerAddress("::1", 2, scheme="tls", user="u", password="p"),
    ]
    assert servers.addresses() == [current, *new]


def test_what_is_known_is_not_new():
    """A server that is told of again keeps its place."""
    servers = pool((A, B))
    assert servers.discovered(("b:4222", "d:1"), A) != []
    assert servers.discovered(("d:1", "b:4222"), A) == []
    assert hosts(servers) == ["a", "b", "d"]


def test_servers_that_left_the_cluster_are_forgotten():
    """What the user named stays, and so does the current server."""
    servers = pool((A,))
    d, e = servers.discovered(("d:1", "e:2"), A)
    assert servers.discovered(("f:3",), d)[0].host == "f"
    assert hosts(servers) == ["a", "d", "f"]
    assert e not in servers.addresses()
    servers.discovered(("f:3",), A)
    assert hosts(servers) == ["a", "f"]


def test_an_empty_list_changes_nothing():
    """A server that is alone sends none."""
    servers = pool((A,))
    servers.discovered(("d:1",), A)
    assert servers.discovered((), A) == []
    assert hosts(servers) == ["a", "d"]


@pytest.mark.parametrize("junk", ["", " ", "a b", "h:x", "h:99999", "http://h", "[::1", "a,b c"])
def test_what_is_no_address_is_left_out(junk):
    """A strange address in an INFO does not disturb the others."""
    servers = pool((A,))
    assert [each.host for each in servers.discovered((junk, "d:1"), A)] == ["d"]
    assert servers.discovered((junk,), A) == []
    assert hosts(servers) == ["a", "d"]


def test_discovered_servers_are_shuffled():
    """Clients spread over what a cluster told of."""
    random.seed(1)
    urls = tuple(f"s{i}:1" for i in range(5))
    firsts = {pool((A,), randomize=True).discovered(urls, A)[0].host for _ in range(100)}
    assert firsts == {f"s{i}" for i in range(5)}
    assert [each.host for each in pool((A,)).discovered(urls, A)] == [f"s{i}" for i in range(5)]
