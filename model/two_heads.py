"""One module for every checkpoint family: an encoder, a score head and a token head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PooledScore(nn.Module):
    """Score from a pooled vector: BERT's and XLM-R's pooler, DeBERTa's ContextPooler.

    A head that pools by itself, as RoBERTa's and ELECTRA's do, stands behind ``nn.Identity``.
    """

    def __init__(self, pooler: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.pooler = pooler
        self.classifier = classifier

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:  # noqa: ARG002
        """[B, L, D] → raw logits [B]."""
        logits: Tensor = self.classifier(self.pooler(hidden))  # [B, 1]
        return logits.squeeze(-1)


class HeadedScore(nn.Module):
    """ModernBERT's head: the first token's vector or the mean over the tokens."""

    def __init__(self, head: nn.Module, classifier: nn.Module, *, mean: bool) -> None:
        super().__init__()
        self.head = head
        self.classifier = classifier
        self._mean = mean

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, L, D], [B, L] → raw logits [B]."""
        if self._mean:
            mask = attention_mask.to(hidden.dtype).unsqueeze(-1)  # [B, L, 1]
            pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)  # [B, D]
        else:
            pooled = hidden[:, 0]
        logits: Tensor = self.classifier(self.head(pooled))  # [B, 1]
        return logits.squeeze(-1)


class TwoHeadModel(nn.Module):
    """Encoder and heads. State-dict keys: ``encoder.*``, ``score.*``, ``token.*``.

    encoder: a transformers encoder. score: [B, L, D] and mask → [B]; ``None`` when the family
    has no passage score. token: D → 2 logits, label 1 is "keep"; ``None`` for a plain
    reranker. token_types: whether the encoder tells query and passage apart.
    pools_sentences: the token head scores the mean vector of each sentence, and every token
    of the sentence gets its logits.

    Heads run in their own weights' dtype, float32, whatever the encoder runs in.
    """

    def __init__(
        self,
        encoder: nn.Module,
        score: nn.Module | None,
        token: nn.Module | None,
        *,
        token_types: bool,
        pools_sentences: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.score = score
        self.token = token
        self.pools_sentences = pools_sentences
        self._token_types = token_types

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        sentences: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Raw float32 logits ``(score [B], token [B, L, 2])`` of padded pairs.

        input_ids, attention_mask, token_type_ids: int64 [B, L]; mask 1 on real tokens, and
        position 0 is always real. sentences: int64 [B, L], the sentence of each passage token
        and -1 elsewhere; needed where ``pools_sentences``.
        """
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._token_types:
            inputs["token_type_ids"] = token_type_ids
        hidden = self.encoder(**inputs).last_hidden_state.float()  # [B, L, D]
        score = None if self.score is None else self.score(hidden, attention_mask)
        if self.token is None:
            return score, None
        if not self.pools_sentences:
            return score, self.token(hidden)
        if sentences is None:
            raise ValueError("sentences is required")
        return score, _by_sentence(hidden, sentences, self.token)

    @property
    def can_pack(self) -> bool:
        """Whether ``heads`` can do without the other tokens of a sequence."""
        return not self.pools_sentences and isinstance(self.score, PooledScore | None)

    def heads(self, first: Tensor, passage: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Raw logits ``(score [B], token [N, 2])`` of hidden states that are already there.

        first: [B, D], of each sequence's first token. passage: [N, D], of any tokens.
        """
        score = None if self.score is None else self.score(first.unsqueeze(1), None)
        return score, None if self.token is None else self.token(passage)


def _by_sentence(hidden: Tensor, sentences: Tensor, classifier: nn.Module) -> Tensor:
    """Logits of each sentence's mean vector, at each of its tokens; 0 elsewhere: [B, L, 2]."""
    owned = sentences >= 0  # [B, L]
    first = torch.where(owned, sentences, sentences.max()).amin(dim=1, keepdim=True)  # [B, 1]
    index = torch.where(owned, sentences - first, 0)  # [B, L], from 0 in every window
    count = int(index.max()) + 1
    member = nn.functional.one_hot(index, count).to(hidden.dtype) * owned.unsqueeze(-1)
    sums = member.transpose(1, 2) @ hidden  # [B, S, D]
    means = sums / member.sum(dim=1).clamp(min=1).unsqueeze(-1)
    logits = classifier(means)  # [B, S, 2]
    spread = logits.gather(1, index.unsqueeze(-1).expand(-1, -1, 2))  # [B, L, 2]
    return torch.where(owned.unsqueeze(-1), spread, 0.0)
