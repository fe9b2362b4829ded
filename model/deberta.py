"""The two-head DeBERTa-v2 cross-encoder as it is trained: a score for the pair, a mask for tokens.

Checkpoints, this model's too, are served by :class:`secateur.model.two_heads.TwoHeadModel`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import DebertaV2Config, DebertaV2Model, DebertaV2PreTrainedModel
from transformers.models.deberta_v2.modeling_deberta_v2 import ContextPooler

from secateur.model.attention import FastDisentangledSelfAttention


def adopt_fast_attention(encoder: DebertaV2Model) -> None:
    """Let an encoder's layers compute the same attention in less time, where they can."""
    for layer in encoder.encoder.layer:
        attention = layer.attention.self
        if FastDisentangledSelfAttention.supports(attention):
            FastDisentangledSelfAttention.adopt(attention)


class DebertaV2ForRerankAndPrune(DebertaV2PreTrainedModel):  # type: ignore[misc]
    """DeBERTa-v2/v3 encoder with Provence's two heads.

    State-dict keys: ``deberta.*``, ``pooler.dense.*``, ``classifier.*`` (1 label) and
    ``token_classifier.*`` (2 labels; label 1 is "keep").
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        self.deberta = DebertaV2Model(config)
        self.pooler = ContextPooler(config)
        self.classifier = nn.Linear(self.pooler.output_dim, 1)
        self.token_classifier = nn.Linear(config.hidden_size, 2)
        self.post_init()
        adopt_fast_attention(self.deberta)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Score padded pairs.

        input_ids, attention_mask, token_type_ids: int64 [B, L]; mask 1 on real tokens, and
        position 0 is always real.

        Returns raw logits ``(score [B], token [B, L, 2])`` in float32, whatever dtype the
        encoder runs in, so that activations never round in low precision.
        """
        hidden = self.deberta(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids if self.config.type_vocab_size > 0 else None,
        ).last_hidden_state  # [B, L, D]
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.to(self.classifier.weight.dtype)
            score = self.classifier(self.pooler(hidden)).squeeze(-1)  # [B]
            token = self.token_classifier(hidden)  # [B, L, 2]
        return score.float(), token.float()
