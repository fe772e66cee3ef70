"""Settings of gunicorn; `gunicorn orders:app` in this directory reads them."""

bind = "127.0.0.1:8000"
preload_app = True
workers = 3
threads = 4
# Longer than the client's timeout for an acknowledgement.
timeout = 30
graceful_timeout = 10
