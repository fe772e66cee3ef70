"""With -j, what a command writes to standard output is JSON and nothing else: every command."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.jsm import Jsm, run_jsm, spawn_jsm
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until
from make_jsm_reference import nodes

from jetstream_sync.server import NatsServer

#: A command line for each command that ends by itself; {tmp} is a directory. What several steps need
#: is made by `world`.
LINES = {
    "account info": "",
    "account report connections": "",
    "account report statistics": "",
    "account backup": "{tmp}/account",
    "account restore": "{tmp}/empty-account",
    "stream add": "NEW --subjects new.* --defaults",
    "stream ls": "",
    "stream info": "ORDERS",
    "stream edit": "ORDERS --max-age 1y --force",
    "stream rm": "OTHER --force",
    "stream purge": "ORDERS --force",
    "stream rmm": "ORDERS 1 --force",
    "stream seal": "OTHER --force",
    "stream copy": "ORDERS COPY --subjects copy.*",
    "stream backup": "ORDERS {tmp}/stream",
    "stream restore": "{tmp}/gone",
    "stream subjects": "ORDERS",
    "stream gaps": "ORDERS",
    "stream get": "ORDERS 1",
    "stream view": "ORDERS",
    "consumer add": "ORDERS MORE --pull --defaults",
    "consumer ls": "ORDERS",
    "consumer info": "ORDERS NEW",
    "stream cluster balance": "--dry-run",
    "consumer cluster balance": "--dry-run",
    "consumer next": "ORDERS NEW --count 2",
    "consumer sub": "ORDERS NEW --count 2",
    "consumer edit": "ORDERS NEW --max-deliver 7 --force",
    "consumer copy": "ORDERS NEW AGAIN",
    "consumer rm": "ORDERS NEW --force",
    "consumer pause": "ORDERS NEW 1h --force",
    "consumer resume": "ORDERS NEW",
    "consumer reset": "ORDERS NEW --force",
    "consumer dlq setup": "",
    "consumer dlq ls": "ORDERS NEW",
    "consumer dlq show": "ORDERS NEW 1",
    "consumer dlq requeue": "ORDERS NEW --all --force",
    "kv add": "MORE --storage memory",
    "kv edit": "CONFIG --history 9 --force",
    "kv ls": "CONFIG --verbose",
    "kv info": "CONFIG",
    "kv get": "CONFIG key",
    "kv put": "CONFIG key value",
    "kv create": "CONFIG other value",
    "kv update": "CONFIG key value 2",
    "kv revert": "CONFIG key 1 --force",
    "kv del": "CONFIG key --force",
    "kv purge": "CONFIG key --force",
    "kv compact": "CONFIG --force",
    "kv history": "CONFIG key",
    "kv watch": "CONFIG --count 1",
    "object add": "MORE --storage memory",
    "object edit": "FILES --description changed --force",
    "object put": "FILES {tmp}/apply.json --name new",
    "object get": "FILES object --output {tmp}/object",
    "object ls": "FILES",
    "object info": "FILES object",
    "object del": "FILES object --force",
    "object compact": "FILES --force",
    "object seal": "FILES --force",
    "object watch": "FILES --count 1",
    "pub": "ORDERS.new hello",
    "req": "ORDERS.new hello",
    "sub": "--stream ORDERS --all --count 3",
    "apply": "-f {tmp}/apply.json",
    "context add": "mine --description words",
    "context ls": "",
    "context info": "prod",
    "context select": "prod",
    "context unselect": "",
    "context previous": "",
    "context edit": "prod",
    "context validate": "",
    "context rm": "prod --force",
    "top": "--once",
    "worker ls": "",
    "worker running": "",
    "worker stacks": "",
    "rtt": "-n 2",
    "errors ls": "stream",
    "errors lookup": "10059",
    "bench pub": "--msgs 100",
    "bench js pub sync": "--msgs 100",
    "bench js pub async": "--msgs 100",
    "bench js fetch": "--msgs 100",
    "bench js ordered": "--msgs 100",
    "completion": "bash",
    "commands": "",
    "help": "stream add",
    "demo": "--stream DEMO --input {tmp}/orders.jsonl",
}
#: Those that go on until they are ended, take long, or need what is not here: they have tests of their own.
OTHERS = {
    "events",
    *(f"server {name}" for name in ("run", "ls", "info", "ping", "request")),
    *(f"server cluster {name}" for name in ("step-down", "peer-remove")),
    *(
        f"server check {name}"
        for name in (
            "connection",
            "stream",
            "consumer",
            "message",
            "jetstream",
            "meta",
            "kv",
            "credential",
        )
    ),
    *(f"server report {name}" for name in ("jetstream", "connections", "accounts", "health")),
    *(f"server report {name}" for name in ("routes", "gateways", "leafnodes")),
    "consumer sample",
    "consumer unpin",
    "bench sub",
    *(f"worker {name}" for name in ("run", "check", "replay", "schedules", "setup", "verify")),
    *(f"task {name}" for name in ("ls", "show")),
    "reply",
    *(f"service {name}" for name in ("ls", "info", "stats", "ping")),
    *(f"counter {name}" for name in ("ls", "get", "add", "reset")),
    "stream schedules",
    "trace",
    *(f"stream cluster {name}" for name in ("step-down", "peer-remove")),
    "consumer cluster step-down",
}
#: What ends in another status here, as nothing is there to be done.
STATUSES = {
    "account restore": 3,
    "context previous": 3,
    "consumer dlq ls": 3,
    "consumer dlq requeue": 3,
    "consumer dlq show": 3,
}

ORDER = {
    "id": "o-1",
    "customer": "c-1",
    "currency": "EUR",
    "country": "DE",
    "items": [{"sku": "a", "quantity": 1, "price": "1.00"}],
}


@pytest.fixture
def world(jsm: Jsm, raw: RawClient, tmp_path: Path) -> dict[str, str]:
    """Two streams with messages, a consumer, a backup, a context: something for every command."""
    for name in ("ORDERS", "OTHER", "GONE"):
        # Servers before 2.12 save only what is in files.
        config = {"name": name, "subjects": [f"{name}.*"], "storage": "file"}
        raw.api(f"STREAM.CREATE.{name}", **config)
        raw.requests(f"{name}.new", [b'{"order": %d}' % number for number in range(5)])
    durable = {"durable_name": "NEW", "ack_policy": "explicit", "sample_freq": "100"}
    raw.api("CONSUMER.CREATE.ORDERS.NEW", stream_name="ORDERS", config=durable)
    jsm("stream", "backup", "GONE", f"{tmp_path}/gone").ok()
    raw.api("STREAM.DELETE.GONE")
    (tmp_path / "empty-account").mkdir()
    wanted = {"streams": [{"name": "APPLIED", "subjects": ["applied.*"], "storage": "memory"}]}
    (tmp_path / "apply.json").write_text(json.dumps(wanted))
    (tmp_path / "orders.jsonl").write_text(json.dumps(ORDER) + "\n")
    jsm("kv", "add", "CONFIG", "--history", "2").ok()
    for value in ("one", "two"):
        jsm("kv", "put", "CONFIG", "key", value).ok()
    jsm("object", "add", "FILES").ok()
    jsm("object", "put", "FILES", "--name", "object", stdin=b"data").ok()
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    jsm("context", "add", "prod", "-s", jsm.url, **home).ok()
    return {**home, "VISUAL": "true"}


LEAVES = sorted(" ".join(node.path) for node in nodes() if not node.is_group)


def documents(text: str) -> list[Any]:
    """Read the JSON documents that a text has, one after the other."""
    decoder, found = json.JSONDecoder(), []
    text = text.strip()
    while text:
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:].lstrip()
    return found


def test_every_command_is_here():
    """A new command has a line in the table above."""
    assert not set(LEAVES) - set(LINES) - OTHERS


#: Commands that need a newer server than the oldest supported one.
SERVERS = {"consumer pause": ">=2.11", "consumer resume": ">=2.11", "consumer reset": ">=2.14"}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(leave, marks=pytest.mark.server(SERVERS[leave]) if leave in SERVERS else ())
        for leave in sorted(set(LEAVES) & set(LINES))
    ],
)
def test_stdout_is_json(jsm, world, tmp_path, command):
    """What there is on stdout is JSON, wherever -j stands, and an error is JSON on stderr."""
    words = [*command.split(), *LINES[command].format(tmp=tmp_path).split()]
    words = ["-j", *words] if len(command) % 2 else [*words, "-j"]
    result = jsm(*words, **world)
    assert result.status == STATUSES.get(command, 0), result
    found = documents(result.out)
    if result.status:
        assert result.error["exit_status"] == result.status
    else:
        assert found, result
    assert "\x1b" not in result.out + result.err
    assert all(json.loads(line) for line in result.err.splitlines()), result


#: An escape sequence, a C1 control character, and one that turns the direction of text.
STEERING = "a\x1b[2J\x9b31m\u202eb"
#: Commands that show texts of a server or a publisher; `kv get` writes the value as it is into a pipe.
SHOWING = [
    command
    for command in sorted(set(LEAVES) & set(LINES))
    if command.split()[0] in {"stream", "consumer", "kv", "object", "pub", "req", "sub", "top"}
    and command != "kv get"
]


@pytest.fixture
def steering_world(world: dict[str, str], raw: RawClient) -> dict[str, str]:
    """The same, with control characters wherever another client can put them."""
    for stream in ("ORDERS", "OTHER", "KV_CONFIG", "OBJ_FILES"):
        config = raw.api(f"STREAM.INFO.{stream}")["config"]
        config["description"] = STEERING
        config["metadata"] = {STEERING: STEERING}
        assert "error" not in raw.api(f"STREAM.UPDATE.{stream}", **config)
    config = raw.api("CONSUMER.INFO.ORDERS.NEW")["config"]
    config |= {"description": STEERING, "metadata": {STEERING: STEERING}}
    raw.api("CONSUMER.CREATE.ORDERS.NEW", stream_name="ORDERS", config=config)
    text = STEERING.encode()
    headers = b"NATS/1.0\r\n" + text + b": " + text + b"\r\n\r\n"
    for subject in (b"ORDERS." + text, b"$KV.CONFIG.key"):
        body = headers + text
        raw.send(b"HPUB %s %d %d\r\n%s\r\n" % (subject, len(headers), len(body), body))
    info = {"name": STEERING, "bucket": "FILES", "nuid": "n", "description": STEERING}
    info |= {"headers": {STEERING: [STEERING]}, "size": 0, "chunks": 0}
    raw.request("$O.FILES.M.YQ==", json.dumps(info).encode())
    return world


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(item, marks=pytest.mark.server(SERVERS[item]) if item in SERVERS else ())
        for item in SHOWING
    ],
)
# What escapes is the stream of the output, which is the same for JSON and for traces.
@pytest.mark.parametrize(
    "options", [[], *(pytest.param([item], marks=pytest.mark.full) for item in ("-j", "--trace"))]
)
def test_no_text_of_others_controls_a_terminal(jsm, steering_world, tmp_path, command, options):
    """Names, descriptions, headers and bodies are escaped in text, in JSON and in a trace."""
    words = [*command.split(), *LINES[command].format(tmp=tmp_path).split()]
    result = jsm(*words, *options, **steering_world)
    shown = set(result.out + result.err) - set("\n\t")
    assert not [char for char in shown if not char.isprintable()], result


def test_a_progress_bar_controls_no_terminal(jsm, steering_world, raw, tmp_path):
    """It is written beside the streams that escape."""
    made = raw.api("STREAM.CREATE.A\u202eB", name="A\u202eB", subjects=["turned"])
    assert "error" not in made, made
    variables = {**steering_world, "TERM": "xterm"}
    shown = jsm("account", "backup", f"{tmp_path}/all", tty=True, **variables).ok().err
    assert "A\\u202eB" in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize("command", LEAVES)
def test_wrong_usage_is_json_as_well(jsm, command):
    """An option that is not there is told as JSON, with nothing on stdout."""
    result = jsm(*command.split(), "--no-such-option", "-j")
    status = 3 if command.startswith("server check ") else 2  # for Nagios, 3 is UNKNOWN
    assert (result.status, result.out) == (status, "")
    assert result.error["exit_status"] == status


@pytest.mark.parametrize("command", sorted(set(LEAVES) & set(LINES)))
def test_nobody_is_asked(jsm, command):
    """Without arguments and without a person a command ends, and says what is missing in one line."""
    if command in {"demo", "top", *(leave for leave in LEAVES if leave.startswith("bench"))}:
        pytest.skip("it needs nothing")
    result = jsm(*command.split(), "--no-input", stdin=b"")
    assert "Traceback" not in result.err
    if result.status:
        assert result.err.splitlines()[-1].startswith("jsm: ")


# --- secrets --------------------------------------------------------------------------------------

#: Lines for the other commands that connect, and one that has nothing to do above; `{worker}` is a worker.
MORE_LINES = {
    "account restore": "{tmp}",
    "events": "--wait 100ms",
    "consumer sample": "ORDERS NEW --wait 100ms",
    "consumer unpin": "ORDERS NEW group --force",
    "consumer cluster step-down": "ORDERS NEW",
    "stream cluster step-down": "ORDERS",
    "stream cluster peer-remove": "ORDERS other --force",
    "stream schedules": "ORDERS",
    "trace": "ORDERS.new",
    "server check stream": "--stream ORDERS",
    "server check consumer": "--stream ORDERS --consumer NEW",
    "server check message": "--stream ORDERS",
    "server check kv": "--bucket CONFIG",
    **{f"server check {name}": "" for name in ("connection", "jetstream", "meta")},
    **{f"server {name}": "" for name in ("ls", "info", "ping")},
    "server request": "varz",
    "server cluster step-down": "",
    "server cluster peer-remove": "other --force",
    **{
        f"server report {name}": ""
        for name in (
            "jetstream",
            "connections",
            "accounts",
            "health",
            "routes",
            "gateways",
            "leafnodes",
        )
    },
    **{f"worker {name}": "{worker}" for name in ("run", "check", "schedules", "setup", "verify")},
    "worker replay": "ORDERS 1 {worker}",
    "task ls": "",
    "task show": "1",
    "reply": "echo x",
    "bench sub": "",
    "service ls": "",
    "service info": "NONE",
    "service stats": "",
    "service ping": "",
    **{f"counter {name}": "ORDERS ORDERS.new" for name in ("get", "reset")},
    "counter ls": "ORDERS",
    "counter add": "ORDERS.new 1",
}
#: What does not connect to the server that is given.
ALONE = {"completion", "commands", "help", "errors ls", "errors lookup", "server run", "demo"}
ALONE |= {"server check credential", *(name for name in LINES if name.startswith("context "))}
#: What goes on until it is ended.
ENDLESS = {"worker run", "reply", "bench sub"}
#: A context with everything that belongs to its own server.
SECRETS = {"user": "CANARY-user", "password": "CANARY-password", "inbox_prefix": "CANARY-inbox"}


class Relay:
    """A server of others: it passes on what clients send, and keeps it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listening.getsockname()[1]}"
        self.received = bytearray()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [client, server]
                for ends in ((client, server, self.received), (server, client, bytearray())):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for end in (self._listening, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def relay(nats_server: NatsServer) -> Iterator[Relay]:
    found = Relay(nats_server.port)
    yield found
    found.close()


def test_every_command_that_connects_is_here():
    """A new command has a line, or is known not to connect."""
    assert set(LEAVES) == LINES.keys() | MORE_LINES.keys() | ALONE
    assert not MORE_LINES.keys() & ALONE


@pytest.mark.matrix
@pytest.mark.parametrize("command", sorted((LINES.keys() | MORE_LINES.keys()) - ALONE))
def test_another_server_receives_no_secret(world, tmp_path, monkeypatch, relay, command):
    """A command with another server than that of the selected context connects without any part of its login."""
    home = Path(world["XDG_CONFIG_HOME"]) / "nats"
    fields = {"url": "nats://home.example.org:4222", **SECRETS}
    (home / "context" / "home.json").write_text(json.dumps(fields))
    (home / "context.txt").write_text("home")
    (tmp_path / "walked.py").write_text(
        "from jetstream_sync.workers import Worker\n"
        "worker = Worker(name='walked')\n"
        "@worker.handler(stream='ORDERS', consumer='W')\n"
        "def done(msg): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "walked", raising=False)
    line = {**LINES, **MORE_LINES}[command]
    words = [*command.split(), *line.format(tmp=tmp_path, worker="walked:worker").split()]
    variables = {**world, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    given = ("-s", relay.url, "--timeout", "1s")
    if command in ENDLESS:
        process = spawn_jsm(*words, *given, **variables)
        try:
            wait_until(lambda: relay.received.count(b"SUB ") or process.poll() is not None, 20)
        finally:
            process.terminate()
            process.communicate(timeout=20)
    else:
        result = run_jsm(*words, *given, **variables)
        assert b"CONNECT " in relay.received, result
    assert b"CANARY" not in relay.received


def test_a_named_context_sends_its_login(world, relay):
    """The walk above sees a login that is sent."""
    home = Path(world["XDG_CONFIG_HOME"]) / "nats"
    fields = {"url": "nats://home.example.org:4222", **SECRETS}
    (home / "context" / "home.json").write_text(json.dumps(fields))
    run_jsm("stream", "ls", "-s", relay.url, "--context", "home", **world)
    assert all(value.encode() in relay.received for value in SECRETS.values())
