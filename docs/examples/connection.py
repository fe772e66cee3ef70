import jetstream_sync

nc = jetstream_sync.connect("nats://127.0.0.1:4222")

# --- Connection.publish
weather = nc.subscribe("weather.*")
nc.publish("weather.oslo", b"rain", headers={"Source": "buoy 7"})
assert weather.next_msg(timeout=5.0).data == b"rain"

# --- Connection.flush
nc.publish("weather.rome", b"sun")
nc.flush(timeout=5.0)  # the server has received the message

# --- Connection.jetstream
js = nc.jetstream(timeout=10.0)
print(js.stream_names())

# --- Connection.subscribe
prices = {"tea": b"4.50"}
service = nc.subscribe("prices.*", cb=lambda msg: msg.respond(prices[msg.subject.split(".")[1]]))

# --- Connection.request
response = nc.request("prices.tea", timeout=2.0)
assert response.data == b"4.50"

# --- Msg.respond
greeters = nc.subscribe("greetings", queue="greeters")
nc.publish("greetings", b"ada", reply=nc.new_inbox())
msg = greeters.next_msg(timeout=2.0)
msg.respond(b"hello " + msg.data)

# --- Connection.request_many
for reply in nc.request_many("prices.tea", timeout=2.0, max_messages=1):
    print(reply.data)

# --- Connection.new_inbox
inbox = nc.new_inbox()
with nc.subscribe(inbox) as replies:
    nc.publish("prices.tea", reply=inbox)
    print(replies.next_msg(timeout=2.0).data)

# --- Connection.rtt
print(f"{nc.rtt(timeout=2.0).total_seconds() * 1000:.1f} ms")

# --- Connection.set_server_pool
nc.set_server_pool(["nats://127.0.0.1:4222"])  # used from the next reconnect on

# --- Connection.reconnect
nc.reconnect()  # such as after set_server_pool(), or to leave an overloaded server

# --- Subscription.next_msg
events = nc.subscribe("events.*")
nc.publish("events.signup", b"ada")
print(events.next_msg(timeout=5.0).data)

# --- Subscription.unsubscribe
events.unsubscribe(limit=10)  # ends after ten messages in all

# --- Subscription.drain
service.drain(timeout=5.0)  # the callback handles what has arrived

# --- Connection.add_service
shop = nc.add_service("shop", "1.0.0", description="Prices and orders")
shop.add_endpoint("stock", lambda request: request.respond_json({"tea": 12}))
print(nc.request("stock", timeout=2.0).data)

# --- Service.add_endpoint
shop.add_endpoint(
    "price", lambda request: request.respond(b"4.50"), subject="shop.price", workers=4
)
print(nc.request("shop.price", timeout=2.0).data)

# --- Service.endpoint
@shop.endpoint("upper")
def upper(request):
    request.respond(request.data.upper())


print(nc.request("upper", b"hello", timeout=2.0).data)

# --- Service.add_group
v2 = shop.add_group("v2")  # subjects begin with "v2."

# --- EndpointGroup.add_endpoint
v2.add_endpoint("price", lambda request: request.respond_json({"tea": "4.50"}))
print(nc.request("v2.price", timeout=2.0).data)

# --- EndpointGroup.add_group
reports = v2.add_group("reports")  # subjects begin with "v2.reports."

# --- EndpointGroup.endpoint
@v2.endpoint("upper")
def upper_v2(request):
    request.respond(request.data.upper())


print(nc.request("v2.upper", b"hello", timeout=2.0).data)

# --- ServiceRequest.respond
shop.add_endpoint("echo", lambda request: request.respond(request.data, {"Served-By": "shop"}))
print(nc.request("echo", b"hello", timeout=2.0).headers)

# --- ServiceRequest.respond_json
shop.add_endpoint("all", lambda request: request.respond_json(sorted(prices)))
print(nc.request("all", timeout=2.0).data)

# --- ServiceRequest.respond_error
shop.add_endpoint("wine", lambda request: request.respond_error(404, "no wine today"))
print(nc.request("wine", timeout=2.0).headers["Nats-Service-Error"])

# --- Connection.add_listener
events: list[jetstream_sync.ConnectionEvent] = []
nc.add_listener(events.append)  # for all events of the connection

# --- Connection.remove_listener
nc.remove_listener(events.append)

# --- Connection.service_call
shop.endpoint("total")(lambda request: request.respond_json(42))
print(nc.service_call("total", [17], int))  # JSON both ways

# --- Connection.service_ping
print([(item.name, item.version) for item in nc.service_ping()])

# --- Connection.service_info
(info,) = nc.service_info("shop")
print([endpoint.subject for endpoint in info.endpoints])

# --- Connection.service_stats
(stats,) = nc.service_stats("shop")
print(stats.endpoints[0].num_requests, stats.endpoints[0].average_processing_time)

# --- Service.stop
shop.stop(timeout=5.0)  # the requests that have arrived are answered

# --- Service.wait_stopped
assert shop.wait_stopped(timeout=5.0)  # in a program: without a timeout, as its last line

# --- Headers.add
from jetstream_sync import Headers

headers = Headers({"Accept": "text/plain"})
headers.add("Accept", "application/json")

# --- Headers.get_all
assert headers.get_all("accept") == ["text/plain", "application/json"]

# --- Connection.close
nc.close()  # sends what is buffered; use drain() to finish callbacks first

# --- Connection.drain
nc = jetstream_sync.connect("nats://127.0.0.1:4222")
nc.publish("weather.rome", b"sun")
nc.drain()  # the message was sent
assert nc.is_closed

# --- connect
with jetstream_sync.connect("nats://127.0.0.1:4222", name="billing") as nc:
    print(nc.connected_url)

# --- shared_connection
nc = jetstream_sync.shared_connection("nats://127.0.0.1:4222", name="billing")
assert nc is jetstream_sync.shared_connection("nats://127.0.0.1:4222", name="billing")

# --- NatsServer
from jetstream_sync.server import NatsServer

with NatsServer() as server, jetstream_sync.connect(server.url) as client:
    print(client.jetstream().stream_names())
