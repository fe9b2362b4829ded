"""The other sides: sentence-transformers' CrossEncoder, and the plain way to prune."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from transformers.utils.logging import disable_progress_bar

from secateur.bench.process import BLOCK_TOKENS, SPECIAL_TOKENS, PlainProcess
from secateur.bench.timing import Side
from secateur.bench.workload import Query, Workload


class Reranker:
    """A CrossEncoder with a checkpoint's encoder and score head, in float32 on the CPU.

    It prunes nothing, and cuts a pair at 512 tokens. checkpoint: folder with Provence's keys.
    """

    def __init__(self, checkpoint: Path) -> None:
        disable_progress_bar()  # of loading the weights
        with tempfile.TemporaryDirectory() as folder:
            _write_checkpoint(checkpoint, Path(folder))
            self._encoder: Any = CrossEncoder(folder, max_length=BLOCK_TOKENS, device="cpu")

    def scores(self, queries: Sequence[Query], batch_size: int) -> NDArray[np.float32]:
        """Relevance scores of all passages of the queries in one call, in order."""
        pairs = [(query.text, passage) for query in queries for passage in query.passages]
        scores: NDArray[np.float32] = self._encoder.predict(
            pairs, batch_size=batch_size, show_progress_bar=False
        )
        return scores


def reranker_side(name: str, reranker: Reranker, batch_size: int, tokens: Sequence[int]) -> Side:
    """``predict`` with batches of this size; its own default is 32."""
    return Side(
        name=name,
        one=lambda query: reranker.scores([query], batch_size),
        all=lambda queries: reranker.scores(queries, batch_size),
        tokens=tokens,
    )


def process_side(name: str, process: PlainProcess, workload: Workload) -> Side:
    """The plain way."""
    return Side(
        name=name,
        one=lambda query: process.process(query.text, query.passages),
        all=lambda queries: process.process_all([(q.text, q.passages) for q in queries]),
        tokens=[process.token_count(q.text, q.passages) for q in workload.queries],
        read=lambda answer: [passage.verdict for passage in answer],
    )


def _write_checkpoint(checkpoint: Path, folder: Path) -> None:
    """The checkpoint as a stock sequence classifier, with the files that transformers asks for."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config |= {
        "architectures": ["DebertaV2ForSequenceClassification"],
        "model_type": "deberta-v2",
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    state = load_file(checkpoint / "model.safetensors")
    state = {k: v.float() for k, v in state.items() if not k.startswith("token_classifier.")}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": BLOCK_TOKENS,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
