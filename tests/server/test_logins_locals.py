"""No login appears in the locals of the package that a report of an error shows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from fixtures.jwt import Account, User
from fixtures.proxy import Listener, ScriptedPeer, black_hole

import jetstream_sync
from jetstream_sync import shared_connection
from jetstream_sync.options import TLSOptions
from jetstream_sync.workers import Worker

CANARY = "CaNaRyInTheMine"
USER = User()
JWT = Account().user(USER)
CREDS = USER.creds(JWT)
SECRETS = (CANARY, CANARY.lower(), USER.seed[4:20], JWT[-40:], JWT.split(".")[1][:40])
SECRETS += (base64.b64encode(CANARY.encode()).decode()[:-4],)
INFO = b'INFO {"nonce": "bm9uY2U", "auth_required": true, "headers": true}\r\n'


class Login(str, Enum):
    """A password that a program keeps in an enum."""

    PASSWORD = CANARY


def data(secret: str) -> str:
    return "data:;base64," + base64.b64encode(secret.encode()).decode()


def words() -> str:
    return f"{CANARY}\n---\n{CANARY}\n---{CANARY}---\n"


def logins(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return servers and options with a secret in every place, valid and invalid ones."""
    (folder / "user.creds").write_text(CREDS)
    (folder / "words").write_text(words())
    (folder / "half").write_text(CREDS.replace(USER.seed, f"SU{CANARY.upper()}"))
    context = folder / "nats" / "context"
    context.mkdir(parents=True)
    for number, fields in enumerate(
        [
            {"user": "u", "password": CANARY},
            {"token": data(CANARY)},
            {"token": f"data:;base64,{CANARY}!"},
            {"user_jwt": JWT, "user_seed": USER.seed},
            {"user_jwt": JWT, "user_seed": data(words())},
            {"creds": data(CREDS)},
            {"nkey": data(USER.seed)},
            {"password": CANARY, "user": "u", "nsc": "x"},
            {"user": "u", "password": [CANARY]},
            {"url": f"nats://u:{CANARY}@127.0.0.1:x"},
        ]
    ):
        (context / f"c{number}.json").write_text(json.dumps(fields))
        yield "", {"context": f"c{number}"}
    for url in ("u:{}@127.0.0.1:", "{}@127.0.0.1:", "u:{}#@127.0.0.1:", "{}/@h:", "u:{} @h:"):
        yield url.format(CANARY), {}
    for options in (
        {"user": "u", "password": CANARY},
        {"user": "u", "password": Login.PASSWORD},
        {"user": "u", "password": f"{CANARY}\ud800"},
        {"user": "u", "password": lambda: CANARY},
        {"user": "u", "password": CANARY.encode()},
        {"pasword": CANARY},
        {"password": CANARY},
        {"token": CANARY},
        {"token": CANARY.encode},
        {"user_credentials": folder / "user.creds"},
        {"user_credentials": folder / "words"},
        {"user_credentials": folder / "half"},
        {"user_credentials": CREDS},
        {"user_credentials": lambda: CREDS},
        {"user_credentials": words},
        {"nkeys_seed": folder / "half"},
        {"nkeys_seed": USER.seed},
        {"nkeys_seed_str": USER.seed},
        {"nkeys_seed_str": CANARY},
        {"nkeys_seed_str": lambda: USER.seed},
        {"user_jwt_cb": lambda: JWT, "signature_cb": lambda nonce: USER.sign(nonce.encode())},
        {"user_jwt_cb": lambda: CANARY},
        {"nkey": USER.public, "signature_cb": lambda _: CANARY},
        {"ws_connection_headers": {"Authorization": f"Bearer {CANARY}"}},
        {"ws_connection_headers": {"Authorization": [f"Bearer {CANARY}", "a\nb"]}},
    ):
        yield "", options


def locals_of(error: BaseException) -> Iterator[tuple[str, str]]:
    """Return the place and the ``repr`` of each local of the package in the frames of an error and its causes."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        failed = todo.pop()
        if failed is None or id(failed) in seen:
            continue
        seen.add(id(failed))
        yield type(failed).__name__, f"{failed!r} {failed}"
        todo += [failed.__cause__, failed.__context__]
        step = failed.__traceback__
        while step is not None:
            module = step.tb_frame.f_globals["__name__"]
            if module.startswith("jetstream_sync"):
                for name, value in step.tb_frame.f_locals.items():
                    yield f"{module}.{step.tb_frame.f_code.co_name}: {name}", repr(value)
            step = step.tb_next


def check_fails(call: Callable[[], object], what: object) -> None:
    """Assert that a call fails and that no local shows a secret."""
    with pytest.raises((jetstream_sync.Error, OSError)) as caught:
        call()
    for place, text in locals_of(caught.value):
        for secret in SECRETS:
            assert secret not in text, f"{what}: {place}: {text}"


def refuses(peer: ScriptedPeer) -> None:
    peer.send(INFO)
    peer.line()
    peer.send(b"-ERR 'Authorization Violation'\r\n")
    peer.close()


def is_silent(peer: ScriptedPeer) -> None:
    peer.send(INFO)
    peer.line()


def hangs_up(peer: ScriptedPeer) -> None:
    peer.close()


def wants_tls(peer: ScriptedPeer) -> None:
    peer.send(b'INFO {"tls_required": true, "nonce": "bm9uY2U"}\r\n')
    peer.close()


@pytest.mark.parametrize("play", [refuses, is_silent, hangs_up, wants_tls])
@pytest.mark.parametrize("connect", [jetstream_sync.connect, shared_connection])
def test_a_server_that_refuses(tmp_path, monkeypatch, play, connect):
    """A refused login, a silent server, a lost connection, and TLS that fails."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with Listener(play) as server:
        for url, options in logins(tmp_path):
            place = f"nats://{url or '127.0.0.1:'}{server.port}"
            if "context" in options:
                path = tmp_path / "nats" / "context" / f"{options['context']}.json"
                path.write_text(json.dumps({"url": place, **json.loads(path.read_text())}))
                servers = None
            else:
                servers = place
            check_fails(
                lambda servers=servers, options=options: connect(
                    servers, connect_timeout=0.1, **options
                ),
                options or url,
            )


def test_servers_that_cannot_be_reached(tmp_path, monkeypatch):
    """Refused connections, silence, TLS and WebSockets that are not spoken there, and keys that do not open."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cert = tmp_path / "cert.pem"
    cert.write_text(f"-----BEGIN CERTIFICATE-----\n{CANARY}\n")
    headers = {"Authorization": CANARY}
    with black_hole() as hole, Listener(refuses) as server:
        for port in (1, hole.getsockname()[1], server.port):
            for scheme in ("nats", "tls", "ws", "wss"):
                url = f"{scheme}://u:{CANARY}@127.0.0.1:{port}"
                for servers in (url, [url], url + "," + url):
                    check_fails(
                        lambda servers=servers: jetstream_sync.connect(
                            servers, connect_timeout=0.1, ws_connection_headers=headers
                        ),
                        url,
                    )
        url = f"tls://127.0.0.1:{server.port}"
        for password in (CANARY, lambda: CANARY):
            tls = TLSOptions(cert_file=cert, key_password=password)
            check_fails(lambda tls=tls: jetstream_sync.connect(url, tls=tls), "key_password")
    check_fails(lambda: TLSOptions(key_password=CANARY), "TLSOptions")


def test_workers():
    """The connection of a worker."""
    connection: Any = {"user": "u", "password": CANARY}
    worker = Worker(f"nats://u:{CANARY}@127.0.0.1:1", name="masked", connection=connection)

    @worker.task()
    def work() -> None: ...

    check_fails(work.delay, "delay")
    check_fails(worker.setup, "setup")
