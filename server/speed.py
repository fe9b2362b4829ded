"""How fast the model is, as measured, and so how long some tokens will take at least."""

from __future__ import annotations

from typing import Final

_NEWEST_SHARE: Final = 0.2  # of the newest measurement in the running mean
_FRESH_SECONDS: Final = 60.0


class Speed:
    """Tokens a second of well-filled batches, as a running mean.

    A batch counts when it holds at least ``full_tokens``: small ones run at a lower speed, and a
    large call must not be judged by them. So a time computed from it is an optimistic one. A mean
    that is older than a minute is forgotten: else a wrong one could keep out every call that
    would correct it.
    """

    def __init__(self, *, full_tokens: int) -> None:
        self._full_tokens = full_tokens
        self._tokens_per_second = 0.0
        self._measured_at = 0.0

    def measured(self, tokens: int, seconds: float, now: float) -> None:
        """Note a batch: its tokens without padding, and how long it ran."""
        if tokens < self._full_tokens or seconds <= 0:
            return
        speed = tokens / seconds
        newest = _NEWEST_SHARE if self._is_fresh(now) else 1.0
        self._tokens_per_second += newest * (speed - self._tokens_per_second)
        self._measured_at = now

    def seconds_for(self, tokens: int, now: float) -> float | None:
        """Seconds that so many tokens take at least; ``None`` without a fresh measurement."""
        return tokens / self._tokens_per_second if self._is_fresh(now) else None

    def _is_fresh(self, now: float) -> bool:
        return self._tokens_per_second > 0 and now - self._measured_at <= _FRESH_SECONDS
