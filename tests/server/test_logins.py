"""Logins: every kind that a server accepts, and the errors without a valid one."""

from __future__ import annotations

import base64
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fixtures.jwt import Operator, User
from fixtures.proxy import Listener

import jetstream_sync
from jetstream_sync import AuthorizationError, Connection, CredentialsError
from jetstream_sync.server import NatsServer
from jetstream_sync.version import install_command

NKEY_USER = User()


@pytest.fixture(scope="module")
def nkey_server() -> Iterator[NatsServer]:
    """A server with one nkey user and one user with a password."""
    config = f"""authorization {{ users: [
        {{ nkey: {NKEY_USER.public} }}, {{ user: "u", password: "open sesame" }}
    ] }}"""
    with NatsServer(name="nkeys", config=config) as server:
        yield server


@pytest.fixture(scope="module")
def token_server() -> Iterator[NatsServer]:
    """A server that requires a token."""
    with NatsServer(name="token", config='authorization { token: "open sesame" }') as server:
        yield server


def works(nc: Connection) -> bool:
    """Return whether a message makes a round trip; close the connection."""
    with nc, nc.subscribe("echo.test") as sub:
        nc.publish("echo.test", b"hello")
        return sub.next_msg(timeout=5).data == b"hello"


def shown(error: BaseException) -> str:
    """Return the text of an error as a log shows it, with its causes."""
    return "".join(traceback.format_exception(error)) + repr(error)


def raises(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises."""

    def function(*_: object) -> Any:
        raise error

    return function


def test_a_key_may_come_with_a_user():
    """A key and a user are sent together, as an auth callout may require."""
    with Listener(lambda peer: said.append(peer.handshake(nonce="abc"))) as listener:
        said: list[dict[str, object]] = []
        options = {"user": "u", "password": "p", "nkeys_seed_str": NKEY_USER.seed}
        jetstream_sync.connect(listener.url, **options).close()
    assert (said[0]["user"], said[0]["pass"]) == ("u", "p")
    assert said[0]["nkey"] == NKEY_USER.public
    assert said[0]["sig"]


# --- user, password, token ------------------------------------------------------------------------


def test_a_user_with_a_password_given_by_functions(nkey_server):
    """Both may be functions, which are called once for each link."""
    asked = []

    def tell(what: str) -> Callable[[], str]:
        return lambda: asked.append(what) or what

    options = {"user": tell("u"), "password": tell("open sesame")}
    assert works(jetstream_sync.connect(nkey_server.url, **options))
    assert asked == ["u", "open sesame"]
    assert works(jetstream_sync.connect(nkey_server.url, **options))
    assert asked == ["u", "open sesame"] * 2


@pytest.mark.parametrize("token", ["open sesame", lambda: "open sesame"])
def test_a_token(token_server, token):
    """A token is text, or a function that returns it."""
    assert works(jetstream_sync.connect(token_server.url, token=token))


def test_a_login_in_the_url_comes_first(token_server, nkey_server):
    """With a login in the URL the functions of the options are not called."""
    url = token_server.url.replace("//", "//open%20sesame@")
    refuse = raises(AssertionError("it was called"))
    assert works(jetstream_sync.connect(url, token=refuse))
    assert works(jetstream_sync.connect(url, user_credentials="/nowhere"))
    assert works(jetstream_sync.connect(url, nkeys_seed="/nowhere"))
    assert works(jetstream_sync.connect(url, user_jwt_cb=refuse, signature_cb=refuse))
    url = nkey_server.url.replace("//", "//u:open%20sesame@")
    assert works(jetstream_sync.connect(url, nkeys_seed_str=refuse))


# --- nkeys ----------------------------------------------------------------------------------------


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    path = tmp_path / "user.nk"
    path.write_text(f"{NKEY_USER.seed}\n")
    return path


def test_a_seed_as_text_or_function(nkey_server):
    """The seed may be given as text or by a function."""
    assert works(jetstream_sync.connect(nkey_server.url, nkeys_seed_str=NKEY_USER.seed))
    assert works(jetstream_sync.connect(nkey_server.url, nkeys_seed_str=f" {NKEY_USER.seed}\n"))
    assert works(jetstream_sync.connect(nkey_server.url, nkeys_seed_str=lambda: NKEY_USER.seed))


def test_a_seed_in_a_file(nkey_server, seed_file, monkeypatch):
    """The path may be a string or a path object, and start with ``~``."""
    assert works(jetstream_sync.connect(nkey_server.url, nkeys_seed=seed_file))
    assert works(jetstream_sync.connect(nkey_server.url, nkeys_seed=str(seed_file)))
    monkeypatch.setenv("HOME", str(seed_file.parent))
    assert works(jetstream_sync.connect(nkey_server.url, nkeys_seed="~/user.nk"))


def test_a_public_key_and_a_function_that_signs(nkey_server):
    """The function gets the nonce as text."""
    nonces = []

    def sign(nonce: str) -> bytes:
        nonces.append(nonce)
        return base64.b64encode(NKEY_USER.sign(nonce.encode()))

    assert works(jetstream_sync.connect(nkey_server.url, nkey=NKEY_USER.public, signature_cb=sign))
    (nonce,) = nonces
    assert type(nonce) is str
    assert nonce


def test_a_server_that_wants_no_key_is_not_sent_a_signature(nats_server, seed_file):
    """Without a nonce nothing is signed, and the login works."""
    refuse = raises(AssertionError("it was called"))
    options = {"nkey": NKEY_USER.public, "signature_cb": refuse}
    assert works(jetstream_sync.connect(nats_server.url, **options))
    assert works(jetstream_sync.connect(nats_server.url, nkeys_seed=seed_file))


# --- JWTs -----------------------------------------------------------------------------------------


def test_a_creds_file(jwt_server, operator, tmp_path):
    """One file has everything; its path may be a string or a path object."""
    path = operator.creds(tmp_path)
    assert works(jetstream_sync.connect(jwt_server.url, user_credentials=path))
    assert works(jetstream_sync.connect(jwt_server.url, user_credentials=str(path)))


def test_jwt_and_seed_may_be_in_two_files(jwt_server, operator, tmp_path):
    """They may contain the JWT or seed only, or be creds files."""
    user = User()
    jwt = operator.account.user(user)
    plain = tmp_path / "user.jwt", tmp_path / "user.nk"
    plain[0].write_text(jwt + "\n")
    plain[1].write_text(user.seed + "\n")
    assert works(jetstream_sync.connect(jwt_server.url, user_credentials=plain))
    creds = tmp_path / "user.creds"
    creds.write_text(user.creds(jwt))
    for pair in [(creds, plain[1]), (plain[0], creds), (str(creds), creds)]:
        assert works(jetstream_sync.connect(jwt_server.url, user_credentials=pair))


@pytest.mark.parametrize("as_it_is", [str, str.encode], ids=["str", "bytes"])
def test_a_function_may_return_the_content_of_a_creds_file(jwt_server, operator, as_it_is):
    """It is called once for each link, and returns text or bytes."""
    asked = []

    def creds() -> str | bytes:
        asked.append(None)
        user = User()
        return as_it_is(user.creds(operator.account.user(user)))

    for times in (1, 2):
        assert works(jetstream_sync.connect(jwt_server.url, user_credentials=creds))
        assert len(asked) == times


@pytest.mark.parametrize("as_it_is", [str, str.encode, lambda text: bytearray(text.encode())])
def test_functions_may_provide_the_jwt_and_the_signature(jwt_server, operator, as_it_is):
    """With a signing function the client never sees the key."""
    user = User()
    assert works(
        jetstream_sync.connect(
            jwt_server.url,
            user_jwt_cb=lambda: as_it_is(operator.account.user(user)),
            signature_cb=lambda nonce: base64.b64encode(user.sign(nonce.encode())),
        )
    )


def test_a_bearer_token_needs_no_signature(jwt_server, operator):
    """Without a signing function only the JWT is sent."""
    user = User()
    assert works(
        jetstream_sync.connect(
            jwt_server.url, user_jwt_cb=lambda: operator.account.user(user, bearer=True)
        )
    )
    with pytest.raises(AuthorizationError):
        jetstream_sync.connect(jwt_server.url, user_jwt_cb=lambda: operator.account.user(user))


# --- what the server refuses ----------------------------------------------------------------------


def test_the_server_refuses_the_wrong_key(nkey_server, jwt_server, operator):
    """A wrong key is an `AuthorizationError` at once, whether it is known or not."""
    with pytest.raises(AuthorizationError, match="Authorization Violation"):
        jetstream_sync.connect(nkey_server.url, nkeys_seed_str=User().seed)
    with pytest.raises(AuthorizationError, match="Authorization Violation"):
        jetstream_sync.connect(
            nkey_server.url,
            nkey=NKEY_USER.public,
            signature_cb=lambda nonce: User().sign(nonce.encode()),
        )
    other = User().creds(operator.account.user(User()))
    with pytest.raises(AuthorizationError, match="Authorization Violation"):
        jetstream_sync.connect(jwt_server.url, user_credentials=lambda: other)
    forged = Operator()
    with pytest.raises(AuthorizationError, match="Authorization Violation"):
        user = User()
        jetstream_sync.connect(
            jwt_server.url, user_credentials=lambda: user.creds(forged.account.user(user))
        )


def test_an_expired_jwt_is_refused(jwt_server, operator, tmp_path):
    """An expired JWT is refused like an invalid one."""
    path = operator.creds(tmp_path, issued=1_500_000_000, lifetime=timedelta(days=1))
    with pytest.raises(AuthorizationError, match="Authorization Violation"):
        jetstream_sync.connect(jwt_server.url, user_credentials=path)


# --- invalid logins -------------------------------------------------------------------------------

GARBAGE = [b"", b"c4nary\n", b"\xff\xfe c4nary", b"c4nary" * 100_000]


@pytest.mark.parametrize("content", GARBAGE, ids=["empty", "words", "bytes", "much"])
@pytest.mark.parametrize("option", ["user_credentials", "nkeys_seed"])
def test_a_file_without_credentials_is_named_without_its_contents(
    nkey_server, tmp_path, option, content
):
    """The error names the option, the path and the problem, without contents of the file."""
    path = tmp_path / "login"
    path.write_bytes(content)
    with pytest.raises(CredentialsError) as caught:
        jetstream_sync.connect(nkey_server.url, **{option: path})
    error = caught.value
    assert (error.option, error.value) == (option, str(path))
    assert "c4nary" not in shown(error)
    assert str(path) in str(error)


@pytest.mark.parametrize("option", ["user_credentials", "nkeys_seed"])
def test_an_unreadable_file(nkey_server, tmp_path, option):
    """The error names the option, the path and the reason; the system's error is its cause."""
    for path, reason in [(tmp_path / "none", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(CredentialsError, match=reason) as caught:
            jetstream_sync.connect(nkey_server.url, **{option: path})
        assert (caught.value.option, caught.value.value) == (option, str(path))
        assert isinstance(caught.value.__cause__, OSError)


def test_the_error_names_the_wrong_one_of_two_files(jwt_server, operator, tmp_path):
    """The path in the error tells which of the two files is wrong."""
    user = User()
    jwt, seed = tmp_path / "user.jwt", tmp_path / "user.nk"
    jwt.write_text(operator.account.user(user))
    seed.write_text(user.seed)
    for pair, wrong in [((seed, seed), seed), ((jwt, jwt), jwt), ((jwt, tmp_path), tmp_path)]:
        with pytest.raises(CredentialsError) as caught:
            jetstream_sync.connect(jwt_server.url, user_credentials=pair)
        assert caught.value.value == str(wrong)


FUNCTIONS = ["user", "password", "token", "nkeys_seed_str", "user_credentials"]
FUNCTIONS += ["user_jwt_cb", "signature_cb"]


def options_with(option: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return options with a function, and the other options that it needs."""
    others = {"password": {"user": "u"}, "signature_cb": {"nkey": NKEY_USER.public}}
    return {option: function, **others.get(option, {})}


@pytest.mark.parametrize("option", FUNCTIONS)
@pytest.mark.parametrize("error", [RuntimeError("why"), OSError(5, "why")])
def test_a_function_that_raises(nkey_server, option, error):
    """Its error is the cause of one that names the option."""
    with pytest.raises(CredentialsError, match=f"raised {type(error).__name__}") as caught:
        jetstream_sync.connect(nkey_server.url, **options_with(option, raises(error)))
    assert caught.value.option == option
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("option", FUNCTIONS)
@pytest.mark.parametrize("returned", [None, "c4nary", b"c4nary\xff"])
def test_a_function_that_returns_something_else(nkey_server, option, returned):
    """The error names the option without the value, which may be a wrong password."""
    with pytest.raises((CredentialsError, AuthorizationError)) as caught:
        jetstream_sync.connect(nkey_server.url, **options_with(option, lambda *_: returned))
    assert "c4nary" not in shown(caught.value)
    if isinstance(caught.value, CredentialsError):
        assert caught.value.option == option
    else:
        assert isinstance(returned, str)
        assert option in {"user", "password", "token"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_a_callback_may_raise_system_exit_while_connecting(nkey_server, error):
    """SystemExit from a callback during connecting is not swallowed."""
    with pytest.raises(type(error)) as caught:
        jetstream_sync.connect(nkey_server.url, token=raises(error))
    assert caught.value is error


def test_without_the_nkeys_package(nkey_server, seed_file, monkeypatch):
    """The error says what to install; logins without a key work."""
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(CredentialsError, match=re.escape(install_command("nkeys"))) as caught:
        jetstream_sync.connect(nkey_server.url, nkeys_seed=seed_file)
    assert caught.value.option == "nkeys_seed"
    assert works(jetstream_sync.connect(nkey_server.url, user="u", password="open sesame"))
    assert works(
        jetstream_sync.connect(
            nkey_server.url,
            nkey=NKEY_USER.public,
            signature_cb=lambda nonce: NKEY_USER.sign(nonce.encode()),
        )
    )
