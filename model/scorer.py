"""The step that knows torch and the device."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secateur.errors import InvariantError
from secateur.model.linear import Int8Linear
from secateur.model.modes import LINEAR, check_mode
from secateur.model.packed import PackedEncoder
from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.model.two_heads import TwoHeadModel

_ALIGNED_TOKENS = 8

# Only CUDA has a class for it; the other devices raise a plain RuntimeError.
_OUT_OF_MEMORY = ("DefaultCPUAllocator: ", "MPS backend out of memory")


class TorchScorer:
    """Scores windows with a model of one or two heads, a batch in one forward pass.

    Where the encoder is one that :class:`PackedEncoder` takes, on a CPU, there is no padding;
    else windows are padded to the longest, on CUDA up to a multiple of 8, or run one at a time.

    dtype: of the encoder's linear layers (off the CPU and in bfloat16, of all the encoder).
        Heads and activations stay in float32 whatever it is: a bfloat16 sigmoid is 1.0 from
        logit 6.5. A mode that is not float32 may change the model's encoder.
    longest: tokens that the encoder has positions for; ``None`` is no bound.
    Not thread-safe: one thread at a time. Raises ValueError for another dtype.
    """

    def __init__(
        self,
        model: TwoHeadModel,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        pad_id: int = 0,
        longest: int | None = None,
    ) -> None:
        check_mode(dtype, device)
        # oneDNN keeps a compiled kernel for every shape that it has seen, 1,024 by default, and
        # batches have ever new shapes: hundreds of megabytes. The layers of a pass share theirs,
        # about a dozen.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
        self.dtype = dtype
        self.device = torch.device(device)
        self._pad_id = pad_id
        self._longest = longest
        self._model = model.to(self.device).eval()
        self._packed = None
        if self.device.type == "cpu" and model.can_pack and PackedEncoder.supports(model.encoder):
            self._packed = PackedEncoder(
                model.encoder, linear=LINEAR[dtype], threads=torch.get_num_threads()
            )
            # The encoder's own weights are needed no more.
            self._model = TwoHeadModel(nn.Identity(), model.score, model.token, token_types=False)
        elif dtype == "int8":
            _replace_linear(model.encoder)
        elif dtype == "bfloat16":
            for parameter in model.encoder.parameters():  # buffers hold positions: they stay exact
                parameter.data = parameter.data.bfloat16()

    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        """Score the windows, in order. Raises MemoryError when the device's memory is too small.

        A token whose logits are not finite has the probability NaN.
        """
        if not windows:
            return []
        try:
            # Whatever a caller has set for models of its own: the pool's threads do not see it.
            with torch.autocast(self.device.type, enabled=False):
                logits, keep = self._score(windows)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            raise MemoryError("the batch does not fit into the device's memory") from error
        borders = np.cumsum([window.passage_token_count for window in windows])[:-1]
        kept = [None] * len(windows) if keep is None else np.split(keep, borders)
        scores = [None] * len(windows) if logits is None else logits.tolist()
        return [WindowOutput(score, part) for score, part in zip(scores, kept, strict=True)]

    @torch.inference_mode()
    def _score(
        self, windows: Sequence[EncodedWindow]
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Float32 relevance logits [B], and keep probabilities of all passage tokens [N]."""
        if self._packed is None:
            score_logits, token_logits = self._unpacked(windows)
        else:
            hidden = self._packed([(w.input_ids, w.token_type_ids) for w in windows])
            score_logits, token_logits = self._model.heads(
                torch.stack([states[0] for states in hidden]),
                torch.cat([h[w.passage_tokens] for h, w in zip(hidden, windows, strict=True)]),
            )
        parts = [] if score_logits is None else [score_logits.float()]
        if token_logits is not None:
            logits = token_logits.float()  # [N, 2]
            keep = logits.softmax(dim=-1)[:, 1]  # [N]
            # The softmax of (-inf, 0) would be a clean 1.0.
            parts.append(torch.where(logits.isfinite().all(dim=-1), keep, torch.nan))
        values = torch.cat(parts).cpu().numpy()  # the one wait for the device
        count = 0 if score_logits is None else len(windows)
        return (
            None if score_logits is None else values[:count],
            None if token_logits is None else values[count:],
        )

    def _unpacked(self, windows: Sequence[EncodedWindow]) -> tuple[Tensor | None, Tensor | None]:
        """As ``_padded``; on a CPU in low precision one window at a time.

        Padding changes the last bits of float32 sums; int8 and bfloat16 round these to either
        side, which may change a probability by several hundredths.
        """
        if self.device.type != "cpu" or self.dtype == "float32":
            return self._padded(windows)
        scores, tokens = zip(*(self._padded([window]) for window in windows), strict=True)
        return (
            None if scores[0] is None else torch.cat(scores),
            None if tokens[0] is None else torch.cat(tokens),
        )

    def _padded(self, windows: Sequence[EncodedWindow]) -> tuple[Tensor | None, Tensor | None]:
        """Logits [B] of the windows and [N, 2] of all passage tokens."""
        shape = (len(windows), self._padded_length(windows))
        inputs = np.zeros((4 if self._model.pools_sentences else 3, *shape), dtype=np.int64)
        input_ids, attention_mask, token_type_ids = inputs[:3]  # each [B, L]
        input_ids.fill(self._pad_id)
        passage_mask = np.zeros(shape, dtype=np.bool_)  # [B, L]
        for row, window in enumerate(windows):
            input_ids[row, : window.token_count] = window.input_ids
            token_type_ids[row, : window.token_count] = window.token_type_ids
            attention_mask[row, : window.token_count] = 1
            passage_mask[row, window.passage_tokens] = True
        if self._model.pools_sentences:
            inputs[3] = _sentences(windows, shape)
        # In one copy: small ones cost as much as large ones.
        packed = np.concatenate([inputs.ravel(), np.flatnonzero(passage_mask)])
        sent, passage_tokens = to_device(packed, self.device).tensor_split([inputs.size])
        score_logits, token_logits = self._model(*sent.view(inputs.shape))  # [B], [B, L, 2]
        if token_logits is not None:
            token_logits = token_logits.flatten(0, 1)[passage_tokens]
        return score_logits, token_logits

    def _padded_length(self, windows: Sequence[EncodedWindow]) -> int:
        """On CUDA rounded up: else torch's attention copies its bias to align its rows."""
        length = max(window.token_count for window in windows)
        if self.device.type != "cuda":
            return length
        rounded = -(-length // _ALIGNED_TOKENS) * _ALIGNED_TOKENS
        return rounded if self._longest is None else max(length, min(rounded, self._longest))


def to_device(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """A copy on the device; to CUDA out of pinned memory, so that nobody waits for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _replace_linear(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            _replace_linear(child)


def _is_out_of_memory(error: RuntimeError) -> bool:
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(sign in text for sign in _OUT_OF_MEMORY)


def _sentences(windows: Sequence[EncodedWindow], shape: tuple[int, int]) -> NDArray[np.int64]:
    """The sentence of each passage token, -1 elsewhere: int64 [B, L]."""
    sentences = np.full(shape, -1, dtype=np.int64)
    for row, window in enumerate(windows):
        if window.sentences is None:
            raise InvariantError("a window without its sentences; this is a bug")
        sentences[row, window.passage_tokens] = window.sentences
    return sentences
