"""The public names: what a user can import, and what the contract promises."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import pydoc
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import jetstream_sync
from jetstream_sync import errors

# --- the contract: the names that users rely on ------------------------------------------------

# Class -> public methods, properties and attributes.
PUBLIC = {
    "Connection": "add_listener add_service close connected_url discovered_servers drain flush is_closed "
    "is_connected is_draining is_reconnecting jetstream last_error max_payload new_inbox "
    "pending_bytes publish reconnect remove_listener request request_many rtt server_info server_pool servers "
    "service_call service_info service_ping service_stats set_server_pool stats status subscribe",
    "Subscription": "delivered drain dropped is_valid next_msg pending_bytes pending_msgs sid unsubscribe",
    "PushSubscription": "consumer_info consumer_name delivered drain dropped is_valid next_msg pending_bytes "
    "pending_msgs sid stream_name unsubscribe",
    "PullSubscription": "consumer_info consumer_name delivered drain fetch is_valid pending_bytes "
    "pending_msgs stream_name unsubscribe",
    "JetStream": "account_info batch cancel_schedule consumer_groups consumer_info consumer_names "
    "counters create_consumer create_key_value create_object_store "
    "create_or_update_consumer create_or_update_key_value create_or_update_object_store "
    "create_or_update_stream create_push_consumer create_stream delete_consumer "
    "delete_key_value delete_object_store delete_stream fast_publish "
    "find_stream_name_by_subject get_consumer get_stream key_value key_value_names "
    "list_consumers list_key_values list_object_stores list_streams object_store "
    "object_store_names ordered_consumer pause_consumer publish publish_async "
    "publish_async_completed publish_async_pending publish_batch pull_subscribe "
    "pull_subscribe_bind reset_consumer restore_stream resume_consumer schedule "
    "stream_names subscribe subscribe_bind unpin_consumer update_consumer "
    "update_key_value update_object_store update_push_consumer update_stream",
    "KeyValue": "bucket create delete get get_many history iter_keys keys lock modify purge "
    "purge_deletes put replica status update value watch with_codecs",
    "ObjectStore": "add_bucket_link add_link bucket delete get_bytes get_file info list open "
    "purge_orphans put put_file seal status update_meta watch",
    "Watch": "closed drain initial is_current next stop wait_current",
    "WatchHandle": "closed drain error is_current stop wait_closed wait_current",
    "Stream": "cached_info consumer_info consumer_names create_consumer create_or_update_consumer "
    "create_push_consumer delete_consumer delete_msg get_consumer get_last_msgs get_msg "
    "get_msgs info list_consumers name ordered_consumer pause_consumer purge remove_peer "
    "reset_consumer resume_consumer schedules snapshot step_down step_down_consumer stranded "
    "unpin_consumer update_consumer update_push_consumer",
    "ConsumerGroups": "create_elastic create_static get list",
    "ElasticConsumerGroup": "absent_members active_members add_members config consume consumer_name "
    "consumer_stream_name delete drop_members key name partitions set_mappings step_down "
    "stream_name",
    "GroupConsumeHandle": "closed drain error member partitions stop wait_closed",
    "PullConsumer": "cached_info consume fetch fetch_no_wait info messages name next reset stranded "
    "stream_name",
    "OrderedConsumer": "cached_info close consume fetch fetch_no_wait info messages name next stream_name",
    "MessageIterator": "closed drain next request stop",
    "OrderedMessages": "closed drain next request stop",
    "ConsumeHandle": "closed drain error stop wait_closed",
    "StreamSnapshot": "close finished write_to",
    "Msg": "data headers reply respond status subject",
    "JetStreamMsg": "ack ack_subject ack_sync data headers in_progress is_acked is_done metadata nak "
    "reply respond status subject term",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_objects_show_public_names_only(name):
    """``dir()`` shows the methods for users, and none that other modules of the package call."""
    kind = getattr(jetstream_sync, name)
    shown = {part for part in dir(kind) if not part.startswith("_") and hasattr(kind, part)}
    assert shown == set(PUBLIC[name].split())


def every_module() -> list[str]:
    names = [
        module.name
        for module in pkgutil.walk_packages(jetstream_sync.__path__, "jetstream_sync.")
        if module.name.split(".")[1] not in {"cli", "spark", "django", "flask"}
    ]
    return ["jetstream_sync", *names]


# --- the tests --------------------------------------------------------------------------------


def test_shared_connection_has_the_options_of_connect():
    """`shared_connection()` has the parameters of `connect()`, and returns the same class."""
    connect, shared = map(
        inspect.signature, (jetstream_sync.connect, jetstream_sync.shared_connection)
    )
    assert shared == connect


def test_the_names_are_those_in_all():
    """`from jetstream_sync import *` and `jetstream_sync.NAME` give the same names."""
    promised = set(jetstream_sync.__all__)
    values = {name: getattr(jetstream_sync, name) for name in promised & set(dir(jetstream_sync))}
    assert values.keys() == promised
    public = {
        name
        for name, value in vars(jetstream_sync).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - promised == {"annotations", "import_module"}
    assert len(jetstream_sync.__all__) == len(promised), "a name stands twice"


def test_type_checkers_know_the_same_names():
    """The stub of the package imports each public name from the module that has it."""
    stub = ast.parse(Path(jetstream_sync.__file__).with_suffix(".pyi").read_text("utf-8"))
    typed = {
        alias.asname: (node.module, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    del typed[None]  # every error
    lazy = {name: place for name, (place, _) in typed.items() if place not in {None, "version"}}
    assert lazy == jetstream_sync._MODULES
    assert typed.keys() | set(errors.__all__) == set(jetstream_sync.__all__)
    assert all(name == original for name, (_, original) in typed.items())


_FORK = """
import os, sys, jetstream_sync
before = "jetstream_sync.jetstream.context" in sys.modules
pid = os.fork()
if not pid:
    os._exit(not all(name in vars(jetstream_sync) for name in jetstream_sync.__all__))
print(before, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_has_all_names():
    """In a forked process an import could wait for a thread that does not exist there."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "False 0\n"


def test_every_public_error_is_in_the_errors_module():
    """`from jetstream_sync.errors import X` works for every error class that the package exports."""
    public = {
        name
        for name in jetstream_sync.__all__
        if isinstance(value := getattr(jetstream_sync, name), type)
        and issubclass(value, BaseException)
    }
    assert public == set(errors.__all__)
    assert {getattr(errors, name).__module__ for name in public} == {"jetstream_sync.errors"}


def test_every_error_class_is_in_all():
    """Every error class is in ``__all__``."""
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, errors.Error)
        and value.__module__ == errors.__name__
    }
    assert defined == {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}


def test_every_name_in_all_exists():
    """Every name in ``__all__`` exists."""
    for module in map(importlib.import_module, every_module()):
        for promised in getattr(module, "__all__", ()):
            assert hasattr(module, promised), promised


def test_public_classes_and_functions_have_docstrings():
    """Every public class, function and method has a docstring."""
    silent = []
    for name in jetstream_sync.__all__:
        value = getattr(jetstream_sync, name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            continue
        if not inspect.getdoc(value):
            silent.append(name)
        for member, part in vars(value).items():
            documented = inspect.isfunction(part) or isinstance(part, property)
            if documented and not member.startswith("_") and not inspect.getdoc(part):
                silent.append(f"{name}.{member}")
    assert not silent


def test_help_works_on_every_public_name():
    """`help()` and `pydoc` show the docstring of the package and of every name in it."""
    values = [getattr(jetstream_sync, name) for name in jetstream_sync.__all__]
    for value in [jetstream_sync, *(value for value in values if not isinstance(value, str))]:
        text = pydoc.render_doc(value, renderer=pydoc.plaintext)
        assert (inspect.getdoc(value) or "").strip().splitlines()[0] in text


_IMPORT = """
import logging, sys, threading  # Python 3.15 loads pathlib with logging
before = set(sys.modules)
import jetstream_sync
print(threading.active_count(), *sorted(set(sys.modules) - before))
"""
#: Modules that an import must not load; each takes a millisecond or more. (Not ``subprocess``: on
#: Python 3.10 it comes with ``platform``, and that with ``uuid`` and orjson.)
_LATE = """
asyncio click concurrent.futures.thread configparser csv ctypes decimal difflib email fractions getpass
gevent glob gzip hashlib html http importlib.metadata importlib.resources ipaddress jetstream_sync.cli
jetstream_sync.net.tls jetstream_sync.net.websocket jetstream_sync.server jetstream_sync.spark
jetstream_sync.workers locale multiprocessing nkeys optparse pathlib pickle pprint queue rich secrets
shutil ssl statistics tempfile typing_extensions urllib urllib.parse websockets xml zipfile zoneinfo
"""
#: Each module takes a third of a millisecond of processor time or more; 111 with Python 3.11.
_MOST_MODULES = 118


def test_importing_starts_nothing():
    """An import starts no thread, and loads nothing that only some programs need."""
    response = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            _IMPORT.replace("import jetstream_sync", "from jetstream_sync import *"),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,  # not where the source is: the installed package is tested
        timeout=30,
    ).stdout.split()
    assert response[0] == "1"
    assert set(response[1:]) & set(_LATE.split()) == set()
    assert (
        len([name for name in response[1:] if name.startswith("jetstream_sync")]) <= _MOST_MODULES
    )


#: Modules that only workers with some options need, such as HTTP, processes, soft timeouts and schedules.
_LATE_IN_WORKERS = """
asyncio ctypes difflib email hashlib http.client http.server jetstream_sync.cli jetstream_sync.server
jetstream_sync.workers.runtime.child jetstream_sync.workers.runtime.processes multiprocessing pickle shutil
socketserver ssl sysconfig tempfile zoneinfo
"""


def test_importing_workers_loads_no_servers_and_processes():
    """A program that only calls tasks loads nothing that only some workers need when they start."""
    response = subprocess.run(
        [sys.executable, "-W", "error", "-c", _IMPORT.replace("_sync", "_sync.workers")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
        timeout=30,
    ).stdout.split()
    assert response[0] == "1"
    assert "jetstream_sync.workers.worker" in response
    assert set(response[1:]) & set(_LATE_IN_WORKERS.split()) == set()


def test_no_methods_are_generated_for_records():
    """Frozen dataclasses share their methods; generated ones took a third of the import time."""
    generated = {"__init__", "__repr__", "__setattr__", "__delattr__"}
    frozen = [
        value
        for value in (getattr(jetstream_sync, name) for name in jetstream_sync.__all__)
        if dataclasses.is_dataclass(value)
    ]
    assert len(frozen) > 40
    for value in frozen:
        assert generated & vars(value).keys() == set(), value
