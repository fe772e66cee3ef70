"""Credentials: reading them, signing, and CONNECT."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import sys

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.protocol.auth import (
    BadCredentialsError,
    Credentials,
    Key,
    connect_command,
    find_jwt,
    find_seed,
    read_signature,
)
from jetstream_sync.protocol.parser import ServerInfo
from jetstream_sync.version import install_command

JWT = "eyJ0eXAi.eyJqdGki-_.c2ln"
# Made from the bytes 0 to 31 with the nkeys package.
SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
CREDS = f"""-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.
NKEYs are sensitive and should be treated as secrets.

-----BEGIN USER NKEY SEED-----
{SEED.decode()}
------END USER NKEY SEED------

*************************************************************
""".encode()


# --- what is in a file ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        CREDS,
        CREDS.replace(b"\n", b"\r\n"),
        CREDS.strip(),
        b"\n\n  " + CREDS,
        CREDS.replace(b"USER", b"USER OF MINE"),
        CREDS.partition(b"\n\n")[0],
        JWT.encode(),
        JWT.encode() + b"\r\n",
    ],
)
def test_a_jwt_is_found(content):
    """The JWT is between the first two lines of dashes, or it is the whole content."""
    assert find_jwt(content) == JWT
    assert find_jwt(bytearray(content)) == JWT


@pytest.mark.parametrize(
    "content",
    [
        b"",
        SEED,
        b"a.b",
        JWT.encode() + b"\n" + JWT.encode(),
        CREDS.replace(JWT.encode(), b"none"),
        CREDS.replace(JWT.encode(), b""),
        b"-----BEGIN NATS USER JWT-----\n" + JWT.encode(),
        "é.é.é".encode(),
        b"\xff\xfe\x00",
        b"-" * 65536,
        b"---\n" * 20000,
    ],
)
def test_an_invalid_jwt_is_refused_without_its_content(content):
    """The error does not repeat the content."""
    with pytest.raises(BadCredentialsError, match="^it contains no JWT$"):
        find_jwt(content)


@pytest.mark.parametrize(
    "content",
    [
        CREDS,
        CREDS.replace(b"\n", b"\r\n"),
        CREDS.strip(),
        CREDS[CREDS.index(b"***") :],
        SEED,
        b"\n  " + SEED + b" \r\n",
        b"# the seed of a user\n" + SEED + b"\n",
    ],
)
def test_a_seed_is_found(content):
    """The seed is in the second block of a creds file, or on a separate line."""
    assert find_seed(content) == SEED
    assert find_seed(bytearray(content)) == SEED


def wrong(seed):
    return seed[:20] + (b"A" if seed[20:21] != b"A" else b"B") + seed[21:]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it contains no nkey seed"),
        (JWT.encode(), "it contains no nkey seed"),
        (CREDS.partition(b"\n\n")[0], "it contains no nkey seed"),
        (b"\xff\x00", "it contains no nkey seed"),
        (b"-" * 65536, "it contains no nkey seed"),
        (SEED[:-1], "malformed"),
        (SEED + SEED, "malformed"),
        (CREDS.replace(SEED, b"SUBTLE"), "malformed"),
        (wrong(SEED), "checksum is wrong"),
        (CREDS.replace(SEED, wrong(SEED)), "checksum is wrong"),
        (nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT), "not that of a user"),
        (nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_OPERATOR), "not that of a user"),
    ],
)
def test_an_invalid_seed_is_refused_without_its_content(content, reason):
    """The error has the reason; neither it nor its cause repeats the content."""
    with pytest.raises(BadCredentialsError, match=reason) as caught:
        find_seed(content)
    seed = SEED.decode()
    shown = repr([caught.value, caught.value.__cause__, caught.value.__context__])
    assert seed[10:18] not in shown


# --- signing --------------------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32), st.text("azAZ09-_", min_size=1, max_size=16))
def test_a_key_signs_as_the_nkeys_package_verifies(raw, nonce):
    """The signature of the nonce verifies with the public key, and is URL-safe base64 without padding."""
    seed = nkeys.encode_seed(raw, nkeys.PREFIX_BYTE_USER)
    key = Key(find_seed(seed))
    signature = key.sign(nonce)
    assert not set("+/=") & set(signature)
    pair = nkeys.from_seed(seed)
    assert key.public == pair.public_key.decode()
    assert key.public.startswith("U")
    assert pair.verify(nonce.encode(), base64.urlsafe_b64decode(signature + "=="))


def test_a_wiped_key_cannot_be_used():
    """After `wipe()`, neither the seed nor the key can be used."""
    seed = find_seed(SEED)
    key = Key(seed)
    key.wipe()
    assert not any(seed)
    with pytest.raises(AttributeError):
        key.sign("nonce")


def test_without_nkeys_the_error_has_the_install_command(monkeypatch):
    """Without the nkeys package, the error has the install command."""
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(BadCredentialsError, match=re.escape(install_command("nkeys"))):
        Key(find_seed(SEED))


RAW = bytes(range(190, 254))  # with "+" and "/" in its base64


@pytest.mark.parametrize(
    "returned",
    [
        RAW,
        bytearray(RAW),
        base64.b64encode(RAW),
        bytearray(base64.b64encode(RAW)),
        base64.b64encode(RAW).decode(),
        base64.b64encode(RAW).rstrip(b"="),
        base64.encodebytes(RAW).replace(b"\n", b"") + b"\n",
        base64.urlsafe_b64encode(RAW),
        base64.urlsafe_b64encode(RAW).decode().rstrip("="),
    ],
)
def test_a_signature_may_come_in_several_forms(returned):
    """Base64 of nats-py, base64 of other clients and raw bytes are equivalent."""
    assert {*base64.b64encode(RAW)} >= {*b"+/"}
    assert read_signature(returned) == base64.urlsafe_b64encode(RAW).decode().rstrip("=")


@pytest.mark.parametrize(
    "returned",
    [
        None,
        5,
        "",
        b"",
        "s3cret",
        RAW[:-1],
        RAW.hex(),
        base64.b64encode(RAW[:-1]),
        "ä" * 64,
        "x" * 64,
        [RAW],
    ],
)
def test_an_invalid_signature_is_refused_without_its_content(returned):
    """The error does not repeat the invalid signature."""
    with pytest.raises(BadCredentialsError, match="^it did not return a signature") as caught:
        read_signature(returned)
    assert "s3cret" not in repr([caught.value, caught.value.__context__])


# --- CONNECT ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("credentials", "fields"),
    [
        (Credentials(), {}),
        (Credentials("u", ""), {"user": "u", "pass": ""}),
        (Credentials(token="t"), {"auth_token": "t"}),
        (Credentials(jwt="j", signature="s"), {"jwt": "j", "sig": "s"}),
        (Credentials(nkey="n", signature="s"), {"nkey": "n", "sig": "s"}),
    ],
)
def test_the_fields_are_those_of_the_protocol(credentials, fields):
    """Missing values are not in CONNECT; empty ones are."""
    command = connect_command({}, ServerInfo(), credentials, is_secure=False)
    made = json.loads(command.removeprefix(b"CONNECT "))
    others = {"headers": True, "no_responders": True, "tls_required": False}
    assert made == {**fields, **others}


def test_credentials_do_not_show():
    """Neither `repr` nor `str` shows a value."""
    credentials = Credentials(*["s3cret"] * 6)
    assert "s3cret" not in f"{credentials!r} {credentials}"
    assert all(not field.repr for field in dataclasses.fields(credentials))
