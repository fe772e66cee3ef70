"""Django's cache on a key-value bucket."""

from __future__ import annotations

import logging
import math
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from fixtures.server import paused
from fixtures.threads import SCALE, wait_until

from jetstream_sync import (
    ConnectionLostError,
    Error,
    JetStream,
    KeyValue,
    ServerFullError,
    TimeoutError,
    connect,
)
from jetstream_sync.net.clock import Deadline
from jetstream_sync.server import NatsServer

pytestmark = [pytest.mark.apps, pytest.mark.timeout(110), pytest.mark.usefixtures("django_project")]


@pytest.fixture
def cache(nats_server: NatsServer, js: JetStream) -> Iterator[Any]:  # noqa: ARG001
    """The default cache of a project."""
    with cache_of(nats_server, max_age=3600) as cache:
        yield cache


@contextmanager
def cache_of(server: NatsServer, **options: Any) -> Iterator[Any]:
    """Yield the default cache of a project with these options."""
    from django.core.cache import caches
    from django.test import override_settings

    from jetstream_sync.django import connection
    from jetstream_sync.django.cache import KeyValueCache

    backend = {
        "BACKEND": "jetstream_sync.django.cache.KeyValueCache",
        "LOCATION": "CACHE",
        "OPTIONS": {"storage": "memory", **options},
    }
    setting = {"servers": server.url, "connection": {"reconnect_time_wait": 0.05}}
    with override_settings(JETSTREAM=setting, CACHES={"default": backend}):
        yield caches["default"]
        KeyValueCache._pause = Deadline(0)
        with suppress(ConnectionError):  # the test has stopped the server
            connection().close()
    KeyValueCache._pause = Deadline(0)


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
    cache.set("never", 1, timeout=float("-inf"))
    # The server would delete them now: their ends do not fit into its clock.
    endless = {10**10, sys.maxsize, 1e300, math.inf}
    for timeout in endless:
        cache.set(str(timeout), 1, timeout=timeout)
    assert (cache.get("short"), cache.get("never")) == (1, None)
    assert not cache.add("short", 2)
    assert cache.touch("long", 1)
    assert not cache.touch("none")
    time.sleep(1.1)
    assert (cache.get("short"), cache.get("long"), cache.has_key("short")) == (None, None, False)
    assert cache.get_many(map(str, endless)) == dict.fromkeys(map(str, endless), 1)
    assert cache.get_many(["short", "long"]) == {}
    assert not cache.touch("short")
    assert not cache.delete("short")
    assert cache.add("short", 3)
    assert cache.get("short") == 3


def test_delete_of_what_is_no_value(cache, js):
    """A value that has ended is deleted but was no value, and neither is the marker of another client's deletion."""
    cache.set("marked", 1)
    bucket = js.key_value("CACHE")
    (key,) = bucket.keys()
    bucket.delete(key)
    cache.set("ended", 1, timeout=0)
    assert js.get_stream("KV_CACHE").info().state.messages == 2
    assert (cache.delete("ended"), cache.delete("marked")) == (False, False)
    assert bucket.keys() == []
    cache.set("ended", 1)
    cache.delete_many(["ended"])
    assert not cache.delete("ended")


def test_add_over_the_marker_of_a_deletion(cache, js):
    """Another client of the bucket may delete a value, which leaves a marker."""
    cache.set("k", 1)
    bucket = js.key_value("CACHE")
    (key,) = bucket.keys()
    bucket.delete(key)
    assert cache.add("k", 2)
    assert not cache.add("k", 3)
    assert cache.get("k") == 2


def test_add_over_a_value_that_the_server_removes_meanwhile(cache, js, monkeypatch):
    """A key without a value is added, also if the ended one vanishes between two requests."""
    cache.set("k", 1, timeout=0)
    get = KeyValue.get

    def get_and_remove(self: KeyValue, *args: Any, **options: Any) -> Any:
        entry = get(self, *args, **options)
        js.get_stream("KV_CACHE").purge()
        return entry

    monkeypatch.setattr(KeyValue, "get", get_and_remove)
    assert cache.add("k", 2)
    monkeypatch.undo()
    assert cache.get("k") == 2


def test_a_value_that_cannot_be_pickled_leaves_nothing_behind(cache):
    """None of the others is stored."""
    with pytest.raises((AttributeError, pickle.PicklingError)):
        cache.set_many({"a": 1, "b": lambda: 1})
    assert cache.get_many(["a", "b"]) == {}


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

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert cache.get("n") == 321
    assert cache.decr("n") == 320
    assert sorted(added) == [False] * 15 + [True]
    with pytest.raises(ValueError, match="not found"):
        cache.incr("none")


def test_every_text_is_a_key(cache, js):
    """Keys that Django makes, long keys and keys with any character are kept apart."""
    keys = ["a..b", "views.decorators.cache.cache_page..GET.1.2.en-us", "", " ", ".", "*", ">"]
    keys += ["x" * 5000, "x" * 5001, "é" * 300, "\ud800", "a/b", "A", "a", "a\n"]
    cache.key_func = lambda key, _prefix, _version: key
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of keys that memcached could not have
        for number, key in enumerate(keys):
            cache.set(key, number)
        assert [cache.get(key) for key in keys] == list(range(len(keys)))
        assert cache.get_many(keys) == dict(zip(keys, range(len(keys)), strict=True))
        assert cache.incr("a..b", 5) == 5
        assert cache.delete("a..b")
    assert js.get_stream("KV_CACHE").info().state.messages == len(keys) - 1


@pytest.mark.usefixtures("cache")
def test_pages_are_cached():
    """`cache_page` and the cache middleware store a page, and return it again."""
    from django.http import HttpResponse
    from django.middleware.cache import CacheMiddleware
    from django.test import RequestFactory, override_settings
    from django.views.decorators.cache import cache_page

    calls = []

    def view(_request: Any) -> Any:
        calls.append(1)
        return HttpResponse(b"page %d" % len(calls))

    request = RequestFactory().get("/path..with/dots?a=1&b=*")
    cached = cache_page(60)(view)
    with override_settings(ALLOWED_HOSTS=["testserver"]):
        assert [cached(request).content for _ in range(3)] == [b"page 1"] * 3
        middleware = CacheMiddleware(view)
        other = RequestFactory().get("/other")
        assert [middleware(other).content for _ in range(2)] == [b"page 2"] * 2
    assert len(calls) == 2


@pytest.mark.usefixtures("cache")
def test_sessions_and_fragments_of_templates():
    """Sessions are kept in the cache, and parts of templates."""
    from django.contrib.sessions.backends.cache import SessionStore
    from django.template import Context, engines

    session = SessionStore()
    session["cart"] = [1, 2]
    session.save()
    again = SessionStore(session.session_key)
    assert again["cart"] == [1, 2]
    again.cycle_key()
    assert not SessionStore().exists(session.session_key)
    assert SessionStore(again.session_key)["cart"] == [1, 2]
    again.flush()
    assert not SessionStore().exists(again.session_key)
    text = "{% load cache %}{% cache 60 'a..b' user %}{{ value }}{% endcache %}"
    template = engines["django"].from_string(text).template
    shown = [template.render(Context({"user": "*", "value": value})) for value in (1, 2)]
    assert shown == ["1", "1"]


@pytest.mark.server(">=2.11")
def test_values_that_end_are_removed_by_the_server(cache, js):
    """A bucket whose values have all ended is empty, also after `touch`, `incr` and `set_many`."""
    cache.set("a", 1, timeout=1)
    cache.set_many({"b": 1, "c": 1}, timeout=1)
    cache.add("d", 1, timeout=1)
    cache.incr("a")
    cache.set("e", 1, timeout=None)
    cache.touch("e", 1)
    cache.set("kept", 1, timeout=None)
    stream = js.get_stream("KV_CACHE")
    assert stream.info().state.messages == 6
    wait_until(lambda: stream.info().state.messages == 1, 10)
    assert cache.get("kept") == 1
    assert not cache.delete("a")


def test_a_full_bucket_evicts_the_oldest_values(nats_server, js):
    """New values are stored when `max_bytes` or `MAX_ENTRIES` is reached."""
    with cache_of(nats_server, max_bytes=100_000) as cache:
        for number in range(50):
            cache.set(f"k{number}", "x" * 10_000, timeout=None)
        kept = cache.get_many([f"k{number}" for number in range(50)])
        assert 5 <= len(kept) < 15
        assert "k49" in kept
        assert "k0" not in kept
    js.delete_key_value("CACHE")
    with cache_of(nats_server, MAX_ENTRIES=3) as cache:
        for number in range(9):
            cache.set(str(number), number)
        cache.set("8", 88)
        assert cache.get_many(list("0123456789")) == {"6": 6, "7": 7, "8": 88}


@pytest.mark.parametrize("how", ["raise", "miss"])
def test_a_value_that_is_too_large_is_a_miss(nats_server, js, how):
    """It is not stored, and neither is an older value of its key; others are, and the bucket is not emptied."""
    small, large = "x" * 10_000, "x" * 1_200_000
    for options in ({}, {"max_value_size": 50_000}, {"max_bytes": 200_000}):
        with cache_of(nats_server, errors=how, **options) as cache:
            cache.set_many({"other": small, "k": small, "l": small})
            cache.set("k", large)
            assert cache.set_many({"l": large, "m": small}) == ["l"]
            assert not cache.add("n", large)
            assert cache.get_many(["k", "l", "m", "n", "other"]) == {"m": small, "other": small}
        js.delete_key_value("CACHE")
    # A bucket of another program has a limit, but no size of its values.
    js.create_stream(
        name="KV_CACHE", subjects=["$KV.CACHE.>"], max_bytes=50_000, max_msgs_per_subject=1
    )
    with cache_of(nats_server, errors=how) as cache:
        cache.set("other", small)
        cache.set("k", "x" * 60_000)
        assert cache.get("other") == small


def test_many_keys_are_deleted_at_once(cache, js, nats_server):
    """`delete_many` sends its deletions together, deletes nothing else, and its markers end."""
    values = {f"k{number}": number for number in range(300)}
    cache.set_many({**values, "other": 1})
    cache.delete_many([*values, "none"])
    assert cache.get_many([*values, "other"]) == {"other": 1}
    assert cache.add("k1", 2)
    wait_until(lambda: js.get_stream("KV_CACHE").info().state.messages == 2, 10)
    cache.delete_many([])
    js.delete_key_value("CACHE")
    cache.delete_many(["k1"])
    assert cache.get("k1") is None
    cache.set("k1", 1)
    cache.delete_many(["k1"])  # in a new bucket
    assert cache.get("k1") is None
    with cache_of(nats_server, MAX_ENTRIES=3, storage="memory") as full:
        full.set_many({"a": 1, "b": 2, "c": 3})
        full.delete_many([*(f"none{number}" for number in range(50)), "b"])
        assert full.get_many(["a", "b", "c"]) == {"a": 1, "c": 3}


@pytest.mark.parametrize("how", ["raise", "miss"])
def test_a_full_server_keeps_no_deleted_values(how):
    """`delete` and `delete_many` delete values for which the server has no room for a marker."""
    full = NatsServer(config="jetstream { max_memory_store: 1MB }")
    with full as server, cache_of(server, errors=how, storage="memory") as cache:
        cache.set_many({f"k{number}": "x" * 1000 for number in range(10)})
        with connect(server.url) as nc:
            js = nc.jetstream()
            js.create_stream(name="FILL", subjects=["fill"], storage="memory")
            with pytest.raises(ServerFullError):
                for _ in range(2000):
                    js.publish("fill", b"x" * 1000)
        cache.delete_many(["k1", "k2"])
        assert cache.delete("k3")
        assert sorted(cache.get_many([f"k{number}" for number in range(5)])) == ["k0", "k4"]


def test_the_checks_find_wrong_servers_and_names():
    """A server that is no URL and a name that is no bucket are errors of ``manage.py check``."""
    from django.test import override_settings

    from jetstream_sync.django.apps import check_jetstream

    name = "jetstream_sync.django.cache.KeyValueCache"
    for setting, backend in (
        ({"servers": "nats://h:99999"}, {"LOCATION": "CACHE"}),
        ({"servers": ["http://h"]}, {"LOCATION": "CACHE"}),
        ({}, {"LOCATION": "a.b"}),
        ({}, {"LOCATION": ""}),
        ({}, {"LOCATION": "CACHE", "OPTIONS": {"CULL_FREQUENCY": 3}}),
    ):
        with override_settings(JETSTREAM=setting, CACHES={"default": {"BACKEND": name, **backend}}):
            assert {message.id for message in check_jetstream()} & {
                "jetstream.E001",
                "jetstream.E003",
            }


def test_wrong_options_are_refused_before_the_first_call(nats_server):
    """Unknown and impossible options raise when the cache is made, and are found by the checks."""
    from django.core.cache import caches
    from django.core.exceptions import ImproperlyConfigured

    from jetstream_sync.django.apps import check_jetstream

    for options in (
        {"CULL_FREQUENCY": 2},
        {"extra": {"discard": "new"}},
        {"history": 2},
        {"max_byte": 1},
        {"max_age": -1},
        {"MAX_ENTRIES": "many"},
        {"errors": "ignore"},
        {"timeout": 0},
        {"storage": "tape"},
    ):
        with cache_of_name(nats_server, options):
            name = next(iter(options)).replace("max_age", "ttl").replace("MAX_ENTRIES", "max_msgs")
            with pytest.raises(ImproperlyConfigured, match=name):
                caches.create_connection("default")
            assert "jetstream.E003" in {message.id for message in check_jetstream()}


def test_the_checks_find_the_options_of_a_subclass(nats_server, monkeypatch):
    """A cache of a project that is derived from `KeyValueCache` is checked as well."""
    from django.test import override_settings

    from jetstream_sync.django import cache as module
    from jetstream_sync.django.apps import check_jetstream

    class OwnCache(module.KeyValueCache):
        pass

    monkeypatch.setattr(module, "OwnCache", OwnCache, raising=False)
    name = "jetstream_sync.django.cache.OwnCache"
    backend = {"BACKEND": name, "LOCATION": "CACHE", "OPTIONS": {"max_byte": 1}}
    with override_settings(JETSTREAM={"servers": nats_server.url}, CACHES={"default": backend}):
        assert [message.id for message in check_jetstream()] == ["jetstream.E003"]


@contextmanager
def cache_of_name(server: NatsServer, options: dict[str, Any]) -> Iterator[None]:
    """Set the options of the default cache, without making it."""
    from django.test import override_settings

    name = "jetstream_sync.django.cache.KeyValueCache"
    backend = {"BACKEND": name, "LOCATION": "CACHE", "OPTIONS": options}
    with override_settings(JETSTREAM={"servers": server.url}, CACHES={"default": backend}):
        yield


def test_a_lost_bucket_is_created_again(cache, js):
    """Reads of a deleted bucket find nothing; each kind of write creates it."""
    writes: list[Callable[[], object]] = [
        lambda: cache.set("a", 1),
        lambda: cache.set_many({"a": 1, "b": 2}),
        lambda: cache.add("a", 1),
        lambda: cache.get_or_set("a", 1),
    ]
    for write in writes:
        write()
        assert cache.get("a") == 1
        js.delete_key_value("CACHE")
        assert cache.get("a") is None
        assert cache.get_many(["a"]) == {}
        assert not cache.has_key("a")
        assert not cache.delete("a")
        assert not cache.touch("a")
        cache.clear()
        with pytest.raises(ValueError, match="not found"):
            cache.incr("a")
        write()
        assert cache.get("a") == 1
        js.delete_key_value("CACHE")
        write()  # without a read before
        assert cache.get("a") == 1
    js.delete_key_value("CACHE")
    js.create_key_value(bucket="CACHE", storage="memory")  # without TTLs of messages
    cache.set("a", 2, timeout=60)
    assert cache.get("a") == 2
    assert cache.delete("a")


def test_a_restarted_server_has_an_empty_cache():
    """A bucket in memory is gone with its server; the cache goes on with the next one."""
    with NatsServer(name="restarted") as server, cache_of(server) as cache:
        cache.set("a", 1)
        server.restart()
        wait_until(lambda: _outcome(lambda: cache.get("a")) is None)
        cache.set("a", 2)
        assert cache.get("a") == 2


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Error as error:
        return error


def test_calls_fail_at_once_while_the_server_is_down(fresh_server):
    """All of them together take less than one timeout, also if there was no connection before."""
    with cache_of(fresh_server) as cache:
        cache.set("a", 1)
        fresh_server.stop()
        wait_until(lambda: isinstance(_outcome(lambda: cache.get("a")), ConnectionLostError))
        begin = time.monotonic()
        for call in _calls(cache):
            with pytest.raises(ConnectionError):
                call()
        assert time.monotonic() - begin < 2 * SCALE
        from jetstream_sync.django import connection

        connection().close()
        begin = time.monotonic()
        for call in _calls(cache):
            with pytest.raises(ConnectionError):
                call()
        assert time.monotonic() - begin < 4 * SCALE


def _calls(cache: Any) -> list[Callable[[], object]]:
    return [
        lambda: cache.get("a"),
        lambda: cache.set("a", 1),
        lambda: cache.add("a", 1),
        lambda: cache.incr("a"),
        lambda: cache.touch("a"),
        lambda: cache.delete("a"),
        lambda: cache.has_key("a"),
        lambda: cache.get_many(["a"]),
        lambda: cache.set_many({"a": 1, "b": 2}),
        lambda: cache.delete_many(["a", "b"]),
        cache.clear,
        lambda: cache.get_or_set("a", 1),
    ]


def test_a_silent_server_takes_the_timeout_of_the_cache(fresh_server):
    """No call waits longer than its timeout, and a write that was not acknowledged raises."""
    with cache_of(fresh_server, timeout=0.2) as cache:
        cache.set("a", 1)
        with paused(fresh_server):
            for call in _calls(cache):
                begin = time.monotonic()
                with pytest.raises(TimeoutError):
                    call()
                assert time.monotonic() - begin < 0.8 * SCALE


def test_errors_can_be_misses(fresh_server, caplog):
    """With ``errors="miss"`` reads find nothing and writes do nothing; each one is logged and counted."""
    from prometheus_client import REGISTRY

    def count(operation: str) -> float:
        labels = {"cache": "CACHE", "operation": operation}
        return REGISTRY.get_sample_value("jetstream_cache_errors_total", labels) or 0

    with cache_of(fresh_server, errors="miss", timeout=0.2) as cache:
        cache.set("a", 1)
        with caplog.at_level(logging.WARNING, "jetstream_sync.django.cache"), paused(fresh_server):
            before = count("get")
            assert cache.get("a", "default") == "default"
            assert count("get") == before + 1
            assert "get is a miss" in caplog.text
            assert cache.set("a", 2) is None
            assert not cache.add("b", 2)
            assert not cache.touch("a")
            assert not cache.delete("a")
            assert not cache.has_key("a")
            assert cache.get_many(["a"]) == {}
            assert cache.set_many({"a": 3, "b": 4}) == ["a", "b"]
            assert cache.get_or_set("a", 5) == 5
            cache.clear()
            with pytest.raises(ValueError, match="not found"):
                cache.incr("a")
            assert len(caplog.records) >= 10
        fresh_server.stop()
        assert cache.get("a") is None


def test_a_silent_server_costs_a_page_one_timeout(fresh_server):
    """With ``errors="miss"``, the calls of a second after one that timed out are misses at once."""
    with cache_of(fresh_server, errors="miss", timeout=0.5) as cache:
        cache.set("a", 1)
        with paused(fresh_server):
            begin = time.monotonic()
            assert [cache.get("a") for _ in range(10)] == [None] * 10
            assert time.monotonic() - begin < 0.9 * SCALE
        wait_until(lambda: cache.get("a") == 1)


def test_foreign_values_are_misses(cache, js):
    """A value of another program that is too short for a time is no value."""
    from jetstream_sync.django.cache import KeyValueCache

    cache.set("a", 1)
    assert isinstance(cache, KeyValueCache)
    name = cache._key("a", None)
    js.key_value("CACHE").put(name, b"short")
    assert cache.get("a", "default") == "default"
    assert cache.get_many(["a"]) == {}
    assert not cache.touch("a")
    assert cache.add("a", 2)
    assert cache.get("a") == 2


def test_the_clock_is_that_of_django(cache, monkeypatch):
    """Tests that move `time.time` see values end."""
    cache.set("a", 1, timeout=100)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 101)
    assert cache.get("a") is None


def test_the_timeout_of_the_setting(fresh_server):
    """``JETSTREAM["timeout"]`` bounds requests of `jetstream()` and of caches."""
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings

    from jetstream_sync.django import connection, jetstream
    from jetstream_sync.django.config import Config

    with override_settings(JETSTREAM={"servers": fresh_server.url, "timeout": 0.2}):
        js = jetstream()
        js.account_info()
        with paused(fresh_server):
            begin = time.monotonic()
            with pytest.raises(TimeoutError):
                js.account_info()
            assert time.monotonic() - begin < 0.8 * SCALE
        connection().close()
    with (
        override_settings(JETSTREAM={"timeout": "long"}),
        pytest.raises(ImproperlyConfigured, match="timeout"),
    ):
        Config.load()
