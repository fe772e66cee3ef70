"""A form whose mail is sent by a worker: the view stores the call of a function, and does not wait for it."""

import os

from flask import Flask, jsonify, request

from jetstream_sync.flask import JetStream

app = Flask(__name__)
app.logger.setLevel("INFO")
app.config["JETSTREAM"] = {
    "servers": os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
    "name": "contact",
}
js = JetStream(app, dead_letters="DEAD")


@js.worker.task(timeout=30.0)
def send_mail(address: str, text: str) -> None:
    """Send a mail: in this example, log it."""
    app.logger.info("mail to %s: %s", address, text)


@app.post("/contact")
def contact():
    """Store the call; the mail is sent even if the mail server is unavailable now."""
    call = send_mail.delay(request.form["address"], request.form["text"])
    return jsonify(call=call.id), 202
