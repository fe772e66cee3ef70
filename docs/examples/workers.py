import jetstream_sync
from jetstream_sync.workers import Context, DeadLetters, Reject, Worker, group

with jetstream_sync.connect("nats://127.0.0.1:4222") as nc:
    js = nc.jetstream()
    js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
    subjects = ["REPORTS.*", "schedules.REPORTS.>"]
    js.create_stream(name="REPORTS", subjects=subjects, allow_msg_schedules=True)
    js.publish("ORDERS.new", b"tea")
    js.publish("ORDERS.new", b"")
worker = Worker("nats://127.0.0.1:4222", name="shop", dead_letters="DEAD")


def charge(number: int) -> str:
    return f"receipt {number}"


# --- Worker.handler
@worker.handler(stream="ORDERS", consumer="BILLING", concurrency=4)
def bill(order: bytes, ctx: Context) -> None:
    if not order:
        raise Reject("an empty order")
    print(ctx.id, order)


# --- Worker.batch
@worker.batch(stream="ORDERS", consumer="STATISTICS", max_messages=500, max_wait=0.5)
def count(orders: list[bytes]) -> None:
    print(len(orders), "orders")


# --- Worker.limit
worker.limit("smtp", 2)


@worker.handler(stream="ORDERS", consumer="MAIL", concurrency=8, limit="smtp")
def mail(order: bytes) -> None:
    print("two of these run at a time")


# --- Worker.on
@worker.on("failure")
def report(event):
    print(event.handler.name, event.error)


# --- Worker.schedule
@worker.schedule("daily-report", subject="REPORTS.daily", cron="0 5 * * *")
def report_payload() -> bytes:
    return b"{}"


# --- Worker.queue
worker.queue("mail", concurrency=2, rate="10/s")


# --- Worker.task
@worker.task(results="RESULTS")
def total(prices: list[float]) -> float:
    return sum(prices)


# --- Task.delay
call = total.delay([1.5, 2.5])  # stored; a worker calls the function

# --- Task.apply_async
later = total.apply_async(kwargs={"prices": [1.0]}, countdown=60, task_id="total-1")

# --- Task.call
both = group([total.call([1.0]), total.call([2.0])], then=total.call())  # sent by both.delay()


# --- Context.step
@worker.task(results="RESULTS", steps=True)
def order(ctx: Context, number: int) -> str:
    receipt = ctx.step(charge, number)  # recorded: a repeated run does not charge again
    return f"{receipt}, {ctx.step_id}"


# --- Context.gather
@worker.task(results="RESULTS", steps=True)
def invoice(ctx: Context) -> float:
    return sum(ctx.gather([total.call([1.0]), total.call([2.0])]))


# --- Context.sleep
@worker.task(results="RESULTS", steps=True)
def remind(ctx: Context, address: str) -> None:
    ctx.sleep(86400)  # no thread waits
    print("a mail to", address)


# --- Context.wait
@worker.task(results="RESULTS", steps=True)
def refund(ctx: Context, number: int) -> bool:
    return ctx.wait("approved", timeout=86400) == "yes"


# --- TaskResult.signal
with worker.eager():
    waiting = refund.delay(17)
    waiting.signal("approved", "yes")
    assert waiting.get() is True


# --- Context.progress
@worker.task(results="RESULTS")
def copy(ctx: Context, pages: int) -> None:
    for page in range(pages):
        ctx.progress(page + 1, pages, "pages")  # shown by 'jsm worker running'


# --- Worker.eager
with worker.eager():
    assert total.delay([1.5, 2.5]).get() == 4.0

# --- TaskResult.cancel
assert later.cancel()  # False: it runs or has ended

# --- Worker.setup
for step in worker.setup(check=True):
    print(step)
worker.setup()


# --- Worker.check
result = worker.check()
print(result)


# --- Worker.run
status = worker.run(burst=True)  # ends when the consumers are empty; without it, at SIGTERM

# --- TaskResult.get
assert call.get(timeout=5.0) == 4.0  # raises what the function raised

# --- Task.result_of
print(total.result_of(call.id).status)

# --- Worker.find_schedules
for schedule in worker.find_schedules():
    print(schedule)

# --- Worker.delete_schedules
stale = [schedule for schedule in worker.find_schedules() if schedule.state == "unused"]
worker.delete_schedules(stale)

# --- Worker.snapshot
if (snapshot := worker.snapshot()) is not None:  # None: it does not run
    print(snapshot["not_ready"])

# --- Worker.stop
import signal

signal.signal(signal.SIGUSR1, lambda *_: worker.stop())  # run() returns when handlers have ended

# --- Worker.test_client
outcome = worker.test_client().deliver(bill, b"")
assert isinstance(outcome.error, Reject)

# --- TestClient.deliver
outcome = worker.test_client().deliver(bill, b"tea", headers={"Shop": "1"}, attempt=2)
assert outcome.kind == "ack"

# --- TestClient.deliver_batch
outcomes = worker.test_client().deliver_batch(count, [b"tea", b"milk"])
assert [item.kind for item in outcomes] == ["ack", "ack"]


# --- Context.publish
@worker.handler(stream="ORDERS", consumer="SHIPPING")
def ship(order: bytes, ctx: Context) -> None:
    ctx.publish("ORDERS.shipped", order)  # a second run publishes no duplicate


# --- Context.extend
@worker.handler(stream="ORDERS", consumer="VIDEOS", timeout=60)
def convert(video: bytes, ctx: Context) -> None:
    ctx.extend(600)  # this one may take ten minutes more


# --- Context.check
@worker.handler(stream="ORDERS", consumer="PAGES")
def crawl(page: bytes, ctx: Context) -> None:
    for _link in range(3):
        ctx.check()  # raises if the lease is lost, so that no second run works beside this one


# --- Context.ack
@worker.handler(stream="ORDERS", consumer="CALLS")
def call(number: bytes, ctx: Context) -> None:
    ctx.ack()  # from here on it is not delivered again
    print("calling", number)


nc = jetstream_sync.connect("nats://127.0.0.1:4222")

# --- DeadLetters.store_advisories
letters = DeadLetters(nc.jetstream())
letters.store_advisories()  # and from now on, dead letters of all consumers are found

# --- DeadLetters.find
for letter in letters.find("ORDERS", "BILLING"):
    print(letter.seq, letter.reason)

# --- DeadLetters.read_copy
if "DEAD" in nc.jetstream().stream_names():
    letter, msg = letters.read_copy("DEAD", 1)

# --- Worker.replay
if "DEAD" in nc.jetstream().stream_names():
    outcome = worker.replay("DEAD", 1)  # as 'jsm worker replay DEAD 1 shop:worker'

# --- DeadLetters.get_msg
msg = letters.get_msg(letter)

# --- DeadLetters.requeue
if msg is not None:  # None: it is no longer stored
    letters.requeue(letter, msg._replace(data=b"tea"))

# --- DeadLetters.discard
for letter in letters.find("ORDERS"):
    letters.requeue(letter)
    letters.discard(letter)  # only now: requeue() has returned, so the message is stored

# --- DeadLetters.delete_original
letters.delete_original(letter)
