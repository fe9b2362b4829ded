"""Which family a checkpoint belongs to, from its config and its keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import transformers
from torch import Tensor

from secateur.errors import CheckpointError, InvariantError
from secateur.model.checkpoints.encoders import ENCODERS, Encoder, Renames
from secateur.model.checkpoints.families import FAMILIES, Family

_WRAPPERS = ("model.", "module.", "_orig_mod.")
"""Prefixes that training tools leave on every key."""

_STOCK_WRAPPER = "ranking_model."
_HEADS = ("pooler.", "head.", "classifier.", "token_classifier.", "pruning_head.", _STOCK_WRAPPER)
_EXTRA_HEADS = ("token_classifier.", "pruning_head.")
_KNOWN = (*(encoder.prefix for encoder in ENCODERS.values()), *_HEADS)

_UNUSED = (
    "lm_predictions.",
    "mask_predictions.",
    "cls.",
    "lm_head.",
    "pruning_head.pooling_weights",
)
_UNUSED_BUFFERS = ("position_ids", "inv_freq")
"""Left by pre-training, or computed anew; Open Provence's pooling is not by token."""

_NOT_THE_ENCODER = re.compile(
    r"_.*|architectures|auto_map|attn_implementation|(torch_)?dtype|transformers_version"
    r"|model_type|secateur|num_labels|id2label|label2id"
    r"|mode|base_model_\w+|tokenizer_name_or_path|pruning_config|max_length|num_pruning_labels"
    r"|encoder_architecture|default_thr\w+"
    r"|return_dict|torchscript|output_attentions|output_hidden_states|use_cache"
    r"|chunk_size_feed_forward"
)
"""Keys of config.json that say nothing about the encoder, or only how to call it."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A family on an encoder.

    encoder_values: of the encoder's config, as the checkpoint states them.
    renames: the checkpoint's key prefixes and ours, the more special ones first.
    """

    family: Family
    encoder: Encoder
    encoder_values: Mapping[str, Any]
    renames: Renames

    def checkpoint_key(self, key: str) -> str:
        """The checkpoint's name of one of our tensors."""
        for theirs, ours in self.renames:
            if key.startswith(ours):
                return theirs + key.removeprefix(ours)
        raise InvariantError(f"a tensor without a place in the checkpoint: {key}; this is a bug")

    def is_unused(self, key: str) -> bool:
        """Whether a key of the checkpoint is known, and left alone."""
        bare = key.removeprefix(self.family.wrapper)
        return bare.startswith((*_UNUSED, f"{self.encoder.prefix}pooler.")) or bare.endswith(
            _UNUSED_BUFFERS
        )


def strip_wrappers(key: str) -> str:
    """A key without the prefixes that training tools add."""
    for wrapper in _WRAPPERS:
        if key.startswith(wrapper):
            rest = strip_wrappers(key.removeprefix(wrapper))
            if rest.startswith(_KNOWN):
                return rest
    return key


def detect(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Layout:
    """The layout of a checkpoint; keys of ``tensors`` went through ``strip_wrappers``.

    The family is the one that ``config["secateur"]["family"]`` names, else the one that
    ``model_type`` or ``architectures`` claim, else the one that the keys tell.
    Raises CheckpointError with what was expected and found, without the folder.
    """
    keys = {key.removeprefix(_STOCK_WRAPPER) for key in tensors}
    base = config.get("base_model_config")
    base = base if isinstance(base, dict) else config
    encoder = _encoder(base, keys)
    if encoder is None:
        raise _unknown(config, tensors)
    family = _named(config, encoder) or _told_by_keys(config, tensors, encoder)
    if family is None:
        raise _unknown(config, tensors)
    values = {key: value for key, value in base.items() if not _NOT_THE_ENCODER.fullmatch(key)}
    return Layout(family, encoder, values, _renames(family, encoder, keys))


def _encoder(base: Mapping[str, Any], keys: set[str]) -> Encoder | None:
    """The one whose keys are there; config.json must not say that it is another one."""
    present = [
        encoder
        for encoder in ENCODERS.values()
        if any(key.startswith(encoder.prefix) for key in keys)
    ]
    stated = ENCODERS.get(str(base.get("model_type")))
    if stated is None or stated in present:
        return stated or (present[0] if present else None)
    if not present:
        return None
    raise CheckpointError(
        f"config.json says model_type {stated.model_type!r}, but the keys {present[0].prefix}* "
        f"are those of {present[0].model_type!r}"
    )


def _named(config: Mapping[str, Any], encoder: Encoder) -> Family | None:
    own = config.get("secateur")
    name = own.get("family") if isinstance(own, dict) else None
    if name is not None:
        if not isinstance(name, str) or name not in FAMILIES:
            raise CheckpointError(
                f'"secateur": family is {name!r}, must be one of {", ".join(FAMILIES)}'
            )
        candidates = [FAMILIES[name]]
    else:
        claimed = [_plain(text) for text in (config.get("model_type"), *_architectures(config))]
        candidates = [
            family
            for family in FAMILIES.values()
            if any(text.startswith(family.claims) for text in claimed if family.claims)
        ]
    if not candidates:
        return None
    for family in candidates:
        if encoder.model_type in family.encoders:
            return family
    allowed = ", ".join(kind for family in candidates for kind in family.encoders)
    raise CheckpointError(
        f"{candidates[0].name} is served on {allowed}, but this encoder is {encoder.model_type}"
    )


def _told_by_keys(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], encoder: Encoder
) -> Family | None:
    extra_heads = any(key.startswith(_EXTRA_HEADS) for key in tensors)
    for family in FAMILIES.values():
        if not family.by_keys or encoder.model_type not in family.encoders:
            continue
        if family.classifier_labels is None:
            if any(key.startswith(family.token_keys) for key in tensors):
                return family
        elif (
            not extra_heads
            and _labels(tensors) == family.classifier_labels
            and _fits_architecture(config, family)
        ):
            return family
    return None


def _fits_architecture(config: Mapping[str, Any], family: Family) -> bool:
    """A stock class is what it says; a name that transformers lacks is some other code."""
    stock = [name for name in _architectures(config) if hasattr(transformers, name)]
    if family.token_keys:
        return not stock
    return all(name.endswith("ForSequenceClassification") for name in _architectures(config))


def _labels(tensors: Mapping[str, Tensor]) -> int | None:
    for key in ("classifier.weight", "classifier.out_proj.weight"):
        if key in tensors:
            return int(tensors[key].shape[0])
    return None


def _renames(family: Family, encoder: Encoder, keys: set[str]) -> Renames:
    """Checkpoint prefixes → ours; ``keys`` are without the family's wrapper."""
    renames: list[tuple[str, str]] = []
    if family.has_score:
        score = encoder.score_keys
        if pools_score(family, keys):
            score = ((f"{encoder.prefix}pooler.", "pooler."), ("classifier.", "classifier."))
        renames += [(f"{family.wrapper}{theirs}", f"score.{ours}") for theirs, ours in score]
    if family.token_keys:
        renames.append((family.token_keys, "token."))
    renames.append((f"{family.wrapper}{encoder.prefix}", "encoder."))
    return tuple(renames)


def pools_score(family: Family, keys: set[str]) -> bool:
    """Whether the score is linear on the pooled output, not RoBERTa's own two-layer head."""
    return family.pooled_score and "classifier.dense.weight" not in keys


def _architectures(config: Mapping[str, Any]) -> Sequence[str]:
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def _plain(text: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(text).lower())


def _unknown(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> CheckpointError:
    groups = Counter(key.partition(".")[0] for key in tensors)
    found = ", ".join(f"{name}.* ({count})" for name, count in groups.most_common(8))
    expected = "\n".join(
        f"  {family.name} on {', '.join(family.encoders)}: {family.layout}"
        for family in FAMILIES.values()
    )
    return CheckpointError(
        f"no known checkpoint layout: found model_type {config.get('model_type')!r}, architectures "
        f"{config.get('architectures')!r}, classifier labels {_labels(tensors)}, and the keys "
        f"{found or '(none)'}; expected one of\n{expected}"
    )
