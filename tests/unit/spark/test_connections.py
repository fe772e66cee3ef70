"""Connection settings that are sent to executors, and their secrets."""

from __future__ import annotations

import pickle
import sys
import traceback

import pytest

from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.options import TLSOptions
from jetstream_sync.spark.connections import (
    ConnectionSettings,
    EnvironmentSecret,
    FileSecret,
    SecretText,
)


def test_a_secret_never_prints():
    """A secret prints as three asterisks, and calling it returns the text."""
    secret = SecretText("hunter2")
    assert f"{secret} {secret!r} {secret!s} {[secret]}" == "*** *** *** [***]"
    assert format(secret) == "***"
    assert secret() == "hunter2"


def test_a_secret_prints_in_no_traceback():
    """An exception with a secret does not print it."""
    error = InvalidOptionError("password", SecretText("hunter2"), "is not good")
    assert "hunter2" not in "".join(traceback.format_exception(error))
    assert "***" in str(error)


def test_a_secret_can_be_pickled():
    """Pickling a secret keeps its text, and the copy is equal."""
    secret = SecretText("hunter2")
    again = pickle.loads(pickle.dumps(secret))
    assert again() == "hunter2"
    assert again == secret
    assert hash(again) == hash(secret)
    assert again != SecretText("other")


def test_logins_are_removed_from_urls():
    """URLs are shown without their login, but the client gets them unchanged."""
    urls = "nats://u:hunter2@one:4333, tls://token2@two"
    servers, logins = ConnectionSettings.split_login(urls)
    assert servers == ("nats://one:4333", "tls://two:4222")
    assert logins() == urls
    settings = ConnectionSettings(servers=servers, logins=logins)
    assert "hunter2" not in repr(settings)
    assert "token2" not in repr(settings)
    assert ConnectionSettings.split_login("one")[1] is None


def test_an_invalid_url_does_not_show_its_login():
    """The error for an invalid URL does not contain its login."""
    with pytest.raises(InvalidOptionError) as caught:
        ConnectionSettings.split_login("nats://u:hunter2@one:port")
    assert "hunter2" not in str(caught.value)


def test_settings_become_options_of_the_client():
    """Only settings that are set are passed to connect()."""
    settings = ConnectionSettings(
        user="u",
        password=SecretText("p"),
        tls_ca="ca.pem",
        tls_handshake_first=True,
        connect_timeout=3.0,
    )
    options = settings.connect_options()
    assert options["user"] == "u"
    assert options["password"]() == "p"
    assert options["tls"] == TLSOptions(ca_file="ca.pem")
    assert options["tls_handshake_first"] is True
    assert options["connect_timeout"] == 3.0
    assert "token" not in options
    assert "user_credentials" not in options
    assert ConnectionSettings(creds=SecretText("c")).connect_options()["user_credentials"]() == "c"
    assert ConnectionSettings(creds_file="f").connect_options()["user_credentials"] == "f"


def test_a_secret_from_an_environment_variable(monkeypatch):
    """The variable is read on use, in the connecting process; if it is missing, the error names it."""
    source = pickle.loads(pickle.dumps(EnvironmentSecret("passwordEnv", "ORDERS_PASSWORD")))
    monkeypatch.delenv("ORDERS_PASSWORD", raising=False)
    with pytest.raises(InvalidOptionError) as caught:
        source()
    assert caught.value.option == "passwordEnv"
    assert "ORDERS_PASSWORD" in str(caught.value)
    monkeypatch.setenv("ORDERS_PASSWORD", "hunter2")
    assert source() == "hunter2"


def test_a_secret_from_a_file(tmp_path):
    """The file is read on use, without the line end; an error reports a missing or empty file."""
    path = tmp_path / "token"
    source = pickle.loads(pickle.dumps(FileSecret("tokenFile", str(path))))
    for content in (None, "", "\n"):
        if content is not None:
            path.write_text(content)
        with pytest.raises(InvalidOptionError) as caught:
            source()
        assert caught.value.option == "tokenFile"
    path.write_text("hunter2\n")
    assert source() == "hunter2"


def test_a_file_distributed_by_spark_needs_spark(monkeypatch):
    """``sparkFile:NAME`` is resolved on use; without PySpark the error names the file."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    settings = ConnectionSettings(creds_file="sparkFile:orders.creds")
    with pytest.raises(InvalidOptionError) as caught:
        settings.connect_options()
    assert "orders.creds" in str(caught.value)
