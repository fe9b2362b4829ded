"""The encoders that are served, through transformers' own classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)
from transformers.models.bert.modeling_bert import BertPooler
from transformers.models.deberta_v2.modeling_deberta_v2 import ContextPooler
from transformers.models.electra.modeling_electra import ElectraClassificationHead
from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead
from transformers.models.xlm_roberta.modeling_xlm_roberta import (
    XLMRobertaClassificationHead,
    XLMRobertaPooler,
)

from secateur.model.deberta import adopt_fast_attention
from secateur.model.two_heads import HeadedScore, PooledScore

Renames = tuple[tuple[str, str], ...]
"""(prefix of a key in the checkpoint, prefix of the same key in our module) pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """One ``model_type`` of transformers and the head of its stock sequence classifier.

    prefix: of the encoder's keys in a checkpoint that has heads.
    build: the encoder without its pooler. score_head: the stock head with one label.
    score_keys: where that head's keys lie, and their place in our score head.
    restore_buffers: fills in what a checkpoint does not hold, after building on no device.
    ids_start_after_padding: position ids start at ``pad_token_id`` + 1, so that the first ones
        of ``max_position_embeddings`` are never used.
    double_separator: the stock pair has two separators in the middle.
    """

    model_type: str
    config: Callable[..., Any]
    prefix: str
    build: Callable[[Any], nn.Module]
    score_head: Callable[[Any], nn.Module]
    score_keys: Renames
    restore_buffers: Callable[[Any, Any], None]
    ids_start_after_padding: bool = False
    double_separator: bool = False

    def longest_input(self, config: Any) -> int:
        """Tokens that the encoder has positions for."""
        unused = config.pad_token_id + 1 if self.ids_start_after_padding else 0
        return int(config.max_position_embeddings) - unused


def xlm_roberta_pooled(config: Any) -> nn.Module:
    """A linear layer on XLM-R's pooled output: keys ``pooler.dense.*``, ``classifier.*``."""
    return PooledScore(XLMRobertaPooler(config), nn.Linear(config.hidden_size, 1))


def _bert_score(config: Any) -> nn.Module:
    return PooledScore(BertPooler(config), nn.Linear(config.hidden_size, 1))


def _deberta_score(config: Any) -> nn.Module:
    pooler = ContextPooler(config)
    return PooledScore(pooler, nn.Linear(pooler.output_dim, 1))


def _modernbert_score(config: Any) -> nn.Module:
    return HeadedScore(
        ModernBertPredictionHead(config),
        nn.Linear(config.hidden_size, 1),
        mean=config.classifier_pooling == "mean",
    )


def _fast_deberta(config: Any) -> nn.Module:
    encoder: nn.Module = DebertaV2Model(config)
    adopt_fast_attention(encoder)
    return encoder


def _restore_positions(encoder: Any, config: Any) -> None:
    embeddings = encoder.embeddings
    positions = torch.arange(config.max_position_embeddings).expand((1, -1))  # [1, positions]
    embeddings.position_ids = positions
    if hasattr(embeddings, "token_type_ids"):
        embeddings.token_type_ids = torch.zeros_like(positions)


def _restore_rotary(encoder: Any, config: Any) -> None:
    encoder.rotary_emb = type(encoder.rotary_emb)(config)


_OWN_CLASSIFIER: Renames = (("classifier.", "classifier."),)

_TABLE = (
    Encoder(
        model_type="deberta-v2",
        config=DebertaV2Config,
        prefix="deberta.",
        build=_fast_deberta,
        score_head=_deberta_score,
        score_keys=(("pooler.", "pooler."), *_OWN_CLASSIFIER),
        restore_buffers=_restore_positions,
    ),
    Encoder(
        model_type="xlm-roberta",
        config=XLMRobertaConfig,
        prefix="roberta.",
        build=lambda config: XLMRobertaModel(config, add_pooling_layer=False),
        score_head=lambda config: PooledScore(nn.Identity(), XLMRobertaClassificationHead(config)),
        score_keys=_OWN_CLASSIFIER,
        restore_buffers=_restore_positions,
        ids_start_after_padding=True,
        double_separator=True,
    ),
    Encoder(
        model_type="roberta",
        config=RobertaConfig,
        prefix="roberta.",
        build=lambda config: RobertaModel(config, add_pooling_layer=False),
        score_head=lambda config: PooledScore(nn.Identity(), RobertaClassificationHead(config)),
        score_keys=_OWN_CLASSIFIER,
        restore_buffers=_restore_positions,
        ids_start_after_padding=True,
        double_separator=True,
    ),
    Encoder(
        model_type="modernbert",
        config=ModernBertConfig,
        prefix="model.",
        build=ModernBertModel,
        score_head=_modernbert_score,
        score_keys=(("head.", "head."), *_OWN_CLASSIFIER),
        restore_buffers=_restore_rotary,
    ),
    Encoder(
        model_type="bert",
        config=BertConfig,
        prefix="bert.",
        build=lambda config: BertModel(config, add_pooling_layer=False),
        score_head=_bert_score,
        score_keys=(("bert.pooler.", "pooler."), *_OWN_CLASSIFIER),
        restore_buffers=_restore_positions,
    ),
    Encoder(
        model_type="electra",
        config=ElectraConfig,
        prefix="electra.",
        build=ElectraModel,
        score_head=lambda config: PooledScore(nn.Identity(), ElectraClassificationHead(config)),
        score_keys=_OWN_CLASSIFIER,
        restore_buffers=_restore_positions,
    ),
)

ENCODERS: Mapping[str, Encoder] = MappingProxyType({e.model_type: e for e in _TABLE})
"""By ``model_type``. Of two with one prefix, the first is meant where a config names neither."""
