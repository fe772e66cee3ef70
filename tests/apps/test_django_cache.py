"""Django's cache on a key-value bucket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_sync import JetStream
from jetstream_sync.server import NatsServer

pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]


@pytest.fixture
def cache(django_project: None, nats_server: NatsServer, js: JetStream) -> Iterator[Any]:  # noqa: ARG001
    """The default cache of a project."""
    from django.core.cache import caches
    from django.test import override_settings

    backend = {
        "BACKEND": "jetstream_sync.django.cache.KeyValueCache",
        "LOCATION": "CACHE",
        "OPTIONS": {"max_age": 3600, "storage": "memory"},
    }
    setting = {"servers": nats_server.url}
    with override_settings(JETSTREAM=setting, CACHES={"default": backend}):
        yield caches["default"]
        from jetstream_sync.django import connection

        connection().close()


def test_values_of_any_type(cache, js):
    """Keys may have any characters; the bucket is created with its options."""
    cache.set("a.*>:c", {"list": [1, None], "bytes": b"\0"})
    assert cache.get("a.*>:c") == {"list": [1, None], "bytes": b"\0"}
    assert cache.get("none", "default") == "default"
    cache.set("nothing", None)
    assert cache.get("nothing", "default") is None
    assert ("a.*>:c" in cache, cache.has_key("none")) == (True, False)
    assert cache.get("a.*>:c", version=2) is None
    config = js.key_value("CACHE").status().config
    assert (config.ttl.total_seconds(), config.history) == (3600, 1)


def test_values_that_end(cache):
    """A value that has ended is none, and can be added again."""
    cache.set("short", 1, timeout=1)
    cache.set("long", 1, timeout=None)
    cache.set("never", 1, timeout=0)
    assert (cache.get("short"), cache.get("never")) == (1, None)
    assert not cache.add("short", 2)
    assert cache.touch("long", 1)
    assert not cache.touch("none")
    time.sleep(1.1)
    assert (cache.get("short"), cache.get("long"), cache.has_key("short")) == (None, None, False)
    assert cache.get_many(["short", "long"]) == {}
    assert not cache.touch("short")
    assert not cache.delete("short")
    assert cache.add("short", 3)
    assert cache.get("short") == 3


def test_many_keys(cache):
    """They are read with one request; `clear` removes all."""
    assert cache.set_many({"a": 1, "b": 2}) == []
    assert cache.get_many(["a", "b", "c"]) == {"a": 1, "b": 2}
    assert cache.get_many([]) == {}
    assert cache.delete("a")
    assert cache.get_or_set("c", lambda: 3) == 3
    assert cache.get_many(["a", "b", "c"]) == {"b": 2, "c": 3}
    cache.clear()
    assert cache.get_many(["a", "b", "c"]) == {}
    cache.set("a", 1)
    assert cache.get("a") == 1


def test_numbers_of_several_threads(cache):
    """No increment is lost, and one thread of many adds a key."""
    cache.set("n", 1, timeout=60)
    added = []

    def work() -> None:
        for _ in range(10):
            cache.incr("n", 2)
        added.append(cache.add("once", 1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert cache.get("n") == 81
    assert cache.decr("n") == 80
    assert sorted(added) == [False, False, False, True]
    with pytest.raises(ValueError, match="not found"):
        cache.incr("none")
