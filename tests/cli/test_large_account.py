"""``jsm`` with a large account: 10,000 streams, 5,000 consumers and 100,000 keys."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.jsm import spawn_jsm
from fixtures.threads import SCALE

import jetstream_sync
from jetstream_sync.server import NatsServer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

STREAMS = int(os.environ.get("JETSTREAM_SYNC_LARGE_STREAMS", "10000"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the streams, every second one with a consumer, and a bucket."""
    with NatsServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream(timeout=60)

        def create(number: int) -> None:
            name = f"S{number:05}"
            stream = js.create_stream(name=name, subjects=[name], storage="memory")
            if number % 2:
                stream.create_consumer(durable_name="C")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, range(STREAMS)))
        js.create_key_value(bucket="KEYS", storage="memory")
        for number in range(10 * STREAMS):
            js.publish_async(f"$KV.KEYS.key.{number}", b"value")
        js.publish_async_completed(120)
        yield server.url


def used(url: str, *args: str) -> tuple[list[str], float]:
    """Return the lines of a command, and its processor time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with spawn_jsm(*args, NATS_URL=url, JSM_TIMEOUT="120s") as child:
        out, err = child.communicate()
    assert child.returncode == 0, err
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return out.decode().splitlines(), after.ru_utime - before.ru_utime


@pytest.mark.parametrize(
    ("args", "rows", "seconds"),
    [
        (("stream", "ls"), STREAMS, 3),
        (("stream", "ls", "--long", "--sort", "messages"), STREAMS, 3),
        (("stream", "ls", "-n"), STREAMS, 1),
        (("consumer", "ls", "-a"), STREAMS // 2, 5),
        (("kv", "ls", "KEYS"), 10 * STREAMS, 4),
        (("kv", "ls", "KEYS", "-v"), 10 * STREAMS, 6),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_cost_of_a_listing(url, args, rows, seconds):
    """Each item has a row, and the processor time is bounded."""
    lines, took = used(url, *args)
    titles = sum(line.split()[:1] in (["Name"], ["Key"], ["Stream"]) for line in lines)
    extra = titles + (1 if titles else 0)
    assert len(lines) == rows + extra
    assert took < seconds * SCALE
