"""The TLS context: existing and missing files, and passwords."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from fixtures.layers import authority

from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.net.tls import make_context
from jetstream_sync.options import TLSOptions

PASSWORD = "open-sesame-4711"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with certificates, keys and an encrypted key."""
    own = authority().issue_cert("client@example.com")
    authority().cert_pem.write_to_path(tmp_path / "ca.pem")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    other = authority().issue_cert("other@example.com")
    other.private_key_pem.write_to_path(tmp_path / "other-key.pem")
    key = load_pem_private_key(own.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD.encode())
    )
    (tmp_path / "locked.pem").write_bytes(locked)
    (tmp_path / "text.pem").write_text("no certificate\n")
    return tmp_path


def test_without_options_the_system_is_trusted():
    """The name of the server is checked."""
    for tls in (None, True):
        context = make_context(tls)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_given_context_is_used_unchanged():
    """A given context is used unchanged."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert make_context(context) is context


def test_own_authorities_replace_those_of_the_system(files):
    """A given CA replaces the system's."""
    context = make_context(TLSOptions(ca_file=files / "ca.pem"))
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    "given",
    [
        {"cert_file": "cert.pem", "key_file": "key.pem"},
        {"cert_file": "both.pem"},
        {"cert_file": "cert.pem", "key_file": "locked.pem", "key_password": PASSWORD},
        {"cert_file": "cert.pem", "key_file": "locked.pem", "key_password": lambda: PASSWORD},
        # If the key is not encrypted, the password is ignored.
        {"cert_file": "both.pem", "key_password": "unused"},
    ],
    ids=["two files", "one file", "password", "function", "unused"],
)
def test_the_key_of_a_client_certificate_is_loaded(files, given):
    """Its key is in the same file or in another one, encrypted or not."""
    make_context(options(files, given))


def options(files: Path, given: dict[str, Any]) -> TLSOptions:
    paths = {name: files / value for name, value in given.items() if name.endswith("_file")}
    return TLSOptions(**{**given, **paths})


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"ca_file": "missing.pem"}, "ca_file"),
        ({"ca_file": "text.pem"}, "ca_file"),
        ({"cert_file": "cert.pem", "key_file": "missing.pem"}, "key_file"),
        ({"cert_file": "text.pem", "key_file": "key.pem"}, "cert_file"),
        ({"cert_file": "cert.pem", "key_file": "other-key.pem"}, "key_file"),
        ({"cert_file": "cert.pem", "key_file": "locked.pem"}, "key_password"),
        (
            {"cert_file": "cert.pem", "key_file": "locked.pem", "key_password": "wrong"},
            "key_password",
        ),
        (
            {"cert_file": "cert.pem", "key_file": "locked.pem", "key_password": "x" * 2000},
            "key_password",
        ),
    ],
)
def test_the_error_names_the_invalid_option(files, given, option, capfd):
    """An invalid option is an InvalidOptionError with its name, without a prompt."""
    with pytest.raises(InvalidOptionError) as caught:
        make_context(options(files, given))
    assert caught.value.option == option
    password = given.get("key_password")
    assert password is None or password not in str(caught.value)
    assert capfd.readouterr() == ("", "")
