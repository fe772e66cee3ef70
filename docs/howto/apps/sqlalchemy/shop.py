"""A worker with SQLAlchemy: a session per message, an inbox and an outbox."""

import contextvars
import logging
import os
import time
import uuid

from sqlalchemy import create_engine, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import jetstream_sync
from jetstream_sync.workers import Worker

log = logging.getLogger(__name__)

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
engine = create_engine(os.environ["DATABASE_URL"], pool_pre_ping=True)
current: contextvars.ContextVar[Session] = contextvars.ContextVar("current")


class Base(DeclarativeBase):
    """The tables."""


class Inbox(Base):
    """Messages whose handler has committed."""

    __tablename__ = "inbox"
    id: Mapped[str] = mapped_column(primary_key=True)


class Outbox(Base):
    """Messages to publish."""

    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(primary_key=True)
    subject: Mapped[str]
    payload: Mapped[bytes]
    msg_id: Mapped[str]


class Invoice(Base):
    """An invoice for an order."""

    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str]


def in_session(call, ctx):
    """Run a handler in a session, unless an earlier run for its message has committed."""
    with Session(engine) as session, session.begin():
        try:
            with session.begin_nested():
                session.execute(insert(Inbox).values(id=ctx.id))
        except IntegrityError:
            return None
        token = current.set(session)
        try:
            return call()
        finally:
            current.reset(token)


def publish_later(subject, payload):
    """Store a message in the transaction of the handler."""
    row = Outbox(subject=subject, payload=payload, msg_id=f"outbox/{uuid.uuid4().hex}")
    current.get().add(row)


def relay():
    """Publish the messages of the outbox, until the process is stopped."""
    while True:
        try:
            js = jetstream_sync.shared_connection(SERVERS, name="relay").jetstream()
            with Session(engine) as session, session.begin():
                waiting = select(Outbox).order_by(Outbox.id).limit(100)
                for row in session.scalars(waiting.with_for_update(skip_locked=True)):
                    js.publish(row.subject, row.payload, msg_id=row.msg_id)
                    session.delete(row)
        except (jetstream_sync.Error, SQLAlchemyError):
            log.exception("the outbox is not published, trying again")
        time.sleep(0.5)


worker = Worker(SERVERS, name="shop", dead_letters="DEAD", middleware=[in_session])


@worker.handler(
    stream="ORDERS", consumer="BILLING", filter_subject="ORDERS.received", decode="text"
)
def bill(number):
    """Write the invoice for an order, and publish that."""
    current.get().add(Invoice(number=number))
    publish_later("ORDERS.billed", number.encode())


if __name__ == "__main__":
    relay()
