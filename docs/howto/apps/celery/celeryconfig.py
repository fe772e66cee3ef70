"""Settings of Celery for this example: directories instead of a broker, so no other server is needed."""

from pathlib import Path

_folder = Path("broker")
for _name in ("tasks", "control", "results"):
    (_folder / _name).mkdir(parents=True, exist_ok=True)

broker_url = "filesystem://"
broker_transport_options = {
    "data_folder_in": str(_folder / "tasks"),
    "data_folder_out": str(_folder / "tasks"),
    "control_folder": str(_folder / "control"),
}
result_backend = f"file://{(_folder / 'results').resolve()}"
worker_concurrency = 2
broker_connection_retry_on_startup = True
