"""A DeBERTa-v2 encoder over sequences laid end to end, without padding, for inference on a CPU.

Linear layers see all tokens of a batch as the rows of one matrix; attention goes sequence by
sequence. What does not depend on the input is computed at load: query, key and value projections
are one matrix, the projected relative embeddings are a table, and the score's scale
1 / sqrt(3 d) is folded into both (He et al. 2021, https://arxiv.org/abs/2006.03654, equation 4).
Position terms are computed for every bucket, and spread to the distances in the softmax's own
pass over the scores.

Threads take whole sequences, each through all layers, where that fills them evenly: they never
wait for one another. Else torch shares each operation among its own threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DebertaV2Model
from transformers.activations import GELUActivation

from secateur.model import kernels
from secateur.model.attention import (
    SCORES_AT_A_TIME,
    FastDisentangledSelfAttention,
    bucket_row,
    single_threaded,
)
from secateur.model.scratch import Room, Scratch

Linear = Callable[..., Tensor]
"""A layer of :mod:`secateur.model.linear`: input, room and the name of the result's room."""

Sequences = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]

_UNEVEN: Final = 1.25
"""Sharing sequences out pays while the fullest thread has at most this times its fair share."""

_CHUNK_TOKENS: Final = 512
"""Tokens that one thread takes through all layers together: their states stay in its cache."""


class PackedEncoder:
    """The hidden states of ``encoder``, for any number of unpadded sequences at once.

    encoder: a float32 DeBERTa-v2 on the CPU that ``supports`` accepts; later changes of its
        weights are not seen. linear: makes what takes a linear layer's place, such as
        ``Int8Linear``. threads: how many may run at once.
    Not thread-safe: one call at a time.
    """

    def __init__(
        self, encoder: DebertaV2Model, *, linear: Callable[[nn.Linear], Linear], threads: int
    ) -> None:
        self._embeddings = encoder.embeddings
        with torch.inference_mode():
            relative = encoder.encoder.get_rel_embedding()
            self._layers = [_Layer(layer, relative, linear) for layer in encoder.encoder.layer]
        attention = encoder.encoder.layer[0].attention.self
        self._buckets = int(attention.position_buckets)
        self._longest = int(attention.max_relative_positions)
        self._threads = threads
        self._scratch = Scratch()

    @staticmethod
    def supports(encoder: nn.Module) -> bool:
        """Whether an encoder is a DeBERTa-v2 with both position terms and no convolution."""
        return (
            isinstance(encoder, DebertaV2Model)
            and encoder.encoder.conv is None
            and all(
                FastDisentangledSelfAttention.supports(layer.attention.self)
                for layer in encoder.encoder.layer
            )
        )

    def __call__(self, sequences: Sequences) -> list[Tensor]:
        """(input_ids, token_type_ids), each int64 [L], of each → float32 hidden states [L, D]."""
        try:
            return self._shared_out(sequences)
        except BaseException:
            self._scratch = Scratch()  # a batch that was too large must leave room for smaller ones
            raise

    def _shared_out(self, sequences: Sequences) -> list[Tensor]:
        lengths = [len(ids) for ids, _ in sequences]
        shares = even_shares(lengths, self._threads)
        if shares is None or self._threads == 1:
            return self._run(sequences)
        parts = [part for share in shares for part in _chunks(share, lengths)]
        hidden: dict[int, Tensor] = {}
        run = single_threaded(self._threads).map(
            lambda part: self._run([sequences[place] for place in part]), parts
        )
        for part, found in zip(parts, run, strict=True):
            hidden.update(zip(part, found, strict=True))
        return [hidden[place] for place in range(len(sequences))]

    @torch.inference_mode()
    def _run(self, sequences: Sequences) -> list[Tensor]:
        lengths = [len(ids) for ids, _ in sequences]
        ids, types = (
            torch.from_numpy(np.concatenate(parts)).unsqueeze(0)
            for parts in zip(*sequences, strict=True)
        )
        positions = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])).unsqueeze(0)
        x = self._embeddings(input_ids=ids, token_type_ids=types, position_ids=positions)[0]
        buckets = [bucket_row(length, self._buckets, self._longest) for length in lengths]
        for layer in self._layers:
            x = layer(x, buckets, self._scratch)
        return list(x.split(lengths))


class _Layer:
    """One transformer layer with its tables."""

    def __init__(self, layer: Any, relative: Tensor, linear: Callable[[nn.Linear], Linear]) -> None:
        attention = layer.attention.self
        self._heads = int(attention.num_attention_heads)
        self._head_size = int(attention.attention_head_size)
        scale = (3 * self._head_size) ** -0.5
        query, key, value = attention.query_proj, attention.key_proj, attention.value_proj
        qkv = nn.Linear(query.in_features, 3 * query.out_features, dtype=torch.float32)
        qkv.weight.copy_(torch.cat([query.weight * scale, key.weight, value.weight]))
        qkv.bias.copy_(torch.cat([query.bias * scale, key.bias, value.bias]))
        self._qkv = linear(qkv)
        positions = relative[: 2 * attention.pos_ebd_size]  # [B, D]
        shared = attention.share_att_key
        pos_key = (key if shared else attention.pos_key_proj)(positions)  # [B, H*d]
        pos_query = (query if shared else attention.pos_query_proj)(positions) * scale
        heads = (-1, self._heads, self._head_size)
        self._pos_key = pos_key.view(heads).permute(1, 2, 0).contiguous()  # [H, d, B]
        self._pos_query = pos_query.view(heads).transpose(0, 1).contiguous()  # [H, B, d]
        self._out = linear(layer.attention.output.dense)
        self._out_norm: Callable[[Tensor], Tensor] = layer.attention.output.LayerNorm
        self._up = linear(layer.intermediate.dense)
        self._activation = _in_place(layer.intermediate.intermediate_act_fn)
        self._down = linear(layer.output.dense)
        self._down_norm: Callable[[Tensor], Tensor] = layer.output.LayerNorm

    def __call__(self, x: Tensor, buckets: Sequence[NDArray[np.uint32]], room: Room) -> Tensor:
        """[T, D] → [T, D]. buckets: of each sequence."""
        lengths = [(len(bucket) + 1) // 2 for bucket in buckets]
        qkv = self._qkv(x, room, "qkv").view(len(x), 3, self._heads, -1)
        query, key, value = qkv.permute(1, 2, 0, 3)  # each [H, T, d]
        context = room("context", len(x), self._heads, self._head_size)
        for q, k, v, into, bucket in zip(
            query.split(lengths, 1),
            key.transpose(1, 2).split(lengths, 2),
            value.split(lengths, 1),
            context.transpose(0, 1).split(lengths, 1),
            buckets,
            strict=True,
        ):
            self._attend(q, k, v, into, bucket, room)
        x = self._out_norm(self._out(context.flatten(1), room, "out").add_(x))
        up = self._activation(self._up(x, room, "up"))
        return self._down_norm(self._down(up, room, "down").add_(x))

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        context: Tensor,
        bucket: NDArray[np.uint32],
        room: Room,
    ) -> None:
        """One sequence, some heads at a time.

        query and value: [H, L, d]; key: [H, d, L]; context, filled in: [H, L, d].
        """
        length = query.shape[1]
        step = max(1, SCORES_AT_A_TIME // length**2)
        parts = (query, key, value, context, self._pos_key, self._pos_query)
        some = zip(*(part.split(step) for part in parts), strict=True)
        for q, k, v, into, pos_key, pos_query in some:
            count, places = len(pos_key), pos_key.shape[2]
            scores = room("scores", count, length, length)
            torch.bmm(q, k, out=scores)
            c2p = room("c2p", count, length, places)
            torch.bmm(q, pos_key, out=c2p)
            p2c = room("p2c", count, places, length)
            torch.bmm(pos_query, k, out=p2c)
            kernels.biased_softmax(
                scores.numpy(), c2p.numpy(), p2c.numpy(), bucket, np.full(count, length)
            )
            found = room("found", count, length, self._head_size)
            into.copy_(torch.bmm(scores, v, out=found))


def _in_place(activation: Any) -> Callable[[Tensor], Tensor]:
    """The activation; the usual one without new memory."""
    exact = isinstance(activation, GELUActivation) and activation.act is nn.functional.gelu
    return torch.ops.aten.gelu_ if exact else activation


def even_shares(lengths: Sequence[int], threads: int) -> list[list[int]] | None:
    """Share sequences out: the longest left goes to whoever has least.

    Returns the places of the sequences of each thread, or ``None`` where that is too uneven.
    """
    shares: list[list[int]] = [[] for _ in range(threads)]
    tokens = [0] * threads
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        least = tokens.index(min(tokens))
        shares[least].append(place)
        tokens[least] += lengths[place]
    return shares if max(tokens) * threads <= _UNEVEN * sum(tokens) else None


def _chunks(places: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    chunks: list[list[int]] = []
    tokens = 0
    for place in places:
        tokens += lengths[place]
        if not chunks or tokens > _CHUNK_TOKENS:
            chunks.append([])
            tokens = lengths[place]
        chunks[-1].append(place)
    return chunks
