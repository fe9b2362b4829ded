"""Log lines for people or for machines, each with the id of the call that it belongs to."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal

REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default="")
"""Id of the call that the running code works for; empty outside of calls."""

FIELDS: Final = "fields"
"""Name of a log record's attribute with further fields of its line (``extra={FIELDS: ...}``)."""


class TextFormatter(logging.Formatter):
    """One line of text; the request id in brackets, further fields as ``name=value``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line without its traceback."""
        line = super().formatMessage(record)
        line += "".join(f" {name}={value}" for name, value in _fields(record).items())
        request_id = REQUEST_ID.get()
        return f"{line} [{request_id}]" if request_id else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, and what there is of
    request_id, the record's further fields, and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        line.update(_fields(record))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Send all log lines of the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, FIELDS, None)
    return fields if isinstance(fields, dict) else {}
