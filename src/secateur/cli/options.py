"""Options that commands share, each defined once as a field of a dataclass.

A command takes such a dataclass as a parameter; ``command`` lays its fields out as options of
the command and hands the filled object over.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from secateur import _defaults
from secateur.cli.exits import errors_reported
from secateur.types import KeepRule, OffsetUnit, ResultOrder

Model = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Checkpoint folder, or hub id owner/name[@revision]. Default: the embedded model.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", help="auto, float32, bfloat16 or int8. Default: auto."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON only.")]


class InputFormat(StrEnum):
    """How FILE is read. ``auto`` decides by the name's ending, then by the first character."""

    AUTO = "auto"
    TEXT = "text"
    JSONL = "jsonl"
    JSON = "json"


_INPUT = "Input and output"
_TUNING = "What to keep"
_RANKING = "Ranking"


@dataclass(frozen=True, kw_only=True)
class RequestArguments:
    """The request of ``prune`` and ``call``. ``None``: not given, the file or default applies.

    From ``threshold`` on, the fields are those of PruneOptions, by the same names.
    """

    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="Passages to read; - is standard input.")
    ]
    query: Annotated[
        str | None,
        typer.Option(
            "--query", "-q", help="The question. May be left out when FILE is a JSON request."
        ),
    ] = None
    format: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            case_sensitive=False,
            metavar="FORMAT",
            rich_help_panel=_INPUT,
            help="auto, text (a passage a block between blank lines), jsonl (a passage a line) or "
            "json (an array of passages, or a request).",
        ),
    ] = InputFormat.AUTO
    json_output: Annotated[
        bool,
        typer.Option("--json", rich_help_panel=_INPUT, help="Print the answer as JSON only."),
    ] = False
    threshold: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_TUNING,
            help="From 0 (keep all) to 1 (keep none). Default: the model's.",
        ),
    ] = None
    keep_rule: Annotated[
        KeepRule | None,
        typer.Option(
            case_sensitive=False,
            rich_help_panel=_TUNING,
            metavar="RULE",
            help="mean_probability, token_vote, majority or sentence_head. Default: the model's.",
        ),
    ] = None
    min_sentences: Annotated[
        int | None,
        typer.Option(rich_help_panel=_TUNING, help="Keep at least so many of each passage."),
    ] = None
    neighbor_sentences: Annotated[
        int | None,
        typer.Option(rich_help_panel=_TUNING, help="Also keep so many beside each kept one."),
    ] = None
    always_select_title: Annotated[
        bool | None,
        typer.Option(
            "--always-select-title",
            rich_help_panel=_TUNING,
            help="Keep the first sentence when another one is kept.",
        ),
    ] = None
    protected_patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--protected-pattern",
            metavar="RE2",
            rich_help_panel=_TUNING,
            help="Keep each sentence that matches. May be repeated.",
        ),
    ] = None
    max_context_tokens: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_TUNING, help="Token budget of all kept text. Not in this version."
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(rich_help_panel=_RANKING, help="How many results; 0 is all.")
    ] = None
    min_relevance_score: Annotated[
        float | None,
        typer.Option(rich_help_panel=_RANKING, help="Leave out passages that score lower."),
    ] = None
    order: Annotated[
        ResultOrder | None,
        typer.Option(
            case_sensitive=False,
            rich_help_panel=_RANKING,
            metavar="ORDER",
            help="score or input. Default: score.",
        ),
    ] = None
    language: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_INPUT,
            help="ISO 639-1 code that chooses the sentence splitter. Default: by script.",
        ),
    ] = None
    truncate_query: Annotated[
        bool | None,
        typer.Option(
            "--truncate-query",
            rich_help_panel=_INPUT,
            help="Cut a query that is too long instead of refusing it.",
        ),
    ] = None
    offset_unit: Annotated[
        OffsetUnit | None,
        typer.Option(
            case_sensitive=False,
            rich_help_panel=_INPUT,
            metavar="UNIT",
            help="code_point, utf8_byte or utf16_code_unit (with --json).",
        ),
    ] = None
    include_tokens: Annotated[
        bool | None,
        typer.Option(
            "--include-tokens",
            rich_help_panel=_INPUT,
            help="Add each token's probability (with --json).",
        ),
    ] = None
    include_sentence_text: Annotated[
        bool | None,
        typer.Option(
            "--include-sentence-text",
            rich_help_panel=_INPUT,
            help="Add each sentence's text (with --json).",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TargetArguments:
    """A running server."""

    target: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server to call.")] = (
        _defaults.TARGET
    )
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for the whole call.", min=0.001)
    ] = _defaults.TIMEOUT_SECONDS


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Lay out dataclass parameters as options, and report errors as ``secateur.cli.exits`` does."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _as_parameters(hints[name])
        else:
            parameters.append(
                parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            )

    @functools.wraps(function)
    def wrapper(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        with errors_reported():
            function(**values)

    # typer reads both.
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return wrapper


def _as_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(group)
    ]
