"""What the server counts, for Prometheus. docs/reliability.md lists every metric."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

RECENT_REQUESTS: Final = 1_000
"""How many of the newest requests ``secateur_input_tokens_p95`` looks at."""

_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKENS: Final = tuple(2**power for power in range(4, 18))  # 16 to 131,072
_SHARES: Final = tuple(tenth / 10 for tenth in range(11))


class Metrics:
    """The metrics of one server, in a registry of their own. Its methods are cheap."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._recent: deque[int] = deque(maxlen=RECENT_REQUESTS)
        self._requests = Counter(
            "secateur_requests", "Calls ended.", ["method", "code"], registry=registry
        )
        self._calls = Gauge("secateur_calls", "Calls in work.", registry=registry)
        self._tasks = Gauge(
            "secateur_tasks",
            "Tasks of the event loop; without calls it goes back to what it was at first.",
            registry=registry,
        )
        self._request_seconds = Histogram(
            "secateur_request_seconds",
            "Time from a call's arrival to its end.",
            ["method"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "secateur_errors", "Calls that failed, by ErrorInfo reason.", ["reason"],
            registry=registry,
        )  # fmt: skip
        self._passage_errors = Counter(
            "secateur_passage_errors", "Passages that failed alone.", ["code"], registry=registry
        )
        self._not_finite = Counter(
            "secateur_not_finite_passages",
            "Passages that failed because the model's output was not finite.",
            registry=registry,
        )
        self._queue_tokens = Gauge(
            "secateur_queue_tokens", "Tokens that wait for the model.", registry=registry
        )
        self._queue_windows = Gauge(
            "secateur_queue_windows", "Windows that wait for the model.", registry=registry
        )
        self._queue_seconds = Histogram(
            "secateur_queue_seconds",
            "Time that a request waited for the model or a free thread.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._batch_tokens = Histogram(
            "secateur_batch_tokens",
            "Tokens of a forward pass, without padding.",
            buckets=_TOKENS,
            registry=registry,
        )
        self._padding_share = Histogram(
            "secateur_batch_padding_share",
            "Share of a forward pass that is padding.",
            buckets=_SHARES,
            registry=registry,
        )
        self._inference_seconds = Histogram(
            "secateur_inference_seconds",
            "Time of a forward pass.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._input_tokens = Histogram(
            "secateur_input_tokens",
            "Tokens of a request's model input, of cached passages too.",
            buckets=_TOKENS,
            registry=registry,
        )
        Gauge(
            "secateur_input_tokens_p95",
            f"95th percentile of secateur_input_tokens over the last {RECENT_REQUESTS} requests.",
            registry=registry,
        ).set_function(self._p95)
        self._kept_ratio = Histogram(
            "secateur_kept_token_ratio",
            "Share of a request's passage tokens that is kept.",
            buckets=_SHARES,
            registry=registry,
        )
        self._tokens_saved = Counter(
            "secateur_tokens_saved", "Passage tokens that were pruned away.", registry=registry
        )

        self._cache_hits = Counter(
            "secateur_cache_hits", "Windows whose output the cache had.", registry=registry
        )
        self._cache_misses = Counter(
            "secateur_cache_misses", "Windows whose output it did not have.", registry=registry
        )
        self._cache_evictions = Counter(
            "secateur_cache_evictions", "Outputs dropped to make room.", registry=registry
        )
        self._cache_bytes = Gauge(
            "secateur_cache_bytes", "Memory that the cached outputs take.", registry=registry
        )
        self._cache_entries = Gauge(
            "secateur_cache_entries", "Windows whose output is cached.", registry=registry
        )

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Offer the metrics over HTTP; the real port, and a function that ends it.

        Raises OSError when the address cannot be listened on.
        """
        server, thread = start_http_server(port, addr=host, registry=self.registry)

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return int(server.server_port), close

    def watch(self, *, calls: Callable[[], int], tasks: Callable[[], int]) -> None:
        """Say how to read the calls in work and the tasks of the event loop, from any thread."""
        self._calls.set_function(calls)
        self._tasks.set_function(tasks)

    def watch_cache(self, *, size: Callable[[], int], entries: Callable[[], int]) -> None:
        """Say how to read the bytes and the entries of the cache, from any thread."""
        self._cache_bytes.set_function(size)
        self._cache_entries.set_function(entries)

    def request(self, method: str, code: str, seconds: float) -> None:
        """A call has ended. code: the name of its gRPC status."""
        self._requests.labels(method, code).inc()
        self._request_seconds.labels(method).observe(seconds)

    def error(self, reason: str) -> None:
        """A call has failed. reason: of its ErrorInfo."""
        self._errors.labels(reason).inc()

    def passage_error(self, code: str) -> None:
        """A passage has failed alone. code: the name of its gRPC status."""
        self._passage_errors.labels(code).inc()

    def not_finite(self) -> None:
        """A passage has failed alone because the model's output was not finite."""
        self._not_finite.inc()

    def queue(self, *, tokens: int, windows: int) -> None:
        """What waits for the model now."""
        self._queue_tokens.set(tokens)
        self._queue_windows.set(windows)

    def batch(self, lengths: Sequence[int], seconds: float) -> None:
        """A forward pass is done. lengths: tokens of its windows without padding."""
        tokens = sum(lengths)
        self._batch_tokens.observe(tokens)
        self._padding_share.observe(1 - tokens / (max(lengths) * len(lengths)))
        self._inference_seconds.observe(seconds)

    def cache_looked_up(self, *, hits: int, misses: int) -> None:
        """Windows were looked up in the cache."""
        self._cache_hits.inc(hits)
        self._cache_misses.inc(misses)

    def cache_evicted(self, count: int) -> None:
        """So many outputs had to make room for a newer one."""
        self._cache_evictions.inc(count)

    def answered(
        self, *, input_tokens: int, passage_tokens: int, kept_tokens: int, queue_seconds: float
    ) -> None:
        """A request has its answer.

        passage_tokens: those of its scored passages; kept_tokens: those of them in kept
        sentences.
        """
        self._queue_seconds.observe(queue_seconds)
        self._input_tokens.observe(input_tokens)
        self._recent.append(input_tokens)
        if passage_tokens:
            self._kept_ratio.observe(kept_tokens / passage_tokens)
            self._tokens_saved.inc(passage_tokens - kept_tokens)

    def _p95(self) -> float:
        counts = sorted(self._recent)
        return float(counts[(len(counts) * 95 - 1) // 100]) if counts else 0.0
