"""
Services: request handlers that can be discovered and monitored (ADR-32).

`Connection.add_service` creates a service; the objects and records that belong to it are defined here.
"""

from __future__ import annotations

from .endpoint import RequestHandler, ServiceRequest
from .service import EndpointGroup, Service
from .wire import (
    EndpointInfo,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    raise_for_error,
)

__all__ = [
    "EndpointGroup",
    "EndpointInfo",
    "EndpointStats",
    "RequestHandler",
    "Service",
    "ServiceInfo",
    "ServicePing",
    "ServiceRequest",
    "ServiceStats",
    "raise_for_error",
]
