"""Load a checkpoint of any family: config.json, weights and tokenizer.json.

Never runs code from a checkpoint. Nothing but a hub id asks the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer
from torch import Tensor, nn

from secateur.errors import CheckpointError, InvariantError
from secateur.model.checkpoints.detect import Layout, detect, pools_score, strip_wrappers
from secateur.model.checkpoints.encoders import xlm_roberta_pooled
from secateur.model.checkpoints.families import Family
from secateur.model.checkpoints.settings import CheckpointSettings, read_settings
from secateur.model.checkpoints.source import resolve
from secateur.model.checkpoints.weights import read_weights
from secateur.model.modes import Measured, read_record
from secateur.model.two_heads import TwoHeadModel

_BAD_CONFIG = (
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    ImportError,
    StrictDataclassError,
    ZeroDivisionError,
    AssertionError,  # torch: a padding id beyond the embeddings
)

_LONGEST_INPUT = 1 << 20
"""Tokens. Not every encoder's weights bound what its config says, and position ids take memory."""

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""How weights are stored. Others are quantised: their scales are not read here."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint. ``model`` is in float32 and in evaluation mode.

    modes: what the folder's record says of faster arithmetic.
    """

    model: TwoHeadModel
    tokenizer: Tokenizer
    settings: CheckpointSettings
    layout: Layout
    modes: Mapping[str, Measured]

    @property
    def family(self) -> Family:
        """How the checkpoint is served."""
        return self.layout.family


def load_checkpoint(
    name_or_path: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
) -> Checkpoint:
    """Load the embedded checkpoint, a folder, or a hub id; see ``source.resolve``.

    allow_pickle: read ``pytorch_model.bin`` where there are no safetensors.
    Raises CheckpointError: a missing or unreadable file, an unknown layout, keys that are
    missing or unknown, shapes that differ from config.json, or settings out of range.
    """
    source = resolve(name_or_path, revision=revision, allow_pickle=allow_pickle)
    folder = source.folder
    config = _read_config(folder)
    weights = read_weights(folder, allow_pickle=allow_pickle)
    tensors = _renamed(weights.tensors, strip_wrappers, folder)
    try:
        layout = detect(config, tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    tensors = _renamed(tensors, lambda key: _wrapped(key, layout.family), folder)
    model, encoder_config = _build(layout, tensors, folder)
    _load_tensors(model, layout, tensors, folder)
    layout.encoder.restore_buffers(model.encoder, encoder_config)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise InvariantError("a buffer was not restored; this is a bug")
    settings = read_settings(
        config,
        layout.family,
        name=source.name,
        revision=weights.revision(),
        longest_input=layout.encoder.longest_input(encoder_config),
        where=folder / "config.json",
    )
    tokenizer = _read_tokenizer(folder, encoder_config.vocab_size)
    modes = read_record(folder, settings.revision)
    return Checkpoint(model.eval(), tokenizer, settings, layout, modes)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(config).__name__}")
    return config


def _renamed(
    tensors: Mapping[str, Tensor], rename: Callable[[str], str], folder: Path
) -> dict[str, Tensor]:
    """Tensors by their new names. Two of one name, such as a model and its average, are refused."""
    renamed: dict[str, Tensor] = {}
    for key, value in tensors.items():
        name = rename(key)
        if name in renamed:
            raise CheckpointError(
                f"{folder}: expected one tensor {name}, found several whose keys differ only in "
                f"their prefix, such as {key}"
            )
        renamed[name] = value
    return renamed


def _wrapped(key: str, family: Family) -> str:
    """Legacy keys get the family's wrapper: they belong to the stock model inside it."""
    heads = (family.wrapper, "pruning_head.")
    return key if not family.wrapper or key.startswith(heads) else family.wrapper + key


def _build(layout: Layout, tensors: Mapping[str, Tensor], folder: Path) -> tuple[TwoHeadModel, Any]:
    """The module without weights, and the encoder's config."""
    family, encoder = layout.family, layout.encoder
    bare = {key.removeprefix(family.wrapper) for key in tensors}
    score_head = xlm_roberta_pooled if pools_score(family, bare) else encoder.score_head
    try:
        config = encoder.config(**layout.encoder_values, num_labels=1)
        with torch.device("meta"):
            model = TwoHeadModel(
                encoder.build(config),
                score_head(config) if family.has_score else None,
                nn.Linear(config.hidden_size, 2) if family.token_keys else None,
                token_types=getattr(config, "type_vocab_size", 0) > 1,
                pools_sentences=family.scores_sentences,
            )
        longest = encoder.longest_input(config)
    except _BAD_CONFIG as error:
        raise CheckpointError(
            f"{folder / 'config.json'}: not a {encoder.model_type} config: {error}"
        ) from error
    if longest > _LONGEST_INPUT:
        raise CheckpointError(
            f"{folder / 'config.json'}: max_position_embeddings is "
            f"{config.max_position_embeddings}, the limit is {_LONGEST_INPUT} tokens"
        )
    return model, config


def _load_tensors(
    model: TwoHeadModel, layout: Layout, tensors: Mapping[str, Tensor], folder: Path
) -> None:
    """Move the tensors into the module, as float32."""
    expected = {
        layout.checkpoint_key(key): (key, value) for key, value in model.state_dict().items()
    }
    missing = sorted(set(expected) - set(tensors))
    unknown = sorted(k for k in set(tensors) - set(expected) if not layout.is_unused(k))
    shapes = [
        f"{key} is {list(tensors[key].shape)}, config.json says {list(value.shape)}"
        for key, (_, value) in expected.items()
        if key in tensors and tensors[key].shape != value.shape
    ]
    quantised = [
        f"{key} is {str(tensors[key].dtype).removeprefix('torch.')}"
        for key in expected
        if key in tensors and tensors[key].dtype not in _FLOATS
    ]
    if missing or unknown or shapes or quantised:
        parts = [
            f"{title}: {', '.join(keys[:8])}{' …' if len(keys) > 8 else ''}"
            for title, keys in (
                ("missing", missing),
                ("unknown", unknown),
                ("shapes", shapes),
                ("not plain floats", quantised),
            )
            if keys
        ]
        family = layout.family
        raise CheckpointError(
            f"{folder}: expected {family.name} on {layout.encoder.model_type} ({family.layout}; "
            f"{len(expected)} tensors), found {len(tensors)} tensors; " + "; ".join(parts)
        )
    state = {ours: tensors[theirs].float() for theirs, (ours, _) in expected.items()}
    model.load_state_dict(state, assign=True)


def _read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = ("spm.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json")
        found = [name for name in others if (folder / name).is_file()]
        advice = (
            f"; found {', '.join(found)}: save the tokenizer with transformers' fast class"
            if found
            else ""
        )
        raise CheckpointError(f"{path}: no such file{advice}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise CheckpointError(f"{path}: {error}") from error
    # The largest id, not the count: vocabularies have gaps.
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.get_vocab_size()} tokens with ids up to "
            f"{largest}, the model only {vocab_size} embeddings"
        )
    return tokenizer
