"""Small random checkpoints in each family's exact layout, as their own code would save them.

Each is an ordinary module on transformers' classes whose state-dict keys are the layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import families_tokenizers as kinds
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    ElectraConfig,
    ModernBertConfig,
    RobertaConfig,
    XLMRobertaConfig,
    XLMRobertaModel,
)
from transformers.models.deberta_v2.modeling_deberta_v2 import ContextPooler

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "initializer_range": 0.3,
}
WINDOW = 64


def deberta_config(vocab_size: int) -> Any:
    """DeBERTa-v3's settings."""
    return DebertaV2Config(
        **SIZES,
        vocab_size=vocab_size,
        max_position_embeddings=WINDOW,
        max_relative_positions=-1,
        position_buckets=16,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
        pooler_hidden_size=48,
        pooler_hidden_act="gelu",
        num_labels=1,
    )


def xlm_roberta_config(vocab_size: int) -> Any:
    """Two position embeddings are spare: ids start after the padding's."""
    return XLMRobertaConfig(
        **SIZES, **_roberta(), vocab_size=vocab_size, layer_norm_eps=1e-5, num_labels=1
    )


def roberta_config(vocab_size: int) -> Any:
    return RobertaConfig(**SIZES, **_roberta(), vocab_size=vocab_size, num_labels=1)


def modernbert_config(vocab_size: int, pooling: str = "cls") -> Any:
    """Local attention is shorter than the window, so that padding may be all that a row sees."""
    return ModernBertConfig(
        **{**SIZES, "num_hidden_layers": 3},
        vocab_size=vocab_size,
        max_position_embeddings=WINDOW,
        local_attention=8,
        global_attn_every_n_layers=2,
        classifier_pooling=pooling,
        pad_token_id=3,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
        num_labels=1,
    )


def bert_config(vocab_size: int) -> Any:
    return BertConfig(**SIZES, vocab_size=vocab_size, max_position_embeddings=WINDOW, num_labels=1)


def electra_config(vocab_size: int) -> Any:
    return ElectraConfig(
        **SIZES,
        vocab_size=vocab_size,
        embedding_size=24,
        max_position_embeddings=WINDOW,
        num_labels=1,
    )


def _roberta() -> dict[str, Any]:
    return {
        "max_position_embeddings": WINDOW + 2,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


class ProvenceOriginal(nn.Module):
    """``deberta.*``, ``pooler.dense.*``, ``classifier.*``, ``token_classifier.*``."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.deberta = DebertaV2Model(config)
        self.pooler = ContextPooler(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.token_classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, ids: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.deberta(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
        return self.classifier(self.pooler(hidden))[:, 0], self.token_classifier(hidden)


class XProvenceOriginal(nn.Module):
    """``roberta.*`` with its pooler, ``classifier.*``, ``token_classifier.*``."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.roberta = XLMRobertaModel(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.token_classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, ids: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        output = self.roberta(input_ids=ids, attention_mask=torch.ones_like(ids))
        score = self.classifier(output.pooler_output)[:, 0]
        return score, self.token_classifier(output.last_hidden_state)


class OpenProvenceOriginal(nn.Module):
    """``ranking_model.*`` (a stock sequence classifier), ``pruning_head.classifier.*``."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.ranking_model = AutoModelForSequenceClassification.from_config(config)
        self.pruning_head = nn.ModuleDict({"classifier": nn.Linear(config.hidden_size, 2)})

    def forward(self, ids: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        inputs = stock_inputs(self.ranking_model, ids, types)
        hidden = self.ranking_model.base_model(**inputs)[0]
        score = self.ranking_model(**inputs).logits[:, 0]
        return score, self.pruning_head["classifier"](hidden)


class OpenSearchOriginal(nn.Module):
    """``bert.*``, ``classifier.*`` with 2 labels, for mean vectors of sentences."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.classifier = nn.Linear(config.hidden_size, 2)

    def sentence_probability(self, ids: Tensor, types: Tensor, positions: list[int]) -> float:
        """p of the sentence whose tokens lie at these positions of a [1, L] input."""
        inputs = {"attention_mask": torch.ones_like(ids), "token_type_ids": types}
        hidden = self.bert(input_ids=ids, **inputs)[0][0]  # [L, D]
        logits = self.classifier(hidden[positions].mean(dim=0))
        return float(torch.softmax(logits, dim=-1)[1])


class PlainOriginal(nn.Module):
    """A stock sequence classifier; its state dict is that of ``stock``."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.stock = AutoModelForSequenceClassification.from_config(config)

    def forward(self, ids: Tensor, types: Tensor) -> tuple[Tensor, None]:
        return self.stock(**stock_inputs(self.stock, ids, types)).logits[:, 0], None


def stock_inputs(model: Any, ids: Tensor, types: Tensor) -> dict[str, Tensor]:
    """What transformers' pair encoding gives a model of this kind."""
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.model_type in {"bert", "electra", "deberta-v2"}:
        inputs["token_type_ids"] = types
    return inputs


@dataclass(frozen=True)
class Kind:
    """A layout on an encoder: how it is built and what its config.json says."""

    family: str
    build: Callable[[Any], nn.Module]
    config: Callable[[int], Any]
    tokenizer: Callable[[], Tokenizer]
    describe: Callable[[Any], Mapping[str, Any]]


def _named(architecture: str, model_type: str) -> Callable[[Any], Mapping[str, Any]]:
    return lambda config: {
        **config.to_dict(),
        "architectures": [architecture],
        "model_type": model_type,
    }


def _stock(config: Any) -> Mapping[str, Any]:
    return dict(config.to_dict())


def _open_provence(config: Any) -> Mapping[str, Any]:
    return {
        "model_type": "open_provence",
        "architectures": ["OpenProvenceModel"],
        "mode": "reranking_pruning",
        "base_model_name_or_path": "somewhere/else",
        "base_model_config": config.to_dict(),
        "tokenizer_name_or_path": "somewhere/else",
        "pruning_config": {"dropout": 0.1},
        "max_length": WINDOW,
        "num_labels": 1,
        "num_pruning_labels": 2,
        "encoder_architecture": config.model_type,
    }


KINDS: dict[str, Kind] = {
    "provence": Kind(
        "provence",
        ProvenceOriginal,
        deberta_config,
        kinds.deberta_v3,
        _named("Provence", "Provence"),
    ),
    "xprovence": Kind(
        "xprovence",
        XProvenceOriginal,
        xlm_roberta_config,
        kinds.xlm_roberta,
        _named("XProvence", "XProvence"),
    ),
    "open_provence": Kind(
        "open_provence", OpenProvenceOriginal, modernbert_config, kinds.modernbert, _open_provence
    ),
    "open_provence-bert": Kind(
        "open_provence", OpenProvenceOriginal, bert_config, kinds.bert, _open_provence
    ),
    "open_provence-deberta": Kind(
        "open_provence", OpenProvenceOriginal, deberta_config, kinds.deberta_v3, _open_provence
    ),
    "zilliz_highlight": Kind(
        "zilliz_highlight",
        OpenProvenceOriginal,
        xlm_roberta_config,
        kinds.xlm_roberta,
        _open_provence,
    ),
    "opensearch_highlighter": Kind(
        "opensearch_highlighter",
        OpenSearchOriginal,
        bert_config,
        kinds.bert,
        _named("BertTaggerForSentenceExtractionWithBackoff", "bert"),
    ),
    "plain-bert": Kind("plain_reranker", PlainOriginal, bert_config, kinds.bert, _stock),
    "plain-electra": Kind("plain_reranker", PlainOriginal, electra_config, kinds.bert, _stock),
    "plain-xlm-roberta": Kind(
        "plain_reranker", PlainOriginal, xlm_roberta_config, kinds.xlm_roberta, _stock
    ),
    "plain-roberta": Kind("plain_reranker", PlainOriginal, roberta_config, kinds.roberta, _stock),
    "plain-deberta": Kind(
        "plain_reranker", PlainOriginal, deberta_config, kinds.deberta_v3, _stock
    ),
    "plain-modernbert": Kind(
        "plain_reranker", PlainOriginal, modernbert_config, kinds.modernbert, _stock
    ),
    "plain-modernbert-mean": Kind(
        "plain_reranker",
        PlainOriginal,
        lambda vocab_size: modernbert_config(vocab_size, "mean"),
        kinds.modernbert,
        _stock,
    ),
}


def build(kind: Kind, seed: int = 0) -> tuple[nn.Module, Tokenizer, Mapping[str, Any]]:
    """A random original with its tokenizer and its config.json."""
    torch.manual_seed(seed)
    tokenizer = kind.tokenizer()
    config = kind.config(tokenizer.get_vocab_size())
    model = kind.build(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
        elif "classifier" in name:  # probabilities far from each other, kept and dropped
            nn.init.normal_(parameter, std=0.5)
    return model, tokenizer, kind.describe(config)


def state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors under the layout's own names."""
    return {key.removeprefix("stock."): value for key, value in model.state_dict().items()}


def save(
    folder: Path, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, config: Mapping[str, Any]
) -> Path:
    """Write a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write(kind: str, folder: Path) -> nn.Module:
    """Write a random checkpoint of ``KINDS[kind]`` and return the original."""
    model, tokenizer, config = build(KINDS[kind])
    save(folder, state(model), tokenizer, config)
    return model
