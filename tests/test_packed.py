"""The unpadded encoder beside transformers' own, in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, DebertaV2Config, DebertaV2Model

from secateur.model import kernels
from secateur.model.attention import bucket_row
from secateur.model.deberta import adopt_fast_attention
from secateur.model.linear import Bfloat16Linear, Int8Linear
from secateur.model.packed import PackedEncoder, even_shares

LENGTHS = (1, 2, 7, 40, 33, 64)


def encoder(**overrides: Any) -> DebertaV2Model:
    """A random encoder with DeBERTa-v3's settings, small."""
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        "position_buckets": 8,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "initializer_range": 0.3,
    }
    model = DebertaV2Model(DebertaV2Config(**{**values, **overrides})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    return model


def sequences(lengths: tuple[int, ...] = LENGTHS) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.integers(1, 50, n), (np.arange(n) > n // 3).astype(np.int64)) for n in lengths]


@torch.inference_mode()
def alone(model: DebertaV2Model, given: list[tuple[np.ndarray, np.ndarray]]) -> list[torch.Tensor]:
    return [
        model(
            input_ids=torch.from_numpy(ids)[None], token_type_ids=torch.from_numpy(types)[None]
        ).last_hidden_state[0]
        for ids, types in given
    ]


def largest(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"share_att_key": False},
        {"position_buckets": -1},
        {"position_biased_input": True, "type_vocab_size": 2, "norm_rel_ebd": "none"},
        {"embedding_size": 24},
        {"hidden_act": "gelu_new"},
    ],
)
def test_equal_to_the_stock_encoder(overrides: dict[str, Any], threads: int) -> None:
    """However sequences are shared out among threads."""
    model = encoder(**overrides)
    packed = PackedEncoder(model, linear=lambda layer: layer, threads=threads)
    assert largest(packed(sequences()), alone(model, sequences())) < 2e-5
    assert largest(packed(sequences((5,))), alone(model, sequences((5,)))) < 2e-5


@pytest.mark.parametrize(
    ("linear", "tolerance"),
    [(lambda layer: layer, 1e-5), (Bfloat16Linear, 2e-2), (Int8Linear, 2e-2)],
)
def test_alone_or_together(linear: Any, tolerance: float) -> None:
    """Neighbours change the order of float32 sums, which low precision may round otherwise."""
    packed = PackedEncoder(encoder(), linear=linear, threads=2)
    given = sequences()
    together = packed(given)
    assert largest(together, packed(given[::-1])[::-1]) <= tolerance
    assert largest(together, [packed([one])[0] for one in given]) <= tolerance


@pytest.mark.parametrize(("linear", "tolerance"), [(Bfloat16Linear, 0.1), (Int8Linear, 0.25)])
def test_low_precision_is_near(linear: Any, tolerance: float) -> None:
    """Hidden states are of the order of 1."""
    model = encoder()
    packed = PackedEncoder(model, linear=linear, threads=1)
    difference = largest(packed(sequences()), alone(model, sequences()))
    assert 0 < difference < tolerance


def test_what_is_supported() -> None:
    assert PackedEncoder.supports(encoder())
    assert not PackedEncoder.supports(encoder(pos_att_type=["c2p"]))
    assert not PackedEncoder.supports(encoder(relative_attention=False))
    assert not PackedEncoder.supports(encoder(conv_kernel_size=3))
    bert = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    assert not PackedEncoder.supports(BertModel(bert))


def test_even_shares() -> None:
    """The longest first, to whoever has least; nothing where one would wait for the other."""
    assert even_shares([5, 9, 4, 2], 2) == [[1, 3], [0, 2]]
    assert even_shares([9, 5, 4], 2) == [[0], [1, 2]]
    assert even_shares([9, 2], 2) is None
    assert even_shares([3], 2) is None
    assert even_shares([3, 3], 1) == [[0, 1]]


class TestTraining:
    """The same attention with gradients, and padding."""

    @pytest.mark.parametrize("share", [True, False])
    def test_gradients_equal_the_stock_ones(self, share: bool) -> None:
        stock, fast = encoder(share_att_key=share), encoder(share_att_key=share)
        adopt_fast_attention(fast)
        ids = torch.randint(1, 50, (3, 20), generator=torch.Generator().manual_seed(0))
        mask = (torch.arange(20)[None] < torch.tensor([20, 11, 1])[:, None]).long()
        weights = torch.randn(3, 20, 48) * mask.unsqueeze(2)
        for model in (stock, fast):
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
            (hidden * weights).sum().backward()
        ours = dict(fast.named_parameters())
        for name, parameter in stock.named_parameters():
            expected, found = parameter.grad, ours[name].grad
            assert expected is not None
            assert found is not None
            assert float((expected - found).abs().max()) < 1e-4 * float(
                expected.abs().max().clamp(min=1)
            ), name

    def test_without_kernels(self) -> None:
        """Off the CPU, and with attention dropout, buckets are gathered."""
        model = encoder(attention_probs_dropout_prob=1e-12)
        expected = alone(model, sequences((9,)))
        adopt_fast_attention(model)
        model.train()
        model.encoder.layer[0].attention.self.pos_dropout.p = 0
        for module in model.modules():
            if isinstance(module, nn.Dropout) and module.p > 1e-6:
                module.p = 0.0
        assert largest(alone(model, sequences((9,))), expected) < 2e-5


class TestKernels:
    def test_biased_softmax(self) -> None:
        """Against torch, with padding, and scores far from zero."""
        rng = np.random.default_rng(0)
        scores = (rng.normal(size=(3, 9, 9)) * 40).astype(np.float32)
        c2p = rng.normal(size=(3, 9, 6)).astype(np.float32)
        p2c = rng.normal(size=(3, 6, 9)).astype(np.float32)
        bucket = bucket_row(9, -1, 3)
        lengths = np.array([9, 4, 1])
        expected = np.zeros_like(scores)
        for n, length in enumerate(lengths):
            biased = scores[n, :length, :length].copy()
            for i in range(length):
                for j in range(length):
                    place = bucket[8 - i + j]
                    biased[i, j] += c2p[n, i, place] + p2c[n, place, j]
            expected[n, :length, :length] = torch.from_numpy(biased).softmax(-1).numpy()
        kernels.biased_softmax(scores, c2p, p2c, bucket, lengths)
        assert np.abs(scores - expected).max() < 1e-6

    @pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
    def test_softmax_passes_on_what_is_not_finite(self, value: float) -> None:
        """It must reach the heads, where it fails the passage."""
        scores = np.zeros((1, 20, 20), np.float32)
        scores[0, 3, 5] = value
        zeros = np.zeros((1, 20, 4), np.float32), np.zeros((1, 4, 20), np.float32)
        kernels.biased_softmax(scores, *zeros, bucket_row(20, -1, 2), np.array([20]))
        finite = np.isfinite(scores[0]).all(axis=1)
        assert finite[np.arange(20) != 3].all()
        if value != -np.inf:  # a weight of 0
            assert not finite[3]

    def test_quantize(self) -> None:
        """Half a step at most, and constant groups exactly."""
        rng = np.random.default_rng(0)
        values = (rng.normal(size=(5, 40)) * [[1], [1e-6], [1e6], [1], [1]]).astype(np.float32)
        values[3, :20] = -7.5
        values[4, 20:] = 0
        quantized = np.empty((2, 5, 20), np.int8)
        scales, centers = np.empty((2, 5), np.float32), np.empty((2, 5), np.float32)
        kernels.quantize(values, quantized, scales, centers)
        back = quantized * scales[..., None] + centers[..., None]
        groups = values.reshape(5, 2, 20).transpose(1, 0, 2)
        assert (np.abs(back - groups) <= 0.501 * scales[..., None]).all()
        assert quantized.min() == -127
        assert quantized.max() == 127


class TestInt8Linear:
    def test_near_and_exact_by_row(self) -> None:
        torch.manual_seed(0)
        linear = nn.Linear(600, 70)
        x = torch.randn(9, 600)
        int8 = Int8Linear(linear)
        with torch.inference_mode():
            expected, found = linear(x), int8(x)
            assert float((expected - found).norm() / expected.norm()) < 0.01
            assert torch.equal(found[3:4], int8(x[3:4]))
            assert torch.equal(found.view(3, 3, 70), int8(x.view(3, 3, 600)))

    def test_a_prime_number_of_inputs_and_no_bias(self) -> None:
        linear = nn.Linear(257, 8, bias=False)
        nn.init.zeros_(linear.weight[0])
        with torch.inference_mode():
            found = Int8Linear(linear)(torch.ones(2, 257))
            assert float((found - linear(torch.ones(2, 257))).abs().max()) < 0.02
            assert not found[:, 0].any()

    def test_what_is_not_finite_stays_so_in_its_row(self) -> None:
        x = torch.ones(4, 16)
        x[1, 3], x[2, 4] = torch.nan, torch.inf
        with torch.inference_mode():
            finite = Int8Linear(nn.Linear(16, 8))(x).isfinite().all(dim=1)
        assert finite.tolist() == [True, False, False, True]
