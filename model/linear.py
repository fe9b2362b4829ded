"""Linear layers in the arithmetic of a mode, with float32 in and out."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from secateur.model import kernels

_GROUP: Final = 256


class Bfloat16Linear(nn.Module):
    """A linear layer whose product is taken in bfloat16."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = linear.bias
        self.register_buffer("weight", linear.weight.detach().bfloat16())
        self.register_buffer("bias", None if bias is None else bias.detach().bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] → float32 [..., M]."""
        return nn.functional.linear(x.bfloat16(), self.weight, self.bias).float()


class Int8Linear(nn.Module):
    """A linear layer whose product is taken in int8, on the CPU.

    Inputs go in groups of at most 256. Weights are rounded once, each output's group by its own
    scale; activations at every call, each row's group by its own scale around its own center, so
    that a row's result depends on no other row. The sums are exact, whatever the CPU; without
    VNNI that is slower than float32.
    """

    weights: Tensor
    scales: Tensor
    sums: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        groups = next(g for g in range(-(-inputs // _GROUP), inputs + 1) if inputs % g == 0)
        weight = linear.weight.detach().float().view(outputs, groups, -1).transpose(0, 1)
        largest = weight.abs().amax(dim=2)  # [G, M]
        scales = torch.where(largest > 0, largest, 127.0) / 127
        zeros = torch.zeros(outputs, dtype=torch.float32)
        bias = zeros if linear.bias is None else linear.bias.detach().float()
        rounded = (weight / scales.unsqueeze(2)).round()  # [G, M, K]
        self.register_buffer("weights", rounded.to(torch.int8).contiguous())
        self.register_buffer("scales", scales)
        # Of the rounded weights: their error then counts for the input, not for the distance
        # from the center, and most inputs after a GELU are nearly 0.
        self.register_buffer("sums", rounded.sum(dim=2) * scales)
        self.register_buffer("bias", bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        """[..., G*K] → float32 [..., M]."""
        groups, outputs, width = self.weights.shape
        rows = x.reshape(-1, groups * width).float().contiguous()
        count = len(rows)
        quantized = torch.empty(groups, count, width, dtype=torch.int8)
        scales, centers = torch.empty(2, groups, count, dtype=torch.float32)
        kernels.quantize(_array(rows), _array(quantized), _array(scales), _array(centers))
        products = torch.empty(groups, count, outputs, dtype=torch.int32)
        for group in range(groups):
            _multiply(quantized[group], self.weights[group].t(), products[group])
        out = torch.empty(count, outputs, dtype=torch.float32)
        inputs = (products, scales, centers, self.scales, self.sums, self.bias, out)
        kernels.dequantize(*map(_array, inputs))
        return out.view(*x.shape[:-1], outputs)


@cache
def int_mm_is_exact() -> bool:
    """Whether ``torch._int_mm`` gives exact sums here.

    oneDNN's product for x86 without VNNI adds pairs in 16 bits, where large ones are cut.
    """
    largest = torch.full((4, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(largest, largest.t()) == 64 * 127**2).all())


def _multiply(inputs: Tensor, weights: Tensor, into: Tensor) -> None:
    """int8 [N, K] times int8 [K, M], exactly: fills int32 [N, M]."""
    if int_mm_is_exact():
        torch._int_mm(inputs, weights, out=into)
    else:  # in float32 nothing is lost: K is at most 256, so all sums are below 2^24
        into.copy_(inputs.float() @ weights.float())


def _array(tensor: Tensor) -> Any:
    return tensor.detach().numpy()
