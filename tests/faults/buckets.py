"""A bucket: a lone thread that makes request after request changes its keys; others watch and list them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from fixtures.rawnats import RawClient
from fixtures.threads import SCALE

from jetstream_sync import Connection, Error, KeyNotFoundError, KeyValue, TimeoutError

from .reading import LOOK_S, check_alive
from .recorder import Recorder

__all__ = ["BUCKET", "KeyLister", "KeyWatcher", "KeyWriter", "judge_bucket"]

BUCKET: Final = "FAULTS"

#: Timeout of the calls, in seconds.
_TIMEOUT_S: Final = 2.0
#: Longest duration of a listing, which may read for as long as messages arrive, in seconds.
_LISTING_S: Final = 30.0
#: Each n-th new key may be deleted; the others stay.
_DELETABLE: Final = 5
#: Maximum number of keys, so that a listing stays short.
_MAX_KEYS: Final = 2000
#: Age of a write in seconds from which a listing must contain it: a replica may lag.
_SETTLED_S: Final = 2.0 * SCALE


class KeyWriter:
    """
    A lone thread on its connection: it reads its replies itself, without the reader thread.

    It adds new keys, replaces and deletes keys, reads them, and sends requests.
    """

    def __init__(self, nc: Connection, recorder: Recorder, rng: random.Random) -> None:
        self._nc = nc
        self._kv = nc.jetstream(timeout=_TIMEOUT_S).key_value(BUCKET)
        self._is_cluster = bool(nc.server_info.cluster)
        self._recorder = recorder
        self._rng = rng
        #: By key: the possible values; None: deleted. A write that failed may have been stored.
        self.values: dict[str, set[bytes | None]] = {}
        #: Keys that are never deleted, in the order of their first write, and when that was confirmed.
        self.lasting: dict[str, float] = {}
        self._number = 0

    def run(self, stop: threading.Event) -> None:
        calls: list[Callable[[], object]] = [self._add, self._replace, self._get, self._request]
        while not stop.wait(0.003):
            if self._rng.randrange(50) == 0:
                self._delete()
            else:
                self._rng.choice(calls)()

    def _call(self, what: str, call: Callable[[], object], *lines: str) -> bool:
        """Return whether the call succeeded."""
        try:
            with self._recorder.within(what, _TIMEOUT_S, "alone", *lines):
                call()
        except Error as error:
            check_alive(error)
            return False
        return True

    def _write(self, key: str, value: bytes | None) -> bool:
        self.values.setdefault(key, {None}).add(value)
        if value is None:
            done = self._call("kv.delete", lambda: self._kv.delete(key))
        else:
            done = self._call("kv.put", lambda: self._kv.put(key, value))
        if done:
            self.values[key] = {value}
        return done

    def _value(self) -> bytes:
        self._number += 1
        return b"%d" % self._number

    def _add(self) -> None:
        if len(self.values) >= _MAX_KEYS:
            return
        number = len(self.values)
        key = f"deletable.{number}" if number % _DELETABLE == 0 else f"lasting.{number}"
        if self._write(key, self._value()) and key.startswith("lasting"):
            self.lasting[key] = time.monotonic()

    def _some_key(self) -> str | None:
        return self._rng.choice(list(self.values)) if self.values else None

    def _replace(self) -> None:
        key = self._some_key()
        if key is not None and self._write(key, self._value()) and key.startswith("lasting"):
            self.lasting.setdefault(key, time.monotonic())

    def _delete(self) -> None:
        key = self._some_key()
        if key is not None and key.startswith("deletable"):
            self._write(key, None)

    def _get(self) -> None:
        key = self._some_key()
        if key is None:
            return

        def get() -> None:
            try:
                # Without replicas every read is consistent, whatever a mirror answers.
                consistent = self._is_cluster or self._rng.random() < 0.5
                value: bytes | None = self._kv.get(key, consistent=consistent).value
            except KeyNotFoundError:
                value = None
            if value not in self.values[key]:
                self._recorder.complain(f"{key} is {value!r} instead of {self.values[key]}")

        self._call("kv.get", get)

    def _request(self) -> None:
        self._call(
            "lone request", lambda: self._nc.request("echo", b"?", timeout=_TIMEOUT_S), "publishing"
        )


class KeyWatcher:
    """A mapping that follows a watch of all keys."""

    def __init__(self, nc: Connection, recorder: Recorder) -> None:
        self._kv = nc.jetstream(timeout=_TIMEOUT_S).key_value(BUCKET)
        self._recorder = recorder
        self.values: dict[str, bytes] = {}

    def run(self, stop: threading.Event) -> None:
        with self._kv.watch() as watch:
            while not stop.is_set():
                try:
                    with self._recorder.within("watch.next", LOOK_S, "watching", awaited=False):
                        entry = watch.next(LOOK_S)
                except TimeoutError:
                    continue
                if entry.has_value:
                    self.values[entry.key] = entry.value
                else:
                    self.values.pop(entry.key, None)


class KeyLister:
    """Lists the keys again and again, while some are replaced and others are new."""

    def __init__(
        self, nc: Connection, recorder: Recorder, rng: random.Random, writer: KeyWriter
    ) -> None:
        self._kv: KeyValue = nc.jetstream(timeout=_TIMEOUT_S).key_value(BUCKET)
        self._recorder = recorder
        self._rng = rng
        self._writer = writer
        self.listed = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(0.1):
            since = time.monotonic() - _SETTLED_S
            expected = {key for key, at in self._writer.lasting.copy().items() if at < since}
            many = self._rng.random() < 0.3
            try:
                # The timeout is that of each message, and a consumer that is lost is created again.
                with self._recorder.within("kv.keys", _LISTING_S, "watching"):
                    found = self._kv.get_many(list(expected)) if many else self._kv.keys()
            except Error as error:
                check_alive(error)
                continue
            self.listed += 1
            missing = expected.difference(found)
            if missing:
                what = "get_many" if many else "keys"
                self._recorder.complain(
                    f"{what} left out {len(missing)} of {len(expected)} keys: {sorted(missing)[:5]}"
                )


def judge_bucket(
    raw: RawClient, recorder: Recorder, writer: KeyWriter, watcher: KeyWatcher
) -> None:
    """Compare the bucket with what was written, and the watcher with the bucket."""
    stored: dict[str, bytes] = {}
    for message in raw.stored(f"KV_{BUCKET}"):
        key = message.subject.removeprefix(f"$KV.{BUCKET}.")
        stored.pop(key, None)
        if b"KV-Operation" not in message.headers:
            stored[key] = message.data
    for key, possible in writer.values.items():
        if stored.get(key) not in possible:
            recorder.complain(f"{key} is stored as {stored.get(key)!r} instead of {possible}")
    deadline = time.monotonic() + 15 * SCALE
    while watcher.values != stored and time.monotonic() < deadline:
        time.sleep(0.05)
    if watcher.values != stored:
        wrong = {key for key in stored if watcher.values.get(key) != stored[key]}
        wrong |= watcher.values.keys() - stored.keys()
        recorder.complain(f"the watcher is wrong in {len(wrong)} keys: {sorted(wrong)[:5]}")
