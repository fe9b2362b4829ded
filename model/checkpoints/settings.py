"""What a checkpoint says of itself in config.json, with its family's defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.errors import CheckpointError
from secateur.model.checkpoints.families import Family
from secateur.types import KeepRule

SHORTEST_WINDOW = 16
"""Tokens; below, no query and title fit beside a passage."""

_THRESHOLD_KEYS = ("default_threshold", "default_threadshold")
"""Open Provence's own spellings; where both stand, the first one counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """Identity and defaults of a checkpoint.

    A folder of ours states them under ``"secateur"`` in config.json; else they are the
    family's, and for Open Provence those of its config.

    revision: first 12 hexadecimal digits of the SHA-256 over the weight files.
    window_tokens: tokens of one model input, special tokens included.
    default_threshold, default_keep_rule: ``None`` for a family that cannot prune.
    """

    id: str
    revision: str
    family: str
    languages: tuple[str, ...] = ()
    window_tokens: int
    default_threshold: float | None
    default_keep_rule: KeepRule | None


def read_settings(
    config: Mapping[str, Any],
    family: Family,
    *,
    name: str,
    revision: str,
    longest_input: int,
    where: Path,
) -> CheckpointSettings:
    """Settings from a whole config.json. Raises CheckpointError, naming ``where``.

    longest_input: tokens that the encoder can take.
    """
    own = config.get("secateur") or {}
    if not isinstance(own, dict):
        raise CheckpointError(f'{where}: "secateur" must be an object')
    values: dict[str, Any] = {
        "id": name,
        "window_tokens": _window(config, family, longest_input),
        "default_threshold": _threshold(config, family),
        "default_keep_rule": family.default_keep_rule,
        **own,
        "family": family.name,
    }
    try:
        if values["default_keep_rule"] is not None:
            values["default_keep_rule"] = KeepRule(values["default_keep_rule"])
        values["languages"] = _languages(values.get("languages", []), where)
        settings = CheckpointSettings(**values, revision=revision)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f'{where}: "secateur": {error}') from error
    _check(settings, family, longest_input, where)
    return settings


def _languages(stated: Any, where: Path) -> tuple[str, ...]:
    if not isinstance(stated, list) or not all(isinstance(code, str) for code in stated):
        raise CheckpointError(f"{where}: languages is {stated!r}, must be a list of codes")
    return tuple(stated)


def _window(config: Mapping[str, Any], family: Family, longest_input: int) -> Any:
    stated = config.get("max_length") if family.wrapper else None
    bounds = (longest_input, family.max_window, stated)
    return min(bound for bound in bounds if isinstance(bound, int))


def _threshold(config: Mapping[str, Any], family: Family) -> Any:
    stated = [config[key] for key in _THRESHOLD_KEYS if config.get(key) is not None]
    return stated[0] if stated and family.wrapper else family.default_threshold


def _check(settings: CheckpointSettings, family: Family, longest_input: int, where: Path) -> None:
    if not isinstance(settings.id, str) or not settings.id:
        raise CheckpointError(f"{where}: id is {settings.id!r}, must be a text that is not empty")
    window = settings.window_tokens
    if not isinstance(window, int) or not SHORTEST_WINDOW <= window <= longest_input:
        raise CheckpointError(
            f"{where}: window_tokens is {window!r}, must be in [{SHORTEST_WINDOW}, "
            f"{longest_input}] (what the encoder has positions for)"
        )
    threshold, rule = settings.default_threshold, settings.default_keep_rule
    if not family.can_prune:
        if threshold is not None or rule is not None:
            raise CheckpointError(
                f"{where}: {family.name} cannot prune, so it has no default_threshold and no "
                "default_keep_rule"
            )
        return
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise CheckpointError(f"{where}: default_threshold is {threshold!r}, must be a number")
    if not 0 <= threshold <= 1:
        raise CheckpointError(f"{where}: default_threshold is {threshold}, must be in [0, 1]")
    if rule not in family.keep_rules:
        raise CheckpointError(
            f"{where}: default_keep_rule is {rule}, but {family.name} has "
            f"{', '.join(family.keep_rules)}"
        )
