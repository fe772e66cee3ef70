"""A key-value bucket against a model: random operations, revisions, deletions and a second writer."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from jetstream_sync import JetStream, KeyValue, errors

HISTORY = 3
KEYS = st.sampled_from(["a", "b", "a.b", "a.c"])
VALUES = st.binary(max_size=3)
_numbers = itertools.count(1)


class Bucket(RuleBasedStateMachine):
    """The model: the stored messages of each key, oldest first, as (revision, operation, value)."""

    js: JetStream

    revisions = Bundle("revisions")

    @initialize()
    def create_bucket(self) -> None:
        name = f"MODEL-{next(_numbers)}"
        self.kv = self.js.create_key_value(bucket=name, history=HISTORY, storage="memory")
        # Another object of the same bucket is another writer.
        self.other = self.js.key_value(name)
        self.watch = self.kv.watch(history=True)
        self.expected: list[tuple[str, int, str, bytes]] = []
        self.model: dict[str, list[tuple[int, str, bytes]]] = {}
        self.last = 0

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            self.watch.stop()
            self.js.delete_key_value(self.kv.bucket)

    @invariant()
    def the_watch_shows_each_step(self) -> None:
        if not hasattr(self, "kv"):
            return
        # At once: a message that is removed before its delivery is not delivered.
        found = [self.watch.next(10) for _ in self.expected]
        assert [(e.key, e.revision, str(e.operation), e.value) for e in found] == self.expected
        self.expected = []

    def store(self, key: str, revision: int, operation: str, value: bytes) -> int:
        self.last += 1
        assert revision == self.last
        kept = [] if operation == "PURGE" else self.model.get(key, [])
        self.model[key] = [*kept, (revision, operation, value)][-HISTORY:]
        self.expected.append((key, revision, operation, value))
        return revision

    def newest(self, key: str) -> tuple[int, str, bytes]:
        return (self.model.get(key) or [(0, "NONE", b"")])[-1]

    def writer(self, second: bool) -> KeyValue:
        return self.other if second else self.kv

    @rule(target=revisions, key=KEYS, value=VALUES, second=st.booleans())
    def put(self, key: str, value: bytes, second: bool) -> int:
        return self.store(key, self.writer(second).put(key, value), "PUT", value)

    @rule(key=KEYS, value=VALUES, second=st.booleans())
    def create(self, key: str, value: bytes, second: bool) -> None:
        revision, operation, _ = self.newest(key)
        if operation == "PUT":
            with pytest.raises(errors.KeyExistsError) as raised:
                self.writer(second).create(key, value)
            assert raised.value.revision == revision
        else:
            self.store(key, self.writer(second).create(key, value), "PUT", value)

    @rule(key=KEYS, value=VALUES, wrong=revisions, right=st.booleans())
    def update(self, key: str, value: bytes, wrong: int, right: bool) -> None:
        newest = self.newest(key)[0]
        last = newest if right else wrong
        if last == newest:
            self.store(key, self.kv.update(key, value, last), "PUT", value)
        else:
            with pytest.raises(errors.WrongLastRevisionError):
                self.kv.update(key, value, last)

    @rule(key=KEYS, expect=st.booleans())
    def delete(self, key: str, expect: bool) -> None:
        last = self.newest(key)[0] if expect else None
        self.store(key, self.kv.delete(key, last), "DEL", b"")

    @rule(key=KEYS, wrong=revisions, right=st.booleans())
    def purge(self, key: str, wrong: int, right: bool) -> None:
        newest = self.newest(key)[0]
        last = newest if right else wrong
        if last == newest:
            self.store(key, self.kv.purge(key, last), "PURGE", b"")
        else:
            with pytest.raises(errors.WrongLastRevisionError):
                self.kv.purge(key, last)

    @rule(key=KEYS, value=st.none() | VALUES)
    def modify(self, key: str, value: bytes | None) -> None:
        _, operation, before = self.newest(key)
        seen: list[Any] = []

        def change(entry: Any) -> bytes | None:
            seen.append(entry and entry.value)
            return value

        revision = self.kv.modify(key, change)
        assert seen == [before if operation == "PUT" else None]
        if value is not None:
            self.store(key, revision, "PUT", value)
        elif operation == "PUT":
            self.store(key, revision, "DEL", b"")

    @rule(old=st.booleans())
    def purge_deletes(self, old: bool) -> None:
        removed = 0
        for key, stored in list(self.model.items()):
            if stored and stored[-1][1] != "PUT":
                kept = [] if old else stored[-1:]
                removed += len(stored) - len(kept)
                self.model[key] = kept
        assert self.kv.purge_deletes(*([0] if old else [])) == removed

    @rule(key=KEYS)
    def history(self, key: str) -> None:
        found = [(e.revision, str(e.operation), e.value) for e in self.kv.history(key)]
        assert found == self.model.get(key, [])

    @rule(key=KEYS, revision=revisions)
    def get_revision(self, key: str, revision: int) -> None:
        stored = {number: item for number, *item in self.model.get(key, [])}
        if stored.get(revision, [""])[0] == "PUT":
            assert self.kv.get(key, revision=revision).value == stored[revision][1]
        else:
            with pytest.raises(errors.KeyNotFoundError):
                self.kv.get(key, revision=revision)

    @invariant()
    def the_values_are_those_of_the_model(self) -> None:
        if not hasattr(self, "kv"):
            return
        expected = {
            key: (stored[-1][0], stored[-1][2])
            for key, stored in self.model.items()
            if stored and stored[-1][1] == "PUT"
        }
        found = self.kv.get_many(">")
        assert {key: (e.revision, e.value) for key, e in found.items()} == expected
        for key, (revision, value) in expected.items():
            entry = self.kv.get(key)
            assert (entry.revision, entry.value) == (revision, value)


def test_a_bucket_is_its_model(js):
    """After any sequence of operations all reads agree with the model, and a watch has seen each step."""
    machine = type("BucketOfServer", (Bucket,), {"js": js})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=6,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert js.key_value_names() == []
