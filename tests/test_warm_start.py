"""The warm-started DeBERTa computes what BERT computes; fast attention equals the stock one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import tiny_bert
from transformers import DebertaV2Config, DebertaV2Model

from secateur.model.deberta import DebertaV2ForRerankAndPrune
from secateur.training.warm_start import warm_start


def _inputs(vocab: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocab, (3, 40), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 25:] = 0
    mask[2, 9:] = 0
    types = (torch.arange(40) > 12).long().expand(3, -1)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types.contiguous()}


def test_warm_start_hidden_states_equal_bert(tmp_path: Path) -> None:
    bert = tiny_bert(tmp_path)
    model = warm_start(tmp_path).eval()
    inputs = _inputs(bert.config.vocab_size)
    real = inputs["attention_mask"].bool()
    with torch.inference_mode():
        ours = model.deberta(**inputs).last_hidden_state
        theirs = bert(**inputs).last_hidden_state
    assert (ours - theirs)[real].abs().max() < 1e-5


@pytest.mark.parametrize("share_att_key", [True, False])
@pytest.mark.parametrize(("buckets", "norm"), [(-1, "none"), (8, "layer_norm")])
def test_fast_attention_equals_transformers(share_att_key: bool, buckets: int, norm: str) -> None:
    """Same hidden states, and the same gradients, as the stock encoder."""
    torch.manual_seed(0)
    config = DebertaV2Config(
        vocab_size=90,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        type_vocab_size=2,
        relative_attention=True,
        share_att_key=share_att_key,
        pos_att_type=["p2c", "c2p"],
        position_buckets=buckets,
        norm_rel_ebd=norm,
        position_biased_input=False,
        initializer_range=0.3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    fast = DebertaV2ForRerankAndPrune(config)
    stock = DebertaV2Model(config)
    stock.load_state_dict(fast.deberta.state_dict())
    inputs = _inputs(config.vocab_size)
    real = inputs["attention_mask"].bool()
    ours = fast.deberta(**inputs).last_hidden_state
    theirs = stock(**inputs).last_hidden_state
    assert (ours - theirs)[real].abs().max() < 1e-5
    with torch.inference_mode():  # another way through the attention than with gradients
        inferred = fast.deberta(**inputs).last_hidden_state
    assert (inferred - theirs)[real].abs().max() < 1e-5
    ours[real].square().sum().backward()
    theirs[real].square().sum().backward()
    expected = dict(stock.named_parameters())
    for name, parameter in fast.deberta.named_parameters():
        reference = expected[name].grad
        assert (parameter.grad is None) == (reference is None), name
        if parameter.grad is None or reference is None:
            continue
        assert torch.allclose(parameter.grad, reference, rtol=1e-3, atol=1e-3), name
