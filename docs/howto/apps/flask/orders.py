"""Orders over HTTP: one view publishes to a stream, another sends a request to a service."""

import os

from flask import Flask, jsonify, request

import jetstream_sync
from jetstream_sync.flask import JetStream

app = Flask(__name__)
app.logger.setLevel("INFO")
app.config["JETSTREAM"] = {
    "servers": os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
    "name": "web",
}
js = JetStream(app, dead_letters="DEAD")

# With --preload this runs once, in gunicorn's master process, before it forks the workers.
with app.app_context():
    js.jetstream().create_stream(name="ORDERS", subjects=["ORDERS.*"])


@app.post("/orders/<number>")
def take_order(number):
    """Store an order; a client without a response can send it again."""
    ack = js.jetstream().publish("ORDERS.received", request.get_data(), msg_id=number)
    return jsonify(seq=ack.seq, again=ack.duplicate, worker=os.getpid()), 201


@app.get("/prices/<article>")
def price(article):
    """Request a price from the price service."""
    response = js.connection().request(f"prices.{article}", timeout=2.0)
    return jsonify(price=response.data.decode(), worker=os.getpid())


@app.errorhandler(jetstream_sync.Error)
def not_now(error):
    """Respond with 503, so that the client tries again."""
    return jsonify(error=str(error)), 503


@js.worker.handler(stream="ORDERS", consumer="BILLING", concurrency=4, decode="text")
def bill(order):
    """Bill one order: in this example, log it."""
    app.logger.info("billed %s", order)
