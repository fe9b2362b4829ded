"""Write a checkpoint of any family as a folder of ours, and check that it is still the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from secateur.errors import CheckpointError
from secateur.model.checkpoints.load import Checkpoint, load_checkpoint
from secateur.model.checkpoints.serve import engine_of
from secateur.model.prepared import EncodedWindow
from secateur.types import Limits, Passage, PruneOptions

STORAGE = {"float32": torch.float32, "float16": torch.float16}
"""Number formats of the written weights, by name."""

BOUNDS = {"float32": 1e-5, "float16": 0.05}
"""How far a logit may move. In float32 nothing is rounded; float16 keeps 11 bits of a weight."""

_QUERY = "Who approved the limits, and when?"
_PROBES = (
    Passage("Dr. Osei approved the limits on 3 Jan. 2021. Lunch was late."),
    Passage("ポンプは赤い。弁は青い。👍 The café is open."),
    Passage("The hall is quiet today. The pump stands in the hall. " * 12, title="The hall"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What was written. Differences are the largest of all logits of ``probes`` inputs.

    score_difference, token_difference: ``None`` where the family has no such head.
    """

    id: str
    family: str
    parameters: int
    dtype: str
    probes: int
    score_difference: float | None
    token_difference: float | None
    bound: float


def convert(
    name_or_path: str | os.PathLike[str] | None,
    out: Path,
    *,
    dtype: str = "float32",
    revision: str | None = None,
    allow_pickle: bool = False,
) -> Conversion:
    """Load a checkpoint and write config.json, model.safetensors and tokenizer.json to ``out``.

    The folder loads as the same family with the same behaviour, which is checked before it
    gets its name. dtype: a key of ``STORAGE``; weights are loaded in float32 in any case.
    Raises CheckpointError: the source does not load, ``out`` is there already, or a logit
    moves by more than the bound; ValueError for another dtype; OSError.
    """
    if dtype not in STORAGE:
        raise ValueError(f"dtype {dtype!r} is unknown; use one of {', '.join(STORAGE)}")
    if out.exists():
        raise CheckpointError(f"{out} is there already; give the name of a new folder")
    partial = out.with_name(f"{out.name}.partial")
    if partial.exists():
        raise CheckpointError(f"{partial} is there already, left by a conversion; remove it")
    source = load_checkpoint(name_or_path, revision=revision, allow_pickle=allow_pickle)
    partial.mkdir(parents=True)
    try:
        _write(source, partial, STORAGE[dtype])
        result = _compare(source, load_checkpoint(partial), dtype)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return result


def _write(source: Checkpoint, folder: Path, dtype: torch.dtype) -> None:
    settings, layout = source.settings, source.layout
    own: dict[str, Any] = {
        "id": settings.id,
        "family": settings.family,
        "languages": list(settings.languages),
        "window_tokens": settings.window_tokens,
    }
    if settings.default_keep_rule is not None:
        own["default_keep_rule"] = settings.default_keep_rule.value
        own["default_threshold"] = settings.default_threshold
    config = {
        **layout.encoder_values,
        "model_type": layout.encoder.model_type,
        "secateur": own,
    }
    text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    state = {
        layout.checkpoint_key(key): value.to(dtype).contiguous()
        for key, value in source.model.state_dict().items()
    }
    try:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        source.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    except Exception as error:  # a full disk is a SafetensorError or tokenizers' bare Exception
        raise CheckpointError(f"{folder}: cannot be written: {error}") from error


def _compare(before: Checkpoint, after: Checkpoint, dtype: str) -> Conversion:
    windows, others = _windows(before), _windows(after)
    same = [w.input_ids.tolist() for w in windows] == [w.input_ids.tolist() for w in others]
    if not same:
        raise CheckpointError("the written tokenizer gives other tokens; nothing was written")
    differences = [_differences(before, after, window) for window in windows]
    score, token = (
        max((d for d in column if d is not None), default=None)
        for column in zip(*differences, strict=True)
    )
    bound = BOUNDS[dtype]
    for name, difference in (("score", score), ("token", token)):
        if difference is not None and not difference <= bound:  # NaN too
            raise CheckpointError(
                f"as {dtype} a {name} logit moves by {difference:.3g}, the bound is {bound:g}; "
                "nothing was written"
            )
    return Conversion(
        id=before.settings.id,
        family=before.settings.family,
        parameters=sum(parameter.numel() for parameter in before.model.parameters()),
        dtype=dtype,
        probes=len(windows),
        score_difference=score,
        token_difference=token,
        bound=bound,
    )


def _windows(checkpoint: Checkpoint) -> list[EncodedWindow]:
    engine = engine_of(checkpoint, dtype="float32", device="cpu", limits=Limits())
    query = engine.prepare_query(_QUERY, PruneOptions(truncate_query=True))
    prepared = engine.prepare_passages(query, _PROBES)
    return [window for passage in prepared for window in passage.windows]


def _differences(
    before: Checkpoint, after: Checkpoint, window: EncodedWindow
) -> Sequence[float | None]:
    """Largest difference of the score logit and of passage tokens' logits; ``None`` without."""
    ids = torch.from_numpy(window.input_ids).unsqueeze(0)  # [1, L]
    types = torch.from_numpy(window.token_type_ids).unsqueeze(0)
    sentences = torch.full_like(ids, -1)
    if window.sentences is not None:
        sentences[0, window.passage_tokens] = torch.from_numpy(window.sentences)
    with torch.inference_mode():
        pairs = zip(
            before.model(ids, torch.ones_like(ids), types, sentences),
            after.model(ids, torch.ones_like(ids), types, sentences),
            strict=True,
        )
        return [None if a is None else float((a - b).abs().max()) for a, b in pairs]
