"""Load a checkpoint folder: config.json, model.safetensors and tokenizer.json.

Never runs code from the folder, never unpickles, never asks the network.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import DebertaV2Config

from secateur.errors import CheckpointError
from secateur.model.deberta import DebertaV2ForRerankAndPrune
from secateur.types import KeepRule

EMBEDDED = "secateur-mini-en"
"""The checkpoint that ships inside the package."""

_FOLDER = Path(__file__).parent / "checkpoints"
_HEADS = ("deberta.", "pooler.dense.", "classifier.", "token_classifier.")
_UNUSED = ("lm_predictions.", "mask_predictions.", "cls.", "deberta.embeddings.position_ids")
_PREFIXES = ("model.", "module.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What a checkpoint says of itself beyond its shapes.

    A folder of ours states these under ``"secateur"`` in config.json. Where it does not, a
    folder in Provence's layout gets Provence's keep rule and threshold: tokens vote, 0.1.

    revision: first 12 hexadecimal digits of the SHA-256 over the weight files.
    window_tokens: tokens of one model input, special tokens included.
    """

    id: str
    revision: str
    family: str
    languages: tuple[str, ...] = ()
    window_tokens: int = 512
    default_threshold: float = 0.1
    default_keep_rule: KeepRule = KeepRule.TOKEN_VOTE


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded folder. ``model`` is in float32 and in evaluation mode."""

    model: DebertaV2ForRerankAndPrune
    tokenizer: Tokenizer
    settings: CheckpointSettings


def resolve(name_or_path: str | os.PathLike[str] | None) -> Path:
    """Folder of a checkpoint: the embedded one by name or by default, else the path given.

    Raises CheckpointError when there is no such folder.
    """
    if name_or_path is None or os.fspath(name_or_path) == EMBEDDED:
        return _FOLDER / EMBEDDED
    path = Path(name_or_path)
    if not path.is_dir():
        raise CheckpointError(
            f"no checkpoint folder at {os.fspath(name_or_path)!r}; give the path of a folder with "
            f"config.json, model.safetensors and tokenizer.json, or {EMBEDDED!r}"
        )
    return path


def load_checkpoint(name_or_path: str | os.PathLike[str] | None = None) -> Checkpoint:
    """Load a two-head DeBERTa-v2/v3 checkpoint in Provence's key layout.

    Raises CheckpointError: a missing or unreadable file, another architecture, keys that are
    missing or unknown, shapes that differ from config.json, or settings out of range.
    """
    folder = resolve(name_or_path)
    raw = _read_config(folder)
    files = _weight_files(folder)
    state = _read_weights(files)
    settings = _settings(folder, raw, files)
    values = {key: value for key, value in raw.items() if key not in ("secateur", "model_type")}
    try:
        config = DebertaV2Config(**values)
        with torch.device("meta"):
            model = DebertaV2ForRerankAndPrune(config)
    except (TypeError, ValueError, KeyError, AttributeError, ImportError) as error:
        raise CheckpointError(
            f"{folder / 'config.json'}: not a DeBERTa-v2 config: {error}"
        ) from error
    _load_state(model, state, folder)
    length = config.max_position_embeddings
    model.deberta.embeddings.position_ids = torch.arange(length).expand((1, -1))
    if not 16 <= settings.window_tokens <= length:
        raise CheckpointError(
            f"{folder / 'config.json'}: window_tokens is {settings.window_tokens}, "
            f"must be in [16, {length}] (max_position_embeddings)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exception
        raise CheckpointError(f"{folder / 'tokenizer.json'}: {error}") from error
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.get_vocab_size()} tokens, "
            f"the model only {config.vocab_size} embeddings"
        )
    return Checkpoint(model.eval(), tokenizer, settings)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind not in ("deberta-v2", "Provence"):
        raise CheckpointError(
            f"{path}: model_type is {kind!r}; this version loads 'deberta-v2' and 'Provence'"
        )
    return dict(raw)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index}: not a safetensors index: {error!r}") from error
        return [folder / Path(name).name for name in sorted(names)]
    return [folder / "model.safetensors"]


def _read_weights(files: list[Path]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            state |= load_file(file)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{file}: no such file (only safetensors weights are loaded)"
            ) from error
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file}: not a safetensors file: {error}") from error
    return {_strip_prefix(key): value.float() for key, value in state.items()}


def _strip_prefix(key: str) -> str:
    for prefix in _PREFIXES:
        if key.startswith(prefix) and key.removeprefix(prefix).startswith(_HEADS):
            return key.removeprefix(prefix)
    return key


def _load_state(
    model: DebertaV2ForRerankAndPrune, state: Mapping[str, Tensor], folder: Path
) -> None:
    expected = model.state_dict()
    missing = sorted(set(expected) - set(state))
    unknown = sorted(k for k in set(state) - set(expected) if not k.startswith(_UNUSED))
    shapes = [
        f"{key} is {list(state[key].shape)}, config.json says {list(value.shape)}"
        for key, value in expected.items()
        if key in state and state[key].shape != value.shape
    ]
    if missing or unknown or shapes:
        parts = [
            f"{title}: {', '.join(keys[:8])}{' …' if len(keys) > 8 else ''}"
            for title, keys in (("missing", missing), ("unknown", unknown), ("shapes", shapes))
            if keys
        ]
        raise CheckpointError(
            f"{folder}: expected the keys {', '.join(f'{head}*' for head in _HEADS)} of a two-head "
            f"DeBERTa-v2 ({len(expected)} tensors), found {len(state)} tensors; " + "; ".join(parts)
        )
    used = {key: value for key, value in state.items() if key in expected}
    model.load_state_dict(used, assign=True)


def _settings(folder: Path, raw: Mapping[str, Any], files: list[Path]) -> CheckpointSettings:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    own = dict(raw.get("secateur") or {})
    own.setdefault("id", folder.name)
    own.setdefault("family", "provence")
    own.setdefault("window_tokens", min(512, raw.get("max_position_embeddings", 512)))
    try:
        if "default_keep_rule" in own:
            own["default_keep_rule"] = KeepRule(own["default_keep_rule"])
        own["languages"] = tuple(own.get("languages", ()))
        settings = CheckpointSettings(**own, revision=digest.hexdigest()[:12])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f'{folder / "config.json"}: "secateur": {error}') from error
    if not 0 <= settings.default_threshold <= 1:
        raise CheckpointError(
            f"{folder / 'config.json'}: default_threshold is {settings.default_threshold}, "
            "must be in [0, 1]"
        )
    return settings
