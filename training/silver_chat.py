"""Asks a chat endpoint until its answer is valid, and sorts what can go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion

from secateur.errors import SecateurError
from secateur.training.silver_prompt import AnswerError, Message

T = TypeVar("T")

ATTEMPTS = 3
"""How often a row is asked for until its answer is valid."""

_CONCERNS_THE_ROW = (400, 413, 422)
"""HTTP codes that say that this request is wrong, such as a passage over the model's context."""


class RowSkippedError(Exception):
    """This row gets no labels; ``str(error)`` says why."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the language model answers.

    base_url: what comes before ``/chat/completions``. retries: after connection errors and the
    HTTP codes 408, 409, 429 and 5xx, with growing pauses or those that the endpoint asks for.
    Raises ValueError for a base_url that is none.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    retries: int = 5

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.base_url}: expected a URL such as http://localhost:8000/v1")

    def client(self) -> openai.AsyncOpenAI:
        """A client, to be used in an ``async with``."""
        key = self.api_key or "none"  # the library wants one also where the endpoint does not
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=key, max_retries=self.retries)


async def ask(
    client: openai.AsyncOpenAI,
    endpoint: Endpoint,
    messages: list[Message],
    read: Callable[[str], T],
) -> T:
    """Ask until ``read`` takes the answer, telling the model what was wrong with the last one.

    read: the answer's text → what it says; raises AnswerError.
    Raises RowSkippedError after ``ATTEMPTS`` invalid answers or when the endpoint refuses the
    request as such; SecateurError when the endpoint cannot be used at all.
    """
    reason = ""
    for _ in range(ATTEMPTS):
        text = await _complete(client, endpoint, messages)
        try:
            return read(text)
        except AnswerError as error:
            reason = str(error)
        wrong = f"That answer is not valid: {reason}. Answer with the corrected JSON object only."
        messages = [
            *messages,
            {"role": "assistant", "content": text[:4_000] or "(empty)"},
            {"role": "user", "content": wrong},
        ]
    raise RowSkippedError(f"no valid answer in {ATTEMPTS} tries: {reason}")


async def _complete(client: openai.AsyncOpenAI, endpoint: Endpoint, messages: list[Message]) -> str:
    """The text of one answer, empty when there is none."""
    given: Any = messages  # the library's type is a union of typed dicts
    try:
        answer: Any = await client.chat.completions.create(model=endpoint.model, messages=given)
    except openai.APIConnectionError as error:
        raise _failure(endpoint, f"cannot be reached: {error.__cause__ or error}") from error
    except openai.APIStatusError as error:
        if error.status_code in _CONCERNS_THE_ROW:
            raise RowSkippedError(_shown(endpoint, error.message)) from error
        raise _failure(endpoint, f"refuses the request: {error.message}") from error
    except (openai.OpenAIError, ValueError) as error:  # ValueError: a body that is no JSON
        raise _failure(endpoint, f"gives no chat completion: {error}") from error
    if not isinstance(answer, ChatCompletion):
        raise _failure(endpoint, "gives no chat completion; base URLs often end in /v1")
    return (answer.choices[0].message.content or "") if answer.choices else ""


def _failure(endpoint: Endpoint, what: str) -> SecateurError:
    return SecateurError(f"{endpoint.base_url}: {_shown(endpoint, what)}")


def _shown(endpoint: Endpoint, text: str) -> str:
    """One line of bounded length without the key, which some endpoints repeat."""
    if endpoint.api_key:
        text = text.replace(endpoint.api_key, "***")
    return " ".join(text.split())[:300]
