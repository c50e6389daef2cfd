"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ggplug_models.serve.batcher import Status
from ggplug_models.serve.llama_server_metrics import llama_server_metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """The metrics of a server.

    ``status``: returns what was computed with its model; None: it has several, which have metrics of their own.
    ``slots``: returns the number of texts that are generated at the same time; 0: none are.
    """

    def __init__(self, status: Callable[[], Status] | None = None, slots: Callable[[], int] = lambda: 0) -> None:
        self._registry = CollectorRegistry()
        self._status = status
        self._read = Status()
        self.requests = Counter(
            "ggplug_http_requests",
            "HTTP requests, by path and status.",
            ["path", "status"],
            registry=self._registry,
        )
        self.first = Histogram(
            "ggplug_time_to_first_token_seconds",
            "Time from the arrival of a request to its first token.",
            registry=None if status is None else self._registry,
            buckets=SECONDS,
        )
        self.whole = Histogram(
            "ggplug_request_seconds",
            "Time from the arrival of a request to the end of its response.",
            ["path"],
            registry=self._registry,
            buckets=SECONDS,
        )
        if status is not None:
            self._registry.register(_OfBatcher(status, slots))

    def text(self) -> bytes:
        """The metrics in Prometheus's text format; rates are those since the last call."""
        found: bytes = generate_latest(self._registry)
        if self._status is None:
            return found
        before, self._read = self._read, self._status()
        return found + llama_server_metrics(self._read, before)


class _OfBatcher(Collector):
    def __init__(self, status: Callable[[], Status], slots: Callable[[], int]) -> None:
        self._status = status
        self._slots = slots

    def collect(self) -> Iterator[Metric]:
        now, slots = self._status(), self._slots()
        if not slots:
            return
        yield GaugeMetricFamily("ggplug_slots", "Maximum number of texts generated at the same time.", slots)
        yield GaugeMetricFamily("ggplug_texts_active", "Texts that are being generated.", now.active)
        yield GaugeMetricFamily("ggplug_texts_waiting", "Texts that wait for a slot.", now.waiting)
        yield CounterMetricFamily("ggplug_texts_finished", "Texts that ended or were cancelled.", now.finished)
        yield CounterMetricFamily("ggplug_texts_failed", "Texts whose computation failed.", now.failed)
        yield CounterMetricFamily("ggplug_prompt_tokens", "Prompt tokens that were computed.", now.prompt_tokens)
        yield CounterMetricFamily(
            "ggplug_prompt_tokens_reused", "Prompt tokens that were taken from the KV cache.", now.reused_tokens
        )
        yield CounterMetricFamily(
            "ggplug_restored", "Times that the model was loaded again because a device was lost.", now.restored
        )
        yield CounterMetricFamily(
            "ggplug_texts_replayed", "Times that a text was computed again because a device was lost.", now.replayed
        )
        yield CounterMetricFamily("ggplug_generated_tokens", "Tokens that were generated.", now.generated_tokens)
