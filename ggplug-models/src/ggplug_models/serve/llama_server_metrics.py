"""The metrics that llama-server has, with its names, for dashboards that read these."""

from __future__ import annotations

from collections.abc import Iterator

from ggplug_models.serve.batcher import Status


def llama_server_metrics(now: Status, before: Status) -> bytes:
    """The metrics in Prometheus's text format.  ``before``: the status since which rates are counted."""
    return "".join(_lines(now, before)).encode()


def _lines(now: Status, before: Status) -> Iterator[str]:
    for name, what, value in (
        ("prompt_tokens_total", "Prompt tokens that were computed.", now.prompt_tokens + now.embedded_tokens),
        ("prompt_tokens_cached_total", "Prompt tokens taken from the KV cache.", now.reused_tokens),
        ("prompt_seconds_total", "Time for prompts.", now.prompt_seconds),
        ("tokens_predicted_total", "Generated tokens.", now.generated_tokens),
        ("tokens_predicted_seconds_total", "Time for generated tokens.", now.generating_seconds),
        ("n_decode_total", "Steps that were computed.", now.steps + now.embedded_steps),
        ("n_tokens_max", "Largest number of tokens of a sequence.", now.longest),
        ("spec_decode_num_draft_tokens_total", "Draft tokens.", now.drafted),
        ("spec_decode_num_accepted_tokens_total", "Draft tokens that were right.", now.accepted),
        ("spec_decode_num_drafts_total", "Drafts.", now.drafts),
    ):
        yield _metric(name, what, "counter", value)
    for name, what, value in (
        (
            "prompt_tokens_seconds",
            "Prompt tokens per second, since the last request for the metrics.",
            _rate(now.prompt_tokens - before.prompt_tokens, now.prompt_seconds - before.prompt_seconds),
        ),
        (
            "predicted_tokens_seconds",
            "Tokens per second, since the last request for the metrics.",
            _rate(now.generated_tokens - before.generated_tokens, now.generating_seconds - before.generating_seconds),
        ),
        ("requests_processing", "Texts that are generated.", now.active),
        ("requests_deferred", "Texts that wait for a slot.", now.waiting),
        ("n_busy_slots_per_decode", "Active slots in a step, on average.", _rate(now.busy, now.steps)),
    ):
        yield _metric(name, what, "gauge", value)


def _metric(name: str, what: str, kind: str, value: float) -> str:
    # prometheus_client allows no colon in a name, and has counters end with _total.
    return f"# HELP llamacpp:{name} {what}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0
