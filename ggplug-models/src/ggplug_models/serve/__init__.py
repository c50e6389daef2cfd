"""The HTTP server, and continuous batching: requests of many clients in the sequences of one session."""

from __future__ import annotations

from ggplug_models.serve.batcher import Batcher, QueueFullError, Status
from ggplug_models.serve.request import Request

__all__ = ["Batcher", "QueueFullError", "Request", "Status"]
