"""Pruning the plain way: what Provence's published ``process()`` does, on stock transformers.

For a question and its contexts: split into sentences; pack whole sentences into blocks of at most
512 tokens, each ``[CLS] question [SEP] sentences [SEP]``; run the blocks in batches of 32, padded
to the longest; keep a sentence when the mean keep probability of its tokens is above the
threshold. Written anew from the description, with transformers' own DebertaV2 classes and nothing
of the engine but its sentence splitter, so that it is both an opponent and an oracle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import DebertaV2Config, DebertaV2Model, PreTrainedTokenizerFast
from transformers.models.deberta_v2.modeling_deberta_v2 import ContextPooler

from secateur.bench.agreement import Verdict
from secateur.model.engine import Splitter

BATCH_SIZE = 32
BLOCK_TOKENS = 512

SPECIAL_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk")}


@dataclass(frozen=True, slots=True)
class Processed:
    """What became of one context.

    reranking_score: the raw logit, the highest of its blocks. probabilities: of each sentence,
    the mean over its tokens. compression_rate: percent of characters removed.
    """

    pruned_context: str
    reranking_score: float
    compression_rate: float
    probabilities: tuple[float, ...]
    kept: tuple[bool, ...]
    block_count: int

    @property
    def verdict(self) -> Verdict:
        """In the form that sides are compared in."""
        return Verdict(self.reranking_score, self.kept, self.block_count)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """One model input. context: which one. sentences: of each token from ``first`` on."""

    context: int
    ids: NDArray[np.int64]
    first: int
    sentences: NDArray[np.int64]


class _StockModel(nn.Module):
    """transformers' encoder and pooler with the two linear heads, keyed as checkpoints are."""

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        self.deberta = DebertaV2Model(config)
        self.pooler = ContextPooler(config)
        self.classifier = nn.Linear(self.pooler.output_dim, 1)
        self.token_classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B] and keep probabilities [B, L]."""
        hidden = self.deberta(**inputs).last_hidden_state  # [B, L, D]
        scores = self.classifier(self.pooler(hidden)).squeeze(-1)
        return scores, self.token_classifier(hidden).softmax(dim=-1)[..., 1]


class PlainProcess:
    """A checkpoint with Provence's keys on stock classes, in float32 on the CPU.

    folder: of config.json, model.safetensors and tokenizer.json. splitter: of the engine.
    """

    def __init__(self, folder: Path, splitter: Splitter, threshold: float) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._model = _StockModel(DebertaV2Config(**{**config, "model_type": "deberta-v2"}))
        weights = load_file(folder / "model.safetensors")
        self._model.load_state_dict({key: value.float() for key, value in weights.items()})
        self._model.eval()
        self._types = config["type_vocab_size"] > 1
        self._tokenizer: Any = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), **SPECIAL_TOKENS
        )
        self._block_tokens = min(BLOCK_TOKENS, config["max_position_embeddings"])
        self._splitter = splitter
        self._threshold = threshold

    def process(self, question: str, contexts: Sequence[str]) -> list[Processed]:
        """One question's contexts, in order."""
        return self.process_all([(question, contexts)])[0]

    def process_all(self, requests: Sequence[tuple[str, Sequence[str]]]) -> list[list[Processed]]:
        """Many questions with their contexts in one call, whose blocks share batches.

        Blocks are sorted by length first, which spares padding.
        """
        texts = [context for _, contexts in requests for context in contexts]
        spans = [self._splitter.split(text).spans for text in texts]
        questions = [
            ids
            for question, contexts in requests
            for ids in [self._encode(question)[0]] * len(contexts)
        ]
        blocks = [
            block
            for number, text in enumerate(texts)
            for block in self._blocks(number, questions[number], text, spans[number])
        ]
        outputs = self._run(blocks)
        by_context: list[list[int]] = [[] for _ in texts]
        for position, block in enumerate(blocks):
            by_context[block.context].append(position)
        done = iter(
            self._processed(text, spans[number], [(blocks[i], *outputs[i]) for i in positions])
            for number, (text, positions) in enumerate(zip(texts, by_context, strict=True))
        )
        return [[next(done) for _ in contexts] for _, contexts in requests]

    def token_count(self, question: str, contexts: Sequence[str]) -> int:
        """Tokens of all blocks, without padding."""
        question_ids = self._encode(question)[0]
        return sum(
            len(block.ids)
            for text in contexts
            for block in self._blocks(0, question_ids, text, self._splitter.split(text).spans)
        )

    def _encode(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids and first characters of a text's tokens, without special ones."""
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in encoded["offset_mapping"]]
        return np.array(encoded["input_ids"], np.int64), np.array(starts, np.int64)

    def _blocks(
        self,
        context: int,
        question_ids: NDArray[np.int64],
        text: str,
        spans: Sequence[tuple[int, int]],
    ) -> list[_Block]:
        ids, starts = self._encode(text)
        owners = np.searchsorted([end for _, end in spans], starts, side="right")
        cls_id, sep_id = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        head = np.array([cls_id, *question_ids, sep_id], np.int64)
        room = self._block_tokens - len(head) - 1
        parts: list[list[int]] = [[]]  # tokens of each block
        for sentence in range(len(spans)):
            tokens = np.flatnonzero(owners == sentence)[:room].tolist()  # over a block: cut
            if parts[-1] and len(parts[-1]) + len(tokens) > room:
                parts.append([])
            parts[-1] += tokens
        return [
            _Block(context, np.concatenate([head, ids[part], [sep_id]]), len(head), owners[part])
            for part in parts
        ]

    @torch.inference_mode()
    def _run(self, blocks: Sequence[_Block]) -> list[tuple[float, NDArray[np.float32]]]:
        """Logit and keep probabilities [L] of each block, in order."""
        outputs: dict[int, tuple[float, NDArray[np.float32]]] = {}
        order = sorted(range(len(blocks)), key=lambda i: -len(blocks[i].ids))
        for start in range(0, len(order), BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            shape = len(batch), max(len(blocks[i].ids) for i in batch)
            ids = torch.full(shape, self._tokenizer.pad_token_id)
            mask, types = torch.zeros_like(ids), torch.zeros_like(ids)  # [B, L]
            for row, block in enumerate(blocks[i] for i in batch):
                ids[row, : len(block.ids)] = torch.from_numpy(block.ids)
                mask[row, : len(block.ids)] = 1
                types[row, block.first : len(block.ids)] = 1
            inputs = {"token_type_ids": types} if self._types else {}
            scores, keep = self._model(input_ids=ids, attention_mask=mask, **inputs)
            for row, i in enumerate(batch):
                outputs[i] = float(scores[row]), keep[row].numpy()
        return [outputs[i] for i in range(len(blocks))]

    def _processed(
        self,
        text: str,
        spans: Sequence[tuple[int, int]],
        scored: Sequence[tuple[_Block, float, NDArray[np.float32]]],
    ) -> Processed:
        by_sentence: list[list[float]] = [[] for _ in spans]
        for block, _, keep in scored:
            for position, sentence in enumerate(block.sentences, block.first):
                by_sentence[sentence].append(float(keep[position]))
        # A sentence without any token cannot be judged: it is kept.
        means = tuple(float(np.mean(values)) if values else 1.0 for values in by_sentence)
        kept = tuple(mean > self._threshold for mean in means)
        pruned = " ".join(
            text[start:end] for (start, end), keep in zip(spans, kept, strict=True) if keep
        )
        return Processed(
            pruned_context=pruned,
            reranking_score=max(score for _, score, _ in scored),
            compression_rate=100 * (1 - len(pruned) / len(text)),
            probabilities=means,
            kept=kept,
            block_count=len(scored),
        )
