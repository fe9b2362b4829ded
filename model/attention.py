"""Disentangled self-attention without the reference's repeated gathers.

DeBERTa's score of query i and key j is ``(q_i·k_j + q_i·P_b + k_j·Q_b) / sqrt(3 d)``, where
b is the bucket of the distance i - j, and P, Q are the projected relative embeddings
(He et al. 2021, https://arxiv.org/abs/2006.03654, equation 4). The two position terms are
first computed for every bucket ([L, buckets]) and then spread to the distances ([L, L]). At
inference that is a gather. In training it is a matrix product with one-hot buckets, whose
backward pass is a matrix product too, where a gather's would be a slow scatter; its tables take
2 · L² · buckets numbers, which is why inference, with its many lengths, does without them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention


def bucket_index(relative_pos: Tensor, span: int) -> Tensor:
    """[1, L, L] bucketed distances → int64 [L, L], the row of each in the relative embeddings."""
    return (relative_pos[0].long() + span).clamp(0, 2 * span - 1)


def gather_buckets(c2p: Tensor, p2c: Tensor, bucket: Tensor) -> Tensor:
    """[N, L, buckets] c2p and p2c scores → their sum at each (query, key): [N, L, L]."""
    rows = c2p.shape[0]
    from_query = c2p.gather(2, bucket.expand(rows, -1, -1))
    from_key = p2c.gather(2, bucket.t().contiguous().expand(rows, -1, -1))
    return from_query + from_key.transpose(1, 2)


class BucketTable:
    """One-hot distance buckets of one sequence length, shared by all layers."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._value: tuple[Tensor, Tensor] | None = None

    def get(self, relative_pos: Tensor, span: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return ``(by_query, by_key)``, each [L, 2 * span, L].

        by_query[i, b, j] and by_key[j, b, i] are 1 where b is the bucket of i - j.
        relative_pos: [1, L, L] bucketed distances, as the encoder computes them.
        """
        key = (relative_pos.shape[-1], span, dtype, relative_pos.device)
        value = self._value
        if value is None or key != self._key:
            bucket = bucket_index(relative_pos, span)
            one_hot = nn.functional.one_hot(bucket, 2 * span).to(dtype)  # [i, j, b]
            value = one_hot.transpose(1, 2).contiguous(), one_hot.permute(1, 2, 0).contiguous()
            self._key, self._value = key, value
        return value


class _SpreadBuckets(torch.autograd.Function):
    """The same as ``gather_buckets``, by matrix products forward and backward."""

    @staticmethod
    def forward(ctx: Any, c2p: Tensor, p2c: Tensor, by_query: Tensor, by_key: Tensor) -> Tensor:
        ctx.save_for_backward(by_query, by_key)
        from_query = torch.bmm(c2p.transpose(0, 1), by_query).transpose(0, 1)
        from_key = torch.bmm(p2c.transpose(0, 1), by_key).transpose(0, 1).contiguous()
        return from_query + from_key.transpose(1, 2)  # [N, L, L]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (grad,) = grads
        by_query, by_key = ctx.saved_tensors
        c2p = torch.bmm(grad.transpose(0, 1), by_query.transpose(1, 2))
        grad_t = grad.transpose(1, 2).contiguous()
        p2c = torch.bmm(grad_t.transpose(0, 1), by_key.transpose(1, 2))
        return c2p.transpose(0, 1), p2c.transpose(0, 1), None, None


class FastDisentangledSelfAttention(DisentangledSelfAttention):  # type: ignore[misc]
    """Same parameters and results as transformers' class, in fewer passes over [L, L].

    Handles self-attention with c2p and p2c terms. ``table`` is shared by the layers of one
    model in training, which therefore must not run in two threads at once.
    """

    table: BucketTable

    @classmethod
    def adopt(cls, module: DisentangledSelfAttention, table: BucketTable) -> None:
        """Turn a stock module into this class in place; its parameters stay where they are."""
        module.__class__ = cls
        module.table = table

    @staticmethod
    def supports(module: DisentangledSelfAttention) -> bool:
        """Whether a stock module has both position terms, and can be adopted."""
        return bool(module.relative_attention) and {"c2p", "p2c"} <= set(module.pos_att_type)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states: [B, L, D]; attention_mask: [B, 1, L, L], key mask equal in all rows.

        Returns ([B, L, D], None): attention weights are never returned.
        """
        if query_states is not None or output_attentions or relative_pos is None:
            return super().forward(  # type: ignore[no-any-return]
                hidden_states,
                attention_mask,
                output_attentions,
                query_states=query_states,
                relative_pos=relative_pos,
                rel_embeddings=rel_embeddings,
            )
        if rel_embeddings is None:
            raise ValueError("rel_embeddings is required")
        batch, length, _ = hidden_states.shape
        query = self._heads(self.query_proj(hidden_states))  # [B*H, L, d]
        key = self._heads(self.key_proj(hidden_states))
        value = self._heads(self.value_proj(hidden_states))

        span = self.pos_ebd_size
        positions = self.pos_dropout(rel_embeddings[: 2 * span])
        key_proj = self.key_proj if self.share_att_key else self.pos_key_proj
        query_proj = self.query_proj if self.share_att_key else self.pos_query_proj
        pos_key = self._position_heads(key_proj(positions))  # [H, d, 2 * span]
        pos_query = self._position_heads(query_proj(positions))
        c2p = self._by_bucket(query, pos_key)  # [B*H, L, 2 * span]
        p2c = self._by_bucket(key, pos_query)

        if torch.is_grad_enabled():
            tables = self.table.get(relative_pos, span, c2p.dtype)
            spread = _SpreadBuckets.apply(c2p, p2c, *tables)  # type: ignore[no-untyped-call]
        else:
            spread = gather_buckets(c2p, p2c, bucket_index(relative_pos, span))
        scale = (3 * self.attention_head_size) ** -0.5
        scores = torch.baddbmm(spread, query, key.transpose(1, 2), beta=scale, alpha=scale)
        scores = scores.view(batch, self.num_attention_heads, length, length)
        keys = attention_mask[:, :, :1, :].bool()  # [B, 1, 1, L]; row 0 is never padding
        scores = scores.masked_fill(~keys, torch.finfo(scores.dtype).min)
        weights = self.dropout(torch.softmax(scores, dim=-1)).view(-1, length, length)
        context = torch.bmm(weights.to(value.dtype), value)  # [B*H, L, d]
        context = context.view(batch, self.num_attention_heads, length, -1).transpose(1, 2)
        return context.reshape(batch, length, -1), None

    def _heads(self, x: Tensor) -> Tensor:
        """[B, L, H*d] → [B*H, L, d]."""
        batch, length, _ = x.shape
        x = x.view(batch, length, self.num_attention_heads, self.attention_head_size)
        return x.transpose(1, 2).reshape(-1, length, self.attention_head_size)

    def _position_heads(self, x: Tensor) -> Tensor:
        """[buckets, H*d] → [H, d, buckets]."""
        x = x.view(x.shape[0], self.num_attention_heads, self.attention_head_size)
        return x.permute(1, 2, 0)

    def _by_bucket(self, content: Tensor, position: Tensor) -> Tensor:
        """[B*H, L, d] times [H, d, buckets] → [B*H, L, buckets]."""
        length = content.shape[1]
        content = content.view(-1, self.num_attention_heads, length, self.attention_head_size)
        return torch.matmul(content, position).view(-1, length, position.shape[-1])
