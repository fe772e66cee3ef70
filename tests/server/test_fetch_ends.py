"""When a fetch ends: with which replies, and after how many requests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream, consumer_of

import jetstream_sync
from jetstream_sync import errors

NEXT = "$JS.API.CONSUMER.MSG.NEXT.S.C"
MESSAGE = "a message"
LOST = "the connection is lost"
EXPIRED = "408 Request Timeout\r\nNats-Pending-Messages: 1\r\nNats-Pending-Bytes: 0"
TOO_LARGE = "409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: "
NO_LEADER = "409 Leadership Change"
LIMIT = {"max_bytes": 1000, "timeout": 20}


@pytest.mark.parametrize(
    ("batch", "options", "said", "requests", "received"),
    [
        (2, {"timeout": 20}, [MESSAGE, MESSAGE], [2], 2),
        (2, {"timeout": 20}, [MESSAGE, EXPIRED], [2], 1),
        (2, {"timeout": 20}, [EXPIRED], [2], 0),
        (2, {"timeout": 20}, [MESSAGE, "409 Batch Completed"], [2], 1),
        (2, {"timeout": 20}, [MESSAGE, "409 Exceeded MaxWaiting"], [2], 1),
        (2, {"timeout": 20}, [MESSAGE, LOST, MESSAGE], [2, 1], 2),
        (2, {"timeout": 20}, [MESSAGE, NO_LEADER, MESSAGE], [2, 1], 2),
        (2, {"timeout": 20}, [NO_LEADER, LOST, EXPIRED], [2, 2, 2], 0),
        (3, {"timeout": None}, [MESSAGE, EXPIRED, MESSAGE, EXPIRED, MESSAGE], [3, 2, 1], 3),
        # The server counts the bytes of each request: the rest is not requested again.
        (5, LIMIT, [MESSAGE, TOO_LARGE + "900"], [5], 1),
        (5, LIMIT, [MESSAGE, LOST], [5], 1),
        (5, LIMIT, [MESSAGE, NO_LEADER], [5], 1),
        (5, {**LIMIT, "timeout": None}, [MESSAGE, EXPIRED], [5], 1),
        (5, LIMIT, [LOST, MESSAGE, TOO_LARGE + "900"], [5, 5], 1),
        (5, LIMIT, [LOST, TOO_LARGE + "900"], [5, 5], 0),
        (5, LIMIT, [TOO_LARGE + "1000"], [5], errors.RequestLimitError),
        (5, LIMIT, ["409 Exceeded MaxWaiting"], [5], errors.RequestLimitError),
    ],
)
def test_each_end_of_a_fetch(batch, options, said, requests, received):
    """It ends with its batch, at the end of its request, or when its bytes are used up; otherwise it goes on."""
    with FakeJetStream(lambda *_: None) as server, ThreadPoolExecutor(1) as pool:

        def reply_to(number: int) -> str:
            return server.wait_for(lambda sent: sent.subject == NEXT, number).rest

        nc = jetstream_sync.connect(server.url)
        try:
            fetched = pool.submit(consumer_of(nc).fetch, batch, **options)
            asked, reply = 1, reply_to(1)
            for number, item in enumerate(said, 1):
                if item == MESSAGE:
                    ack = f"$JS.ACK.S.C.1.{number}.{number}.1626845015078897000.0"
                    server.deliver(reply, b"data", ack)
                    continue
                if item == LOST:
                    nc.flush()  # the replies have arrived
                    server.hang_up()
                else:
                    server.deliver(reply, header=f"NATS/1.0 {item}\r\n\r\n".encode())
                if asked < len(requests):
                    asked += 1
                    reply = reply_to(asked)
            if isinstance(received, int):
                assert len(fetched.result(10)) == received
            else:
                with pytest.raises(received):
                    fetched.result(10)
        finally:
            nc.close()
    sent: list[Any] = [json.loads(item.body)["batch"] for item in server.published(NEXT)]
    assert sent == requests
