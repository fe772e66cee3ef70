"""Addresses of hosts."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from jetstream_sync.net.tcp import numeric, resolve


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.1.2.3"])
def test_a_number_is_an_address(host, monkeypatch):
    """A literal address needs no lookup."""
    really = socket.getaddrinfo

    def only_numbers(*args: Any) -> Any:
        assert args[5] & socket.AI_NUMERICHOST
        return really(*args)

    monkeypatch.setattr(socket, "getaddrinfo", only_numbers)
    (address,) = numeric(host, 4222)
    assert address.where[:2] == (host, 4222)
    assert address.kind == socket.SOCK_STREAM


@pytest.mark.parametrize("host", ["localhost", "nats.example", "1.2.3.4.5"])
def test_a_name_has_to_be_looked_up(host):
    """A name has to be looked up."""
    assert numeric(host, 4222) == []


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_empty_and_too_long_names_are_refused_without_a_lookup(host):
    """Empty and too long parts are refused without a lookup."""
    with pytest.raises(UnicodeError):
        numeric(host, 4222)


def test_all_addresses_of_a_name_in_random_order(monkeypatch):
    """Clients spread over the servers of one name, unless the order is to be kept."""
    numbers = [f"10.0.0.{number}" for number in range(20)]

    def found(host: str, port: int, *_: Any) -> Any:
        assert host == "nats.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in numbers]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    kept = [item.where for item in resolve("nats.example", 1, randomize=False)]
    assert kept == [(number, 1) for number in numbers]
    orders = {
        tuple(item.where for item in resolve("nats.example", 1, randomize=True)) for _ in range(5)
    }
    assert len(orders) > 1
    assert all(sorted(order) == sorted(kept) for order in orders)
