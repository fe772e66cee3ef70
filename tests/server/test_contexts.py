"""Connections with a context of the ``nats`` command (ADR-21)."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.jsm import run_jsm
from fixtures.jwt import User
from fixtures.proxy import Listener

import jetstream_sync
from jetstream_sync import InvalidOptionError
from jetstream_sync.contexts import connect_options
from jetstream_sync.errors import CredentialsError
from jetstream_sync.filesystem import JetStreamFileSystem
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the contexts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    return folder


def test_a_context_has_servers_and_login(folder, nats_server):
    """Options that are given replace those of the context."""
    fields = {"url": nats_server.url, "description": "d", "user": "", "inbox_prefix": "_IN.me"}
    (folder / "a.json").write_text(json.dumps(fields))
    with jetstream_sync.connect(context="a") as nc:
        assert nc.new_inbox().startswith("_IN.me.")
        assert nc.jetstream().account_info()
    with jetstream_sync.connect(context="a", inbox_prefix="_OTHER") as nc:
        assert nc.new_inbox().startswith("_OTHER.")
    with jetstream_sync.connect(nats_server.url, context="a") as nc:
        assert nc.connected_url == nats_server.url


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none", None, "there is no file"),
        ("../a", None, "is not the name of a context"),
        ("a", "[]", "expected a JSON object"),
        ("a", "{", "Expecting"),
        ("a", {"url": 7}, "url: expected text"),
        ("a", {"socks_proxy": "socks5://h"}, "'socks_proxy' is not supported"),
    ],
)
def test_a_context_that_cannot_be_used(folder, name, content, reason):
    """The error names the option and the reason, and nothing is connected."""
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    with pytest.raises(InvalidOptionError, match=reason) as caught:
        jetstream_sync.connect(context=name)
    assert caught.value.option == "context"


def save(folder: Path, name: str, **fields: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(fields))


def encoded(text: str) -> str:
    return "data:;base64," + base64.b64encode(text.encode()).decode()


@pytest.fixture(scope="module")
def guarded() -> Iterator[NatsServer]:
    """A server that requires a user and a password."""
    config = 'authorization { users: [{ user: "me", password: "open sesame" }] }'
    with NatsServer(config=config) as server:
        yield server


def test_a_password_is_a_reference(folder, guarded, tmp_path, monkeypatch):
    """A password is read from a variable, a file or base64, by the library and by ``jsm``."""
    monkeypatch.setenv("NATS_TEST_PASSWORD", "open sesame")
    (tmp_path / "password").write_text("open sesame\n")
    references = (
        "open sesame",
        "env://NATS_TEST_PASSWORD",
        "ENV://NATS_TEST_PASSWORD",
        f"file://{tmp_path}/password",
        encoded("open sesame"),
    )
    for reference in references:
        save(folder, "a", url=guarded.url, user="me", password=reference)
        with jetstream_sync.connect(context="a") as nc:
            assert nc.is_connected
        run_jsm("--context", "a", "rtt", "-n", "1", XDG_CONFIG_HOME=str(folder.parents[1])).ok()
    shared = {id(jetstream_sync.shared_connection(context="a")) for _ in range(2)}
    assert len(shared) == 1
    jetstream_sync.shared_connection(context="a").close()


def test_credentials_and_seeds_are_references(folder, jwt_server, operator, monkeypatch):
    """Credentials, a JWT and a seed are read from variables, files, base64 and programs."""
    user = User()
    jwt = operator.account.user(user)
    creds = user.creds(jwt)
    path = folder / "user.creds"
    path.write_text(creds)
    monkeypatch.setenv("NATS_TEST_CREDS", creds)
    monkeypatch.setenv("NATS_TEST_SEED", user.seed)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "op").write_text(f'#!/bin/sh\n[ "$*" = "read op://v/i/f" ] && cat {path}\n')
    profile = json.dumps({"user_creds": str(path), "operator": {"service": []}})
    (programs / "nsc").write_text(
        f'#!/bin/sh\n[ "$*" = "generate profile nsc://o/a/u" ] && echo \'{profile}\'\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for fields in (
        {"creds": str(path)},
        {"creds": f"file://{path}"},
        {"creds": "env://NATS_TEST_CREDS"},
        {"creds": encoded(creds)},
        {"creds": "op://v/i/f"},
        {"creds": "nsc://o/a/u"},
        {"user_jwt": encoded(jwt), "user_seed": "env://NATS_TEST_SEED"},
    ):
        save(folder, "a", url=jwt_server.url, **fields)
        with jetstream_sync.connect(context="a") as nc:
            assert nc.jetstream().account_info()
    save(folder, "a", url=jwt_server.url, creds="op://v/i/other")
    with pytest.raises(CredentialsError, match="'op' failed with status 1"):
        jetstream_sync.connect(context="a")


def test_an_nkey_and_a_token_are_references(folder, monkeypatch):
    """A seed and a token are read from a variable and from base64."""
    user = User()
    monkeypatch.setenv("NATS_TEST_SEED", user.seed)
    with NatsServer(config=f"authorization {{ users: [{{ nkey: {user.public} }}] }}") as server:
        for nkey in ("env://NATS_TEST_SEED", encoded(user.seed)):
            save(folder, "a", url=server.url, nkey=nkey)
            jetstream_sync.connect(context="a").close()
    with NatsServer(config='authorization { token: "open sesame" }') as server:
        save(folder, "a", url=server.url, token=encoded("open sesame"))
        jetstream_sync.connect(context="a").close()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"user": "me", "password": "env://NOT_SET_AT_ALL"}, "env://NOT_SET_AT_ALL.*is not set"),
        ({"user": "me", "password": "vault://GEHEIM"}, "scheme 'vault' is not supported"),
        ({"creds": "vault://GEHEIM"}, "scheme 'vault' is not supported"),
        ({"token": "data:GEHEIM"}, "expected data:;base64,"),
        ({"token": "data:;base64,GEHEIM!"}, "cannot be read"),
        ({"token": "file:///nowhere/at/all"}, "file:///nowhere/at/all.*No such file"),
        ({"creds": "op://v/i/none"}, "op:// needs the program 'op'"),
        ({"creds": "nsc://o/a/none"}, "nsc:// needs the program 'nsc'"),
        ({"ca": "env://X"}, "ca must be a path; the scheme 'env' is not supported"),
    ],
)
def test_a_reference_that_cannot_be_resolved(folder, guarded, fields, reason, monkeypatch):
    """The error names the key, the reference and the reason, but no secret; ``jsm`` exits with status 2."""
    monkeypatch.setenv("PATH", str(folder))
    save(folder, "a", url=guarded.url, **fields)
    with pytest.raises(InvalidOptionError, match=reason) as caught:
        jetstream_sync.connect(context="a")
    assert "GEHEIM" not in str(caught.value)
    home = str(folder.parents[1])
    result = run_jsm("--context", "a", "rtt", "-n", "1", XDG_CONFIG_HOME=home)
    assert result.status == 2
    assert "GEHEIM" not in result.err


def test_what_is_not_needed_is_not_read(folder, nats_server, guarded):
    """Of several methods the first one is used; a login that is given replaces all of the context."""
    save(
        folder,
        "a",
        url=guarded.url,
        user="me",
        password="open sesame",
        creds="op://v/i/f",
        nkey="/nowhere",
    )
    jetstream_sync.connect(context="a").close()
    home = str(folder.parents[1])
    run_jsm("--context", "a", "rtt", "-n", "1", XDG_CONFIG_HOME=home).ok()
    save(folder, "a", url=guarded.url, creds="op://v/i/f")
    login = {"user": "me", "password": "open sesame"}
    jetstream_sync.connect(context="a", **login).close()
    options = ("--user", "me", "--password", "open sesame")
    run_jsm("--context", "a", "rtt", "-n", "1", *options, XDG_CONFIG_HOME=home).ok()
    run_jsm("-s", nats_server.url, "rtt", "-n", "1", NATS_CONTEXT="a", XDG_CONFIG_HOME=home).ok()


def test_the_domain_of_a_context(folder, hub_domain):
    """The domain of a context holds in ``jetstream()``, unless another domain or a prefix is given."""
    save(folder, "a", url=hub_domain.url, jetstream_domain="HUB")
    save(folder, "b", url=hub_domain.url, jetstream_domain="NONE")
    with jetstream_sync.connect(context="a") as nc:
        assert nc.jetstream().account_info().domain == "HUB"
        with pytest.raises(jetstream_sync.JetStreamNotEnabledError):
            nc.jetstream(domain="NONE").account_info()
    with jetstream_sync.connect(context="b") as nc:
        with pytest.raises(jetstream_sync.JetStreamNotEnabledError):
            nc.jetstream().account_info()
        assert nc.jetstream(prefix="$JS.API").account_info()
    fs = JetStreamFileSystem(context="a")
    fs.mkdir("FILES")
    fs.pipe_file("FILES/x", b"1")
    with jetstream_sync.connect(hub_domain.url) as nc:
        assert nc.jetstream(domain="HUB").object_store("FILES").list()[0].name == "x"
    one, other = (jetstream_sync.shared_connection(context=name) for name in "ab")
    assert one is not other
    assert one.jetstream().account_info().domain == "HUB"
    one.close()
    other.close()


@pytest.mark.parametrize("servers", [None, "", []])
def test_a_worker_has_the_servers_and_domain_of_its_context(
    folder, hub_domain, monkeypatch, servers
):
    """A worker whose connection has a context runs on its servers, whatever ``NATS_URL`` is."""
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    save(folder, "a", url=hub_domain.url, jetstream_domain="HUB", user="", token="")
    with jetstream_sync.connect(hub_domain.url) as nc:
        stream = nc.jetstream().create_stream(name="W", subjects=["w"])
        stream.create_consumer(durable_name="c")
        nc.jetstream().publish("w", b"1")
    done = []
    worker = Worker(servers, name="w", connection={"context": "a"})

    @worker.handler(stream="W", consumer="c")
    def keep(payload: Any) -> None:
        done.append(payload)

    assert worker.run(burst=True) == 0
    assert len(done) == 1


@pytest.fixture
def hub_domain() -> Iterator[NatsServer]:
    """A server with a JetStream domain."""
    with NatsServer(config="jetstream { domain: HUB }") as server:
        yield server


#: A login that must not go to a foreign server, by method; and a part that is sent with every method.
LOGINS = {
    "user": {"user": "GEHEIM", "password": "GEHEIM"},
    "token": {"token": "GEHEIM"},
    "jwt": {"user_jwt": "eyJHRUhFSU0.eyJHRUhFSU0.GEHEIM"},
    "nkey": {"nkey": "SEED"},
    "inbox": {"inbox_prefix": "GEHEIM"},
    "url": {"url": "nats://GEHEIM:GEHEIM@127.0.0.1:1"},
}


def foreign_server(*, refuses: bool = False) -> tuple[Listener, bytearray]:
    """Return a server that answers pings or refuses every login, and what it has received."""
    received = bytearray()

    def serve(peer: Any) -> None:
        peer.send(
            b'INFO {"server_id":"F","version":"2.15.1","max_payload":1048576,"headers":true,'
            b'"nonce":"abc","auth_required":true}\r\n'
        )
        while line := peer.line():
            received.extend(line)
            if line.startswith(b"PING"):
                peer.send(b"-ERR 'Authorization Violation'\r\n" if refuses else b"PONG\r\n")
                if refuses:
                    break
        peer.close()

    return Listener(serve), received


@pytest.mark.parametrize("method", LOGINS)
def test_a_login_goes_to_no_other_server(folder, method, tmp_path):
    """With another server, no part of a context's login is sent, unless ``--context`` asks for it."""
    user = User()
    (tmp_path / "seed").write_text(user.seed)
    fields = {"url": "nats://127.0.0.1:1", **LOGINS[method]}
    if "nkey" in fields:
        fields["nkey"] = str(tmp_path / "seed")
    save(folder, "a", **fields)
    secret = user.public.encode() if method == "nkey" else b"GEHEIM"
    listener, received = foreign_server()
    home = {"XDG_CONFIG_HOME": str(folder.parents[1])}
    (folder.parent / "context.txt").write_text("a")
    command = ("pub", "X", "y")
    try:
        for args, variables in (
            (("-s", listener.url), {}),
            (("-s", f"{listener.url},nats://127.0.0.1:1"), {}),
            ((), {"NATS_URL": listener.url}),
            ((), {"NATS_URL": listener.url, "NATS_CONTEXT": "a"}),
        ):
            run_jsm(*args, *command, **variables, **home)
        if method != "url":
            with pytest.raises(InvalidOptionError, match="not for these servers"):
                jetstream_sync.connect(listener.url, context="a")
            with pytest.raises(InvalidOptionError, match="not for these servers"):
                jetstream_sync.shared_connection([listener.url], context="a")
        assert b"CONNECT" in received
        assert secret not in received
        asked = run_jsm(
            "-s", listener.url, "--context", "a", "req", "X", "y", "--timeout", "1s", **home
        )
        if method != "url":
            assert secret in received
            note = [line for line in asked.err.splitlines() if "not its own" in line]
            assert len(note) == 1, asked
    finally:
        listener.refuse()


def test_a_refused_login_names_the_context(folder, guarded):
    """If a server refuses a client without the login of the selected context, the error says how to send it."""
    save(folder, "a", url="nats://127.0.0.1:1", user="me", password="open sesame")
    (folder.parent / "context.txt").write_text("a")
    home = str(folder.parents[1])
    result = run_jsm("-s", guarded.url, "rtt", "-n", "1", XDG_CONFIG_HOME=home)
    assert result.status == 5
    assert "add --context a to send it" in result.err
    run_jsm("-s", guarded.url, "--context", "a", "rtt", "-n", "1", XDG_CONFIG_HOME=home).ok()


def test_every_command_keeps_the_login(folder, tmp_path, monkeypatch):
    """No command sends a part of the selected context's login to another server."""
    save(folder, "a", url="nats://127.0.0.1:1", user="GEHEIM", password="GEHEIM")
    (folder.parent / "context.txt").write_text("a")
    monkeypatch.chdir(tmp_path)
    home = {"XDG_CONFIG_HOME": str(folder.parents[1]), "JSM_TIMEOUT": "2s"}
    listener, received = foreign_server(refuses=True)
    commands = run_jsm("commands", "-j").ok().json
    left_out = {"worker run", "server run", "context edit", "demo", "top", "top web"}
    try:
        for entry in commands:
            name = entry["command"].removeprefix("jsm ")
            if entry["group"] or name in left_out:
                continue
            needed = [item for item in entry["arguments"] if item.get("required")]
            run_jsm("-s", listener.url, *name.split(), *("X" for _ in needed), **home)
    finally:
        listener.refuse()
    assert received.count(b"CONNECT") > 20
    assert b"GEHEIM" not in received


def test_a_pickle_has_no_secret_of_a_context():
    """A reference is pickled, a secret is not; neither ``repr`` has one."""
    options = connect_options({"user_jwt": "eyJGEHEIM", "user_seed": "env://NATS_TEST_SEED"})
    secret = options["user_credentials"]
    assert "GEHEIM" not in repr(secret)
    copy = pickle.dumps(secret)
    assert b"GEHEIM" not in copy
    assert b"NATS_TEST_SEED" in copy
    with pytest.raises(CredentialsError):
        pickle.loads(copy)()
