"""Logins of later links: what is read again, what expires, and when attempts stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.jwt import Operator, User
from fixtures.threads import wait_until
from typing_extensions import Self

import jetstream_sync
from jetstream_sync import Connection, ConnectionEvent, errors
from jetstream_sync.server import NatsServer

#: More attempts than fit into a test, with a short delay between them.
QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}


def nkey_server(user: User, port: int = 0) -> NatsServer:
    """A server that accepts one user."""
    config = f"authorization {{ users: [{{ nkey: {user.public} }}] }}"
    return NatsServer(name="nkey", port=port, jetstream=False, config=config)


def is_back(nc: Connection, reconnects: int) -> bool:
    return nc.is_connected and nc.stats["reconnects"] >= reconnects


# --- credentials are read again -------------------------------------------------------------------


def test_a_changed_file_is_used_for_the_next_link(tmp_path):
    """A file is read again for each link, so a key can change while the program runs."""
    before, after = User(), User()
    seed = tmp_path / "user.nk"
    seed.write_text(before.seed)
    with nkey_server(before) as server:
        nc = jetstream_sync.connect(server.url, nkeys_seed=seed, **QUICK)
        port = server.port
    seed.write_text(after.seed)
    with nkey_server(after, port), nc:
        wait_until(lambda: is_back(nc, 1))


def test_a_file_that_is_missing_for_a_while(tmp_path):
    """The error is reported once, and the attempts continue until the file exists."""
    user = User()
    seed = tmp_path / "user.nk"
    seed.write_text(user.seed)
    reported: SimpleQueue[Exception] = SimpleQueue()
    with nkey_server(user) as server:
        nc = jetstream_sync.connect(server.url, nkeys_seed=seed, error_cb=reported.put, **QUICK)
        with nc:
            seed.unlink()
            server.restart()
            error = reported.get(timeout=5)
            assert isinstance(error, errors.CredentialsError)
            assert (error.option, error.value) == ("nkeys_seed", str(seed))
            seed.write_text("garbage")
            error = reported.get(timeout=5)
            assert "no nkey seed" in str(error)
            seed.write_text(user.seed)
            wait_until(lambda: is_back(nc, 1))
    assert reported.empty()


class UncommonError(BaseException):
    """An exception that no handler of `Exception` catches."""


@pytest.mark.parametrize("error", [RuntimeError("why"), SystemExit(1), UncommonError("why")])
def test_a_function_that_raises_while_the_link_is_mended(error):
    """Whatever it raises is reported, and the next attempt calls it again."""
    user = User()
    fails = False
    reported: SimpleQueue[Exception] = SimpleQueue()

    def seed() -> str:
        if fails:
            raise error
        return user.seed

    with nkey_server(user) as server:
        nc = jetstream_sync.connect(server.url, nkeys_seed_str=seed, error_cb=reported.put, **QUICK)
        with nc:
            fails = True
            server.restart()
            told = reported.get(timeout=5)
            assert isinstance(told, errors.CredentialsError)
            assert told.option == "nkeys_seed_str"
            assert told.__cause__ is error
            fails = False
            wait_until(lambda: is_back(nc, 1))


def test_a_function_may_use_the_connection():
    """It runs without a lock, so calls that do not wait for the server work."""
    user = User()
    started: list[Connection] = []
    asked: SimpleQueue[tuple[object, ...]] = SimpleQueue()

    def seed() -> str:
        for nc in started:
            sub = nc.subscribe("from.function")
            nc.publish("from.function", b"hello")
            asked.put((nc.status, nc.stats, nc.new_inbox(), nc.connected_url, sub))
        return user.seed

    with (
        nkey_server(user) as server,
        jetstream_sync.connect(server.url, nkeys_seed_str=seed, **QUICK) as nc,
    ):
        started.append(nc)
        server.restart()
        *_, sub = asked.get(timeout=5)
        assert sub.next_msg(timeout=5).data == b"hello"
        started.clear()


# --- expiry ---------------------------------------------------------------------------------------


class Ids:
    """Publishes numbered messages until stopped, and records the acknowledged ones."""

    def __init__(self, nc: Connection) -> None:
        self._js = nc.jetstream(timeout=5)
        self.acknowledged: list[int] = []
        self.failed: list[errors.Error] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                future = self._js.publish_async("numbers", b"%d" % number)
                self._js.publish("numbers", b"%d" % -number)
                self.acknowledged.append(-number)
                future.result(5)
                self.acknowledged.append(number)
            except errors.Error as error:
                self.failed.append(error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_fresh_credentials_when_a_jwt_runs_out(jwt_server, operator, tmp_path):
    """The connection returns with a valid JWT, and no acknowledged message is lost."""
    lifetime = timedelta(seconds=2)
    made = []
    events: SimpleQueue[ConnectionEvent] = SimpleQueue()

    def creds() -> str:
        user = User()
        made.append(user)
        return user.creds(operator.account.user(user, lifetime=lifetime))

    keeper = jetstream_sync.connect(jwt_server.url, user_credentials=operator.creds(tmp_path))
    stream = keeper.jetstream().create_stream(name="NUMBERS", subjects=["numbers"])
    nc = jetstream_sync.connect(
        jwt_server.url,
        user_credentials=creds,
        disconnected_cb=events.put,
        # A publish whose reply is lost with the link would wait for its whole timeout.
        fail_requests_on_disconnect=True,
        **QUICK,
    )
    with keeper, nc:
        with Ids(nc) as ids:
            wait_until(lambda: is_back(nc, 1), 8)
            event = events.get(timeout=5)
            assert isinstance(event.error, errors.AuthenticationExpiredError)
            before = len(ids.acknowledged)
            wait_until(lambda: len(ids.acknowledged) > before + 5, 10)
        nc.close()  # not in the middle of the next expiry
        assert len(made) >= 2
        count = stream.info().state.messages
        stored = {int(msg.data) for msg in stream.ordered_consumer().fetch(count, timeout=10)}
        assert set(ids.acknowledged) <= stored
        assert len(ids.acknowledged) > 5
        keeper.jetstream().delete_stream("NUMBERS")


def test_credentials_that_have_run_out_for_good(jwt_server, operator, tmp_path):
    """The same refusal twice from one server closes the connection; `last_error` has it."""
    creds = operator.creds(tmp_path, lifetime=timedelta(seconds=2))
    reported: SimpleQueue[Exception] = SimpleQueue()
    nc = jetstream_sync.connect(
        jwt_server.url, user_credentials=creds, error_cb=reported.put, **QUICK
    )
    with nc:
        wait_until(lambda: nc.is_closed, 8)
        assert isinstance(nc.last_error, errors.AuthorizationError)
        kinds = {type(reported.get(timeout=5)) for _ in range(2)}
        assert kinds <= {errors.AuthorizationError, errors.AuthenticationExpiredError}


@pytest.fixture
def own_operator() -> Iterator[tuple[Operator, NatsServer]]:
    """An operator and a server of this test alone."""
    operator = Operator()
    with NatsServer(name="own", config=operator.config()) as server:
        yield operator, server


def test_fresh_credentials_when_a_user_is_revoked(own_operator):
    """After a revocation the login is read again, as after an expiry."""
    operator, server = own_operator
    first, second, admin = User(), User(), User()
    users = [second, first]
    events: SimpleQueue[ConnectionEvent] = SimpleQueue()

    def creds() -> str:
        user = users.pop() if len(users) > 1 else users[0]
        return user.creds(operator.account.user(user))

    def admin_creds() -> str:
        return admin.creds(operator.system.user(admin))

    nc = jetstream_sync.connect(
        server.url, user_credentials=creds, disconnected_cb=events.put, **QUICK
    )
    with nc, jetstream_sync.connect(server.url, user_credentials=admin_creds) as system:
        account = operator.account_jwt(revocations={first.public: 2_000_000_000})
        system.request(
            f"$SYS.REQ.ACCOUNT.{operator.account.public}.CLAIMS.UPDATE", account.encode(), timeout=5
        )
        event = events.get(timeout=5)
        assert isinstance(event.error, errors.AuthenticationExpiredError)
        assert "Revoked" in str(event.error)
        wait_until(lambda: is_back(nc, 1))


def test_a_server_that_refuses_the_login_is_skipped():
    """A server that refuses the login once is skipped, and the other one is used."""
    user = User()
    with nkey_server(user) as good, nkey_server(User()) as bad:
        nc = jetstream_sync.connect(
            [bad.url, good.url], nkeys_seed_str=user.seed, dont_randomize=True, **QUICK
        )
        with nc:
            assert nc.connected_url == good.url


def test_the_first_connect_does_not_ask_twice():
    """At the first connect a server that refuses is asked once, and the error names it."""
    asked: list[Path] = []
    user = User()

    def seed() -> str:
        asked.append(Path())
        return user.seed

    with (
        nkey_server(User()) as server,
        pytest.raises(errors.AuthorizationError, match=str(server.port)),
    ):
        jetstream_sync.connect(server.url, nkeys_seed_str=seed)
    assert len(asked) == 1
