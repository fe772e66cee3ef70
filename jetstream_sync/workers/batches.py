"""Processing of a batch of messages by one call of a handler; each message is settled by itself."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

from .context import Context
from .handler import DecodeError
from .leases import Delivery, lease_clock
from .logs import log, log_context
from .processing import Processor
from .retries import BatchError


class BatchProcessor(Processor):
    """Processes the messages of one handler in batches; several threads may call `process_batch`."""

    def process_batch(self, deliveries: Sequence[Delivery]) -> None:
        """Run the handler for the messages that can be handled, and settle all."""
        batch: list[Context] = []
        payloads: list[object] = []
        held: list[Delivery] = []
        now = lease_clock()
        for delivery in deliveries:
            context = self._context(delivery, now)
            if context is None:
                continue
            try:
                payloads.append(self.handler.decoded(delivery.msg.data))
            except DecodeError as error:
                self._failed(delivery, error)
                continue
            batch.append(context)
            held.append(delivery)
        if not batch:
            return
        now = lease_clock()
        give_up_at = now + self.handler.timeout
        for delivery in held:
            delivery.thread = threading.get_ident()
            delivery.give_up_at = give_up_at
            self._observer.started(delivery, now)
        log_context.set(held[0])
        failed: Mapping[int, BaseException] = {}
        alone = True
        try:
            self.handler.run_batch(payloads, batch, self._shared.middleware)
        except BatchError as error:
            wrong = sorted(set(error.errors) - set(range(len(batch))))
            failed = error.errors
            if wrong:
                text = f"{wrong[0]} in a BatchError is no index of a batch of {len(batch)} messages"
                failed = dict.fromkeys(range(len(batch)), IndexError(text))
        except BaseException as error:
            alone = False
            log.warning("%s: a batch of %d failed", self.handler.name, len(batch), exc_info=error)
            failed = dict.fromkeys(range(len(batch)), error)
        for delivery in held:
            delivery.give_up_at = math.inf
            self._observer.returned(delivery)
        for index, (delivery, context) in enumerate(zip(held, batch, strict=True)):
            log_context.set(delivery)
            cause = failed.get(index)
            if cause is not None:
                self._failed(delivery, cause, traceback=alone)
            elif self._ack(delivery) or context.acked:
                self._observer.settled(delivery, "ack")
