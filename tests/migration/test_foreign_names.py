"""Names of nats-py that do not exist here: the error says what to write."""

from __future__ import annotations

import copy
import inspect
import pickle

import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.kv import KeyValue as NatsPyKeyValue
from nats.js.object_store import ObjectStore as NatsPyObjectStore

import jetstream_sync
from jetstream_sync import (
    BatchOptions,
    Connection,
    ConnectOptions,
    ConsumerConfig,
    ContinuousOptions,
    FetchOptions,
    JetStream,
    KeyValue,
    KeyValueConfig,
    ObjectStore,
    OrderedOptions,
    PublishOptions,
    PullConsumer,
    Stream,
    StreamConfig,
    SubscribeOptions,
    WatchOptions,
    errors,
)
from jetstream_sync.foreign_names import (
    FOREIGN_ERRORS,
    FOREIGN_NAMES,
    FOREIGN_OPTIONS,
    spelling_of,
)
from jetstream_sync.workers.options import OPTIONS

CLASSES = {
    "Connection": Connection,
    "JetStream": JetStream,
    "KeyValue": KeyValue,
    "ObjectStore": ObjectStore,
    "PullConsumer": PullConsumer,
    "Stream": Stream,
    "jetstream_sync": jetstream_sync,
}
#: Public in nats-py, and not for its users.
INTERNAL = {"is_status_msg"}


def public(kind: type) -> set[str]:
    return {
        name
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_") and not inspect.isclass(value) and not name.isupper()
    }


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (Client, Connection),
        (JetStreamContext, JetStream),
        (NatsPyKeyValue, KeyValue),
        (NatsPyObjectStore, ObjectStore),
    ],
)
def test_every_name_of_nats_py_is_here_or_explained(theirs, ours):
    """What nats-py has is an attribute here, or the error for it says what to use."""
    missing = public(theirs) - public(ours) - set(FOREIGN_NAMES[ours.__name__]) - INTERNAL
    assert missing == set()


@pytest.mark.parametrize("kind", FOREIGN_NAMES)
def test_what_exists_is_not_explained(kind):
    """A name that comes to exist has to leave the table."""
    assert not [name for name in FOREIGN_NAMES[kind] if hasattr(CLASSES[kind], name)]


@pytest.mark.parametrize("kind", FOREIGN_NAMES.keys() - {"jetstream_sync"})
def test_lookup_of_attributes_is_not_slowed_down(kind):
    """Python caches no attribute of a class with one of these methods."""
    assert not hasattr(CLASSES[kind], "__getattr__")
    assert CLASSES[kind].__getattribute__ is object.__getattribute__


def test_name_that_a_subclass_defines_is_its_own():
    """A class of the user with the same name may add what nats-py has."""
    connect = lambda _: "mine"  # noqa: E731
    own = type("Connection", (Connection,), {"connect": connect})
    assert own.connect is connect


def test_the_error_says_what_to_write(nc, js):
    """The text names the class, the attribute and its replacement; hasattr and dir do as usual."""
    store = js.create_object_store(bucket="NAMES")
    owners = {
        "Connection": nc,
        "JetStream": js,
        "KeyValue": js.create_key_value(bucket="NAMES"),
        "ObjectStore": store,
        "Stream": js.create_stream(name="NAMES"),
        "PullConsumer": js.create_consumer("NAMES", name="C"),
    }
    for kind, names in FOREIGN_NAMES.items():
        if kind == "jetstream_sync":
            continue
        owner = owners[kind]
        for name, hint in names.items():
            with pytest.raises(AttributeError) as caught:
                getattr(owner, name)
            assert str(caught.value) == f"{kind!r} object has no attribute {name!r}: {hint}"
            assert (caught.value.name, caught.value.obj) == (name, owner)
            assert not hasattr(owner, name)
            assert name not in dir(owner)
    with pytest.raises(AttributeError, match=r"create_stream\(\)"):
        js.add_stream(name="S")  # type: ignore[attr-defined]


def test_other_missing_attributes_get_the_usual_error(js, nc):
    """An error of a property is that of the property; copying and pickling are as they were."""
    with pytest.raises(AttributeError) as caught:
        js.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert str(caught.value) == "'JetStream' object has no attribute 'nothing'"

    class Broken(JetStream):
        @property
        def inner(self) -> object:
            return None.wrong  # type: ignore[attr-defined]

    broken = Broken.__new__(Broken)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'wrong'"):
        broken.inner  # noqa: B018
    assert type(copy.copy(broken)) is Broken
    for refused in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="pickled"):
            refused(nc)


def test_every_error_of_nats_py_is_here_or_explained():
    """What a program that comes from nats-py catches exists, or the error for it says what to catch."""
    theirs = {
        name
        for module in (nats.errors, nats.js.errors)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert {name for name in theirs if not hasattr(errors, name)} <= set(FOREIGN_ERRORS)
    for name, here in FOREIGN_ERRORS.items():
        with pytest.raises(AttributeError, match=f"{name}.*: use {here.split(';')[0]}"):
            getattr(errors, name)
        assert here.startswith("no error") or issubclass(
            getattr(errors, here.split(";")[0]), errors.Error
        )


def test_names_of_the_package_are_explained():
    """Names that people try first say what to use; others get the usual error."""
    for name, hint in FOREIGN_NAMES["jetstream_sync"].items():
        with pytest.raises(AttributeError) as caught:
            getattr(jetstream_sync, name)
        assert str(caught.value) == f"module 'jetstream_sync' has no attribute {name!r}: {hint}"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'$"):
        jetstream_sync.nothing  # noqa: B018
    with pytest.raises(ImportError, match="Celery"):
        from jetstream_sync import Celery  # noqa: F401


#: The options of each call.
KNOWN = [
    *(
        {*kind.__annotations__}
        for kind in (ConnectOptions, StreamConfig, ConsumerConfig, KeyValueConfig)
    ),
    *(
        {*kind.__annotations__, *kind.__optional_keys__}
        for kind in (BatchOptions, ContinuousOptions, FetchOptions, OrderedOptions, PublishOptions)
    ),
    *({*kind.__annotations__} for kind in (SubscribeOptions, WatchOptions)),
    *(set(options) for options in OPTIONS.values()),
]


def test_words_for_options_name_options_that_exist():
    """Each spelling is an option of a call, and no word is an option of the same call."""
    for word, spellings in FOREIGN_OPTIONS.items():
        for spelling in spellings:
            option = spelling.partition("=")[0]
            if option not in {"servers", "queue", "starting_offsets", "timeout", "batch"}:
                assert any(option in known for known in KNOWN), (word, spelling)
    assert spelling_of("timeout", {"drain_timeout"}) is None


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (
            lambda _: jetstream_sync.connect(timeout=2),
            "timeout: unknown option; use connect_timeout",
        ),
        (lambda _: jetstream_sync.connect(creds="a"), "use user_credentials"),
        (lambda _: jetstream_sync.connect(ca_file="a"), r"use tls=TLSOptions\(ca_file=...\)"),
        (lambda js: js.create_consumer("S", deliver="all"), "use deliver_policy"),
        (lambda js: js.create_consumer("S", max_retries=3), "use max_deliver"),
        (lambda js: js.publish("a", b"", ttl=5), "use msg_ttl"),
        (lambda js: js.create_stream(name="S", replicas=3), "use num_replicas"),
    ],
)
def test_the_error_of_an_unknown_option_names_the_spelling(js, call, answer):
    """No value is shown, and no option that only looks alike."""
    with pytest.raises(errors.InvalidOptionError, match=answer) as caught:
        call(js)
    assert "..." not in str(caught.value).replace("(ca_file=...)", "")
    assert "did you mean" not in str(caught.value)
