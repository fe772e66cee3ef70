"""Certificate files for servers and clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from fix_threads import SCALE, within

from jetstream_sync.options import TLSOptions
from jetstream_sync.server.runtime import reserve_port

if TYPE_CHECKING:
    from jetstream_sync import Connection

__all__ = ["Certificates", "certificates", "connect", "echoes", "free_port", "refused"]

_BIG = bytes(range(256)) * 3000


@dataclass(frozen=True)
class Certificates:
    """A certificate authority and its certificates, in a directory."""

    directory: Path
    authority: trustme.CA

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        made = cls(directory, trustme.CA())
        made.authority.cert_pem.write_to_path(directory / "ca.pem")
        trustme.CA().cert_pem.write_to_path(directory / "other-ca.pem")
        past = datetime(2020, 1, 1, tzinfo=timezone.utc)
        for name, issued in {
            "server": made.authority.issue_cert("localhost", "127.0.0.1"),
            "elsewhere": made.authority.issue_cert("elsewhere.example"),
            "expired": made.authority.issue_cert("localhost", "127.0.0.1", not_after=past),
            "client": made.authority.issue_cert("client@example.com", common_name="client"),
            "stranger": trustme.CA().issue_cert("client@example.com", common_name="client"),
            "outdated": made.authority.issue_cert("client@example.com", not_after=past),
        }.items():
            issued.private_key_and_cert_chain_pem.write_to_path(directory / f"{name}.pem")
        return made

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def trusted(self, own: str | None = None) -> TLSOptions:
        """Return options that trust the authority, with a certificate of the client."""
        cert_file = None if own is None else self.path(own)
        return TLSOptions(ca_file=self.path("ca"), cert_file=cert_file)

    def server(self, name: str = "server", more: str = "") -> str:
        """Return the ``tls`` block of a nats-server."""
        return f'tls {{ cert_file: "{self.path(name)}", key_file: "{self.path(name)}", {more} }}'

    def verifying(self, more: str = "") -> str:
        """Return the ``tls`` block of a nats-server that verifies client certificates."""
        return self.server(more=f'verify: true, ca_file: "{self.path("ca")}", {more}')


@contextmanager
def refused(kind: type[Exception], text: str) -> Iterator[None]:
    """Assert that connecting fails far below the connect timeout, with exactly this kind of error."""
    with within(2.0), pytest.raises(kind, match=text) as caught:
        yield
    assert type(caught.value) is kind


def connect(url: str, **options: Any) -> Connection:
    import jetstream_sync

    return jetstream_sync.connect(url, connect_timeout=5 * SCALE, **options)


def echoes(nc: Connection) -> bool:
    """Return whether small and large messages make a round trip."""
    sub = nc.subscribe("fix.echo")
    for data in (b"small", _BIG, b""):
        nc.publish("fix.echo", data)
    return [sub.next_msg(timeout=5 * SCALE).data for _ in range(3)] == [b"small", _BIG, b""]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def free_port() -> Iterator[int]:
    """Return a free port outside the range that servers use for clients."""
    port, holder = reserve_port()
    yield port
    if holder is not None:
        holder.close()
