"""The step that knows torch and the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from secateur.model.prepared import EncodedWindow, WindowOutput

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Arithmetic of the weights and hidden states, by its public name."""


class TorchScorer:
    """Scores windows with a two-head model in one padded forward pass.

    model: ``forward(input_ids, attention_mask, token_type_ids)``, each int64 [B, L], returns
        ``(score_logits [B], token_logits [B, L, 2])``; class 1 of a token means keep.
    Activations are in float32 whatever the dtype: a bfloat16 sigmoid is 1.0 from logit 6.5.
    Not thread-safe: one thread at a time.
    """

    def __init__(
        self, model: nn.Module, *, dtype: str = "float32", device: str = "cpu", pad_id: int = 0
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is unknown; use one of {', '.join(DTYPES)}")
        self.dtype = dtype
        self.device = torch.device(device)
        self._pad_id = pad_id
        self._model = model.to(device=self.device, dtype=DTYPES[dtype]).eval()

    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        """Score the windows, in order. Raises MemoryError when the device's memory is too small."""
        if not windows:
            return []
        shape = (len(windows), max(window.token_count for window in windows))
        input_ids = np.full(shape, self._pad_id, dtype=np.int64)  # [B, L]
        token_type_ids = np.zeros(shape, dtype=np.int64)  # [B, L]
        attention_mask = np.zeros(shape, dtype=np.int64)  # [B, L]
        passage_mask = np.zeros(shape, dtype=np.bool_)  # [B, L]
        for row, window in enumerate(windows):
            input_ids[row, : window.token_count] = window.input_ids
            token_type_ids[row, : window.token_count] = window.token_type_ids
            attention_mask[row, : window.token_count] = 1
            passage_mask[row, window.passage_tokens] = True
        try:
            logits, keep = self._forward(input_ids, attention_mask, token_type_ids, passage_mask)
        except torch.OutOfMemoryError as error:
            raise MemoryError("the batch does not fit into the device's memory") from error
        borders = np.cumsum(passage_mask.sum(axis=1))[:-1]
        return [
            WindowOutput(float(logit), probabilities)
            for logit, probabilities in zip(logits, np.split(keep, borders), strict=True)
        ]

    @torch.inference_mode()
    def _forward(
        self,
        input_ids: np.ndarray,
        attention_mask: np.ndarray,
        token_type_ids: np.ndarray,
        passage_mask: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Float32 relevance logits [B], and keep probabilities of all passage tokens [N]."""
        score_logits, token_logits = self._model(
            torch.from_numpy(input_ids).to(self.device),
            torch.from_numpy(attention_mask).to(self.device),
            torch.from_numpy(token_type_ids).to(self.device),
        )  # [B], [B, L, 2]
        passage_logits = token_logits[torch.from_numpy(passage_mask).to(self.device)]  # [N, 2]
        keep = passage_logits.float().softmax(dim=-1)[:, 1]  # [N]
        return score_logits.float().cpu().numpy(), keep.cpu().numpy()
