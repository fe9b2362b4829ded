"""Limits in tokens: what is wrong with so many tokens of a query, a title, a passage, a request."""

from __future__ import annotations

from collections.abc import Iterator

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.model.windows import max_title_tokens
from secateur.types import Limits, ModelInfo, PruneOptions


def query_token_faults(
    count: int, options: PruneOptions, info: ModelInfo
) -> Iterator[FieldViolation]:
    """What is wrong with a query of so many tokens, the special ones apart."""
    limit = info.max_query_tokens
    if not count:
        yield FieldViolation("query", "the model's tokenizer finds no token in it", "NO_TOKENS")
    if count > limit and not options.truncate_query:
        yield FieldViolation(
            "query",
            f"has {count} tokens, the limit of this model is {limit}; "
            "shorten it or set options.truncate_query",
            "TOO_LONG",
            limit,
        )


def title_token_faults(count: int, index: int, info: ModelInfo) -> Iterator[FieldViolation]:
    """What is wrong with a title of so many tokens."""
    limit = max_title_tokens(info.window_tokens)
    if count > limit:
        yield FieldViolation(
            f"passages[{index}].title",
            f"has {count} tokens, the limit of this model is {limit}",
            "TOO_LONG",
            limit,
        )


def check_passage_tokens(count: int, index: int, limits: Limits) -> None:
    """Raise InvalidRequestError when one prepared passage is too large for any request.

    count: tokens of all its windows.
    """
    limit = limits.max_request_tokens
    if count > limit:
        violation = FieldViolation(
            f"passages[{index}].text",
            f"takes {count} tokens, the limit is {limit}; send it in parts",
            "TOO_MANY_TOKENS",
            limit,
        )
        raise InvalidRequestError([violation])


def check_request_tokens(count: int, passages: int, limits: Limits) -> None:
    """Raise InvalidRequestError when prepared passages are too many tokens together.

    count: tokens of all windows of the first ``passages`` passages.
    """
    limit = limits.max_request_tokens
    if count > limit:
        violation = FieldViolation(
            "passages",
            f"the first {passages} take {count} tokens, their windows' queries and titles "
            f"included; the limit is {limit}; send fewer or shorter ones, or use the stream",
            "TOO_MANY_TOKENS",
            limit,
        )
        raise InvalidRequestError([violation])
