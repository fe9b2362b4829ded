"""Small random checkpoints in the exact layouts that are loaded, for tests without weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel, DebertaV2Config

from secateur.model.deberta import DebertaV2ForRerankAndPrune

WORDS = "the a red blue valve pump is was opens closes what who when code hall today quiet . ?"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def tiny_tokenizer() -> Tokenizer:
    """Lower-casing WordPiece over a few words, letters and digits."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS.split(), *LETTERS]
    pieces += [f"##{letter}" for letter in LETTERS]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def tiny_bert(folder: Path) -> BertModel:
    """Write a random BERT encoder (config, weights, tokenizer) and return it."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    bert = BertModel(config).eval()
    for name, parameter in bert.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(bert.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    return bert


def tiny_provence(folder: Path, **overrides: object) -> DebertaV2ForRerankAndPrune:
    """Write a random two-head checkpoint with DeBERTa-v3's settings, and return the model."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    values: dict[str, object] = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        "max_relative_positions": -1,
        "position_buckets": 16,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "pooler_hidden_size": 48,
        "pooler_hidden_act": "gelu",
        "initializer_range": 0.3,
    }
    config = DebertaV2Config(**{**values, **overrides})
    model = DebertaV2ForRerankAndPrune(config)
    model.eval()
    folder.mkdir(parents=True, exist_ok=True)
    raw = {**config.to_dict(), "architectures": ["Provence"], "model_type": "Provence"}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file(model.state_dict(), folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return model
