"""Disentangled self-attention without the reference's repeated gathers.

DeBERTa's score of query i and key j is ``(q_i·k_j + q_i·P_b + k_j·Q_b) / sqrt(3 d)``, where
b is the bucket of the distance i - j, and P, Q are the projected relative embeddings
(He et al. 2021, https://arxiv.org/abs/2006.03654, equation 4). The two position terms are
first computed for every bucket ([L, buckets]) and then spread to the distances ([L, L]): on a
CPU inside the softmax's own pass, forward and backward, by :mod:`secateur.model.kernels`;
elsewhere by a gather, whose result is the bias of one fused attention kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from threading import Barrier, Lock
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DisentangledSelfAttention,
    make_log_bucket_position,
)

from secateur.model import kernels

SCORES_AT_A_TIME: Final = 1 << 18
"""Attention scores that are worked on at a time: a megabyte stays in a core's own cache."""

FUSED: Final = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
"""Kernels off the CPU, the first one that fits. Flash attention takes no bias, and cuDNN, which
torch prefers on some GPUs, builds a plan for every new shape: batches have ever new ones."""

_starting: Final = Lock()
"""Two pools that start at a time would read each other's number of threads."""


@lru_cache(maxsize=1024)
def bucket_row(length: int, buckets: int, longest: int) -> NDArray[np.uint32]:
    """Row of the relative embeddings at each j - i from 1 - L to L - 1: uint32 [2 L - 1].

    buckets, longest: ``position_buckets`` (≤ 0: every distance is its own bucket) and
    ``max_relative_positions`` of the config.
    """
    distance = torch.arange(length - 1, -length, -1)  # i - j
    span = buckets if buckets > 0 else longest
    if buckets > 0:
        distance = make_log_bucket_position(distance, buckets, longest).long()
    return (distance + span).clamp(0, 2 * span - 1).numpy().astype(np.uint32)


class _Attention(torch.autograd.Function):
    """Attention on the CPU in float32, some heads at a time so that scores stay in the cache.

    The weights are not kept for the backward pass but computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        c2p: Tensor,
        p2c: Tensor,
        bucket: NDArray[np.uint32],
        lengths: NDArray[np.int64],
    ) -> Tensor:
        """query (scaled), key, value: [N, L, d]; the rest: see ``kernels.biased_softmax``."""
        tensors = tuple(t.float().contiguous() for t in (query, key, value, c2p, p2c))
        context = torch.empty_like(tensors[0])

        @torch.inference_mode()
        def some(part: slice) -> None:
            weights = _weights(tensors, part, bucket, lengths)
            torch.bmm(weights, tensors[2][part], out=context[part])

        _each_part(some, len(context), context.shape[1])
        ctx.save_for_backward(*tensors)
        ctx.constants = bucket, lengths
        return context

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        bucket, lengths = ctx.constants
        tensors = ctx.saved_tensors
        query, key, value = tensors[:3]
        grad = grads[0].float().contiguous()
        results = tuple(torch.zeros_like(t) for t in tensors)
        d_query, d_key, d_value, d_c2p, d_p2c = results

        @torch.inference_mode()
        def some(part: slice) -> None:
            weights = _weights(tensors, part, bucket, lengths)
            torch.bmm(weights.transpose(1, 2), grad[part], out=d_value[part])
            scores = torch.bmm(grad[part], value[part].transpose(1, 2))
            kernels.biased_softmax_backward(
                weights.numpy(),
                scores.numpy(),
                bucket,
                lengths[part],
                d_c2p[part].numpy(),
                d_p2c[part].numpy(),
            )
            torch.bmm(scores, key[part], out=d_query[part])
            torch.bmm(scores.transpose(1, 2), query[part], out=d_key[part])

        _each_part(some, len(query), query.shape[1])
        return *results, None, None


def _weights(
    tensors: Sequence[Tensor],
    part: slice,
    bucket: NDArray[np.uint32],
    lengths: NDArray[np.int64],
) -> Tensor:
    """Attention weights [n, L, L] of some of the N sequences and heads."""
    query, key, _, c2p, p2c = (tensor[part] for tensor in tensors)
    weights = torch.bmm(query, key.transpose(1, 2))
    kernels.biased_softmax(weights.numpy(), c2p.numpy(), p2c.numpy(), bucket, lengths[part])
    return weights


class FastDisentangledSelfAttention(DisentangledSelfAttention):  # type: ignore[misc]
    """Same parameters and results as transformers' class, in fewer passes over [L, L].

    Handles self-attention with c2p and p2c terms; padding comes last.
    """

    @classmethod
    def adopt(cls, module: DisentangledSelfAttention) -> None:
        """Turn a stock module into this class in place; its parameters stay where they are."""
        module.__class__ = cls

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
        if query_states is not None or output_attentions:
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
        scale = (3 * self.attention_head_size) ** -0.5
        query = self._heads(self.query_proj(hidden_states)) * scale  # [B*H, L, d]
        key = self._heads(self.key_proj(hidden_states))
        value = self._heads(self.value_proj(hidden_states))

        positions = self.pos_dropout(rel_embeddings[: 2 * self.pos_ebd_size])
        key_proj = self.key_proj if self.share_att_key else self.pos_key_proj
        query_proj = self.query_proj if self.share_att_key else self.pos_query_proj
        pos_key = self._position_heads(key_proj(positions)).transpose(1, 2)  # [H, d, buckets]
        pos_query = self._position_heads(query_proj(positions)) * scale  # [H, buckets, d]
        c2p = torch.matmul(self._by_head(query), pos_key).flatten(0, 1)  # [B*H, L, buckets]
        p2c = torch.matmul(pos_query, self._by_head(key).transpose(2, 3)).flatten(0, 1)

        places = length, self.position_buckets, self.max_relative_positions
        real = attention_mask[:, 0, 0].bool()  # [B, L]; row 0 is never padding
        if query.device.type == "cpu" and not (self.training and self.dropout.p):
            lengths = real.sum(dim=1).repeat_interleave(self.num_attention_heads).numpy()
            context = _Attention.apply(  # type: ignore[no-untyped-call]
                query, key, value, c2p, p2c, bucket_row(*places), lengths
            ).to(value.dtype)
        else:
            bias = _gathered(c2p, p2c, _row_on(query.device, *places))
            context = fused_attention(
                self._by_head(query),
                self._by_head(key),
                self._by_head(value),
                self._by_head(bias),
                real,
                dropout=self.dropout.p if self.training else 0.0,
            ).flatten(0, 1)
        return self._by_head(context).transpose(1, 2).reshape(batch, length, -1), None

    def _heads(self, x: Tensor) -> Tensor:
        """[B, L, H*d] → [B*H, L, d]."""
        batch, length, _ = x.shape
        x = x.view(batch, length, self.num_attention_heads, self.attention_head_size)
        return x.transpose(1, 2).reshape(-1, length, self.attention_head_size)

    def _position_heads(self, x: Tensor) -> Tensor:
        """[buckets, H*d] → [H, buckets, d]."""
        x = x.view(x.shape[0], self.num_attention_heads, self.attention_head_size)
        return x.transpose(0, 1)

    def _by_head(self, x: Tensor) -> Tensor:
        """[B*H, …] → [B, H, …]."""
        return x.view(-1, self.num_attention_heads, *x.shape[1:])


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, real: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """Softmax of query · key + bias over the real keys, times value: [B, H, L, d].

    query (scaled), key, value: [B, H, L, d]. bias: [B, H, L, L], overwritten. real: bool [B, L].
    A sequence without any real key gets finite numbers that mean nothing.
    """
    # Not -inf, whose softmax is NaN where all are. Half of the lowest number, because kernels
    # multiply scores by log2(e).
    bias = bias.masked_fill_(~real[:, None, None], torch.finfo(bias.dtype).min / 2)
    with sdpa_kernel(list(FUSED)):
        return scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=dropout, scale=1.0
        )


def _gathered(c2p: Tensor, p2c: Tensor, row: Tensor) -> Tensor:
    """[N, L, buckets] and [N, buckets, L] → their sum at each (query, key): [N, L, L]."""
    # Row i holds the entries from L - 1 - i on.
    index = row.unfold(0, c2p.shape[1], 1).flip(0).expand(c2p.shape[0], -1, -1)  # [N, L, L]
    return c2p.gather(2, index) + p2c.gather(1, index)


@lru_cache(maxsize=1024)
def _row_on(device: torch.device, length: int, buckets: int, longest: int) -> Tensor:
    """``bucket_row`` on a device, int64. A copy in every layer would wait for the device."""
    return torch.from_numpy(bucket_row(length, buckets, longest).astype(np.int64)).to(device)


def _each_part(work: Callable[[slice], None], count: int, length: int) -> None:
    """Do the work for every part of ``count`` heads, on all of torch's threads."""
    step = max(1, SCORES_AT_A_TIME // length**2)
    parts = [slice(first, min(first + step, count)) for first in range(0, count, step)]
    for _ in single_threaded(torch.get_num_threads()).map(work, parts):
        pass


def single_threaded(threads: int) -> ThreadPoolExecutor:
    """The pool of so many threads, started, in which torch's operations use one thread each."""
    with _starting:
        return _single_threaded(threads)


@cache
def _single_threaded(threads: int) -> ThreadPoolExecutor:
    inside = torch.get_num_threads()
    barrier = Barrier(threads)

    def start() -> None:
        torch.get_num_threads()  # a thread's first use of torch sets the number anew
        torch.set_num_threads(1)
        barrier.wait()

    pool = ThreadPoolExecutor(threads, "forward")
    for task in [pool.submit(start) for _ in range(threads)]:
        task.result()
    torch.set_num_threads(inside)  # the number that threads to come begin with
    return pool
