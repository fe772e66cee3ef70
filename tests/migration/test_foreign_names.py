"""Names of nats-py that do not exist here: the error says what to write."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.kv import KeyValue as NatsPyKeyValue
from nats.js.object_store import ObjectStore as NatsPyObjectStore

from jetstream_sync import Connection, JetStream, KeyValue, ObjectStore
from jetstream_sync.foreign_names import FOREIGN_NAMES

CLASSES = {
    "Connection": Connection,
    "JetStream": JetStream,
    "KeyValue": KeyValue,
    "ObjectStore": ObjectStore,
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


@pytest.mark.parametrize("kind", FOREIGN_NAMES)
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
    }
    for kind, names in FOREIGN_NAMES.items():
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
