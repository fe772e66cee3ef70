"""No secret appears in an error, a log, an event, a trace or a pickle."""

from __future__ import annotations

import base64
import logging
import pickle
import secrets
import traceback
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fixtures.jwt import Account, User
from fixtures.proxy import Listener, ScriptedPeer, black_hole
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Connection, ConnectionStatus
from jetstream_sync.options import TLSOptions
from jetstream_sync.server import NatsServer

#: Part of every secret, and of nothing else, so that a leak is found.
CANARY = f"canary{secrets.token_hex(8)}"
USER = User()
JWT = Account().user(USER)
CREDS = USER.creds(JWT)
#: Texts that must not appear. A part of a key or JWT is a leak, too.
SECRET = [CANARY, CANARY.upper(), USER.seed[4:20], JWT[-40:], JWT.split(".")[1][:40]]
SECRET += [base64.b64encode(CANARY.encode()).decode()[:-4], CANARY.encode().hex()]


# --- sources of secrets ---------------------------------------------------------------------------


def tell_canary(*_: object) -> str:
    """Return a secret; a function that can be imported."""
    return CANARY


def tell_bytes(*_: object) -> bytes:
    return CANARY.encode()


def tell_seed() -> str:
    return USER.seed


def tell_creds() -> str:
    return CREDS


def tell_jwt() -> str:
    return JWT


def sign(nonce: str) -> bytes:
    return USER.sign(nonce.encode())


def written(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content)
    return path


def all_logins(folder: Path) -> dict[str, dict[str, Any]]:
    """Return options with a secret in every possible place, valid and invalid ones."""
    creds = written(folder, "user.creds", CREDS)
    seed = written(folder, "user.nk", USER.seed)
    jwt = written(folder, "user.jwt", JWT)
    slip = written(folder, "slip.nk", USER.seed[:-1] + ("A" if USER.seed[-1] != "A" else "B"))
    words = written(folder, "words", f"{CANARY}\n---\n{CANARY}\n---{CANARY}---\n")
    half = written(folder, "half", CREDS.replace(USER.seed, f"SU{CANARY.upper()}"))
    cert = written(folder, "cert.pem", f"-----BEGIN CERTIFICATE-----\n{CANARY}\n")
    public = {"nkey": USER.public}
    return {
        "password": {"user": "u", "password": CANARY},
        "password by function": {"user": "u", "password": tell_canary},
        "password of no str": {"user": "u", "password": tell_bytes},
        "user by function": {"user": str, "password": tell_canary},
        "token": {"token": CANARY},
        "token by function": {"token": tell_canary},
        "token of no str": {"token": tell_bytes},
        "creds file": {"user_credentials": creds},
        "two files": {"user_credentials": (jwt, seed)},
        "two files, mixed up": {"user_credentials": (seed, jwt)},
        "creds by function": {"user_credentials": tell_creds},
        "creds that are none": {"user_credentials": words},
        "creds with a bad seed": {"user_credentials": half},
        "creds of words by function": {"user_credentials": tell_canary},
        "creds of bytes by function": {"user_credentials": tell_bytes},
        "seed file": {"nkeys_seed": seed},
        "seed with a slip": {"nkeys_seed": slip},
        "seed of words": {"nkeys_seed": words},
        "seed": {"nkeys_seed_str": USER.seed},
        "seed by function": {"nkeys_seed_str": tell_seed},
        "no seed": {"nkeys_seed_str": CANARY},
        "no seed by function": {"nkeys_seed_str": tell_canary},
        "jwt by function": {"user_jwt_cb": tell_jwt},
        "jwt by function, signed": {"user_jwt_cb": tell_jwt, "signature_cb": sign},
        "jwt of words": {"user_jwt_cb": tell_canary, "signature_cb": sign},
        "jwt of bytes": {"user_jwt_cb": tell_bytes, "signature_cb": sign},
        "signature": {**public, "signature_cb": sign},
        "signature of words": {**public, "signature_cb": tell_canary},
        "signature of bytes": {**public, "signature_cb": tell_bytes},
        "key of TLS": {"tls": TLSOptions(cert_file=cert, key_file=cert, key_password=CANARY)},
        "key of TLS by function": {"tls": TLSOptions(cert_file=cert, key_password=tell_canary)},
        "headers": {"ws_connection_headers": {"Authorization": f"Bearer {CANARY}"}},
    }


# --- places where they might appear ---------------------------------------------------------------


class Watch(logging.Handler):
    """Records everything that a program, its log or its user could see."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: list[str] = []
        self.setFormatter(logging.Formatter("%(threadName)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))

    def saw(self, thing: object) -> None:
        """Record all representations of an object."""
        self.seen.append(f"{thing!r} {thing}")
        if isinstance(thing, BaseException):
            self.failed(thing)

    def failed(self, error: BaseException) -> None:
        """Record an error and its causes, whether they are displayed or not."""
        self.seen += traceback.format_exception(error)
        behind: BaseException | None = error
        todo = [behind]
        while todo:
            behind = todo.pop()
            if behind is not None:
                self.seen += [str(behind), repr(behind), repr(behind.args), repr(vars(behind))]
                with suppress(TypeError, pickle.PicklingError, AttributeError):
                    self.seen.append(repr(pickle.dumps(behind, 0)))
                todo += [behind.__cause__, behind.__context__]

    def options(self, login: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a login, with callbacks that record every event."""
        callbacks = ["error_cb", "disconnected_cb", "reconnected_cb", "closed_cb", "trace_cb"]
        return {**login, **dict.fromkeys(callbacks, self.saw)}

    def nothing_secret(self, what: str) -> None:
        """Assert that no record contains a secret."""
        for text in self.seen:
            for secret in SECRET:
                assert secret not in text, f"{what}: {text}"
        self.seen.clear()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Record the log at level DEBUG."""
    watching = Watch()
    root = logging.getLogger()
    level = root.level
    root.addHandler(watching)
    root.setLevel(logging.DEBUG)
    yield watching
    root.removeHandler(watching)
    root.setLevel(level)


def test_the_recorder_finds_secrets():
    """The recorder of these tests finds a secret where there is one."""
    error = ValueError(CANARY)
    hidden = KeyError("hidden")
    hidden.__context__ = error
    for thing in (error, hidden, [CANARY], {"x": JWT}):
        watching = Watch()
        watching.saw(thing)
        with pytest.raises(AssertionError):
            watching.nothing_secret("it")
    for one, other in combinations(SECRET, 2):
        assert one not in other


# --- failures -------------------------------------------------------------------------------------

INFO = b'INFO {"nonce": "bm9uY2U", "auth_required": true, "headers": true}\r\n'


def refuses(peer: ScriptedPeer) -> None:
    peer.send(INFO)
    peer.line()
    peer.send(b"-ERR 'Authorization Violation'\r\n")
    peer.close()


def hangs_up(peer: ScriptedPeer) -> None:
    peer.send(INFO)
    peer.line()
    peer.close()


def talks_http(peer: ScriptedPeer) -> None:
    peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    peer.close()


def talks_nonsense(peer: ScriptedPeer) -> None:
    peer.send(INFO)
    peer.line()
    peer.send(b"WHAT?\r\n")
    peer.close()


def wants_tls(peer: ScriptedPeer) -> None:
    peer.send(b'INFO {"tls_required": true, "nonce": "bm9uY2U"}\r\n')
    peer.close()


def lets_in_once(peer: ScriptedPeer) -> None:
    peer.handshake(nonce="bm9uY2U")
    peer.send(b"-ERR 'User Authentication Expired'\r\n")
    peer.close()


PLAYS = [refuses, hangs_up, talks_http, talks_nonsense, wants_tls, lets_in_once]


def tried(url: str, login: dict[str, Any], watch: Watch) -> None:
    """Connect, record the connection or the error, and close."""
    nc: Connection | None = None
    try:
        nc = jetstream_sync.connect(
            url,
            connect_timeout=0.2 * SCALE,
            reconnect_time_wait=0.01,
            max_reconnect_attempts=2,
            **watch.options(login),
        )
        for item in (nc, nc.status, nc.connected_url, nc.server_info, nc.stats):
            watch.saw(item)
        nc.publish("a", b"x")
        with suppress(jetstream_sync.Error):
            nc.flush(timeout=0.05)
        nc.close()
        wait_until(lambda: nc.status is ConnectionStatus.CLOSED)
        watch.saw(nc.last_error)
    except (jetstream_sync.Error, OSError) as error:
        watch.saw(error)
    finally:
        if nc is not None:
            nc.close()


@pytest.mark.matrix
@pytest.mark.parametrize("play", PLAYS)
def test_servers_that_refuse_the_login(tmp_path, watch, play):
    """Whatever a server does with the login, it appears nowhere."""
    with Listener(play) as server:
        for name, login in all_logins(tmp_path).items():
            tried(server.url, login, watch)
            watch.nothing_secret(name)


@pytest.mark.parametrize("scheme", ["tls", "ws", "wss"])
def test_servers_that_speak_something_else(tmp_path, watch, scheme):
    """With TLS or a WebSocket the login is not even sent, and appears nowhere."""
    logins = all_logins(tmp_path)
    with Listener(hangs_up) as server:
        for name in ("password", "creds file", "seed", "key of TLS", "headers"):
            tried(f"{scheme}://127.0.0.1:{server.port}", logins[name], watch)
            watch.nothing_secret(name)


def test_unreachable_servers(tmp_path, watch):
    """No server, or a silent one, makes no secret appear."""
    with black_hole() as hole:
        port = hole.getsockname()[1]
        tried(f"nats://u:{CANARY}@127.0.0.1:{port}", {}, watch)
        watch.nothing_secret("a black hole")
    for name, login in all_logins(tmp_path).items():
        tried(f"nats://127.0.0.1:{port}", login, watch)
        watch.nothing_secret(name)


def test_real_servers(tmp_path, watch, nats_server, jwt_server):
    """One server accepts every login, and two refuse unknown ones."""
    config = f"authorization {{ users: [{{ nkey: {User().public} }}] }}"
    with NatsServer(jetstream=False, config=config) as keys:
        for server in (nats_server, jwt_server, keys):
            for name, login in all_logins(tmp_path).items():
                tried(server.url, login, watch)
                watch.nothing_secret(f"{name} at {server.name}")


URLS = [
    f"nats://u:{CANARY}@127.0.0.1:{{port}}",
    f"nats://{CANARY}@127.0.0.1:{{port}}",
    f"tls://u:{CANARY}@127.0.0.1:{{port}}",
    f"ws://u:{CANARY}@127.0.0.1:{{port}}",
    f"wss://{CANARY}@127.0.0.1:{{port}}/path",
    f"nats://u:{quote('%' + CANARY, safe='')}@127.0.0.1:{{port}}",
    f"http://u:{CANARY}@h",
    f"nats://u:{CANARY}@h:port",
    f"nats://u:{CANARY}/x@h",
    f"nats://u:{CANARY} @h",
    f"nats://:{CANARY}@h",
    f"nats://u:p,{CANARY}@h:99999",
    f"u:{CANARY}@",
    f"nats://u:{CANARY}#@127.0.0.1:{{port}}",
    f"nats://u:[{CANARY}@127.0.0.1:{{port}}",
]


@pytest.mark.parametrize("play", [refuses, hangs_up, lets_in_once])
def test_logins_in_urls(watch, play):
    """Logins in URLs, valid and invalid, with servers that refuse them."""
    with Listener(play) as server:
        for url in URLS:
            tried(url.format(port=server.port), {}, watch)
            watch.nothing_secret(url)
