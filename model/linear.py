"""Linear layers in the arithmetic of a mode, with float32 in and out."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from secateur.model import kernels
from secateur.model.scratch import Room, fresh

_GROUP: Final = 256


class Float32Linear(nn.Module):
    """A linear layer as it is, its result in the room given."""

    weight: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach())
        self.register_buffer("bias", _bias(linear))

    def forward(self, x: Tensor, room: Room = fresh, name: str = "") -> Tensor:
        """[N, K] → [N, M], in ``room(name)``."""
        out = room(name, len(x), len(self.weight))
        return torch.addmm(self.bias, x, self.weight.t(), out=out)


class Bfloat16Linear(nn.Module):
    """A linear layer whose product is taken in bfloat16."""

    weight: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().bfloat16())
        self.register_buffer("bias", _bias(linear).bfloat16())

    def forward(self, x: Tensor, room: Room = fresh, name: str = "") -> Tensor:
        """[N, K] → float32 [N, M], in ``room(name)``."""
        shape = len(x), len(self.weight)
        inputs = room("bfloat16", *x.shape, dtype=torch.bfloat16).copy_(x)
        product = room("product", *shape, dtype=torch.bfloat16)
        torch.addmm(self.bias, inputs, self.weight.t(), out=product)
        return room(name, *shape).copy_(product)


class Int8Linear(nn.Module):
    """A linear layer whose product is taken in int8, on the CPU.

    Inputs go in groups of at most 256. Weights are rounded once, each output's group by its own
    scale; activations at every call, each row's group by its own scale around its own center, so
    that a row's result depends on no other row. The sums are exact, whatever the CPU; without
    VNNI that is slower than float32.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        groups = next(g for g in range(-(-inputs // _GROUP), inputs + 1) if inputs % g == 0)
        weight = linear.weight.detach().float().view(outputs, groups, -1).transpose(0, 1)
        largest = weight.abs().amax(dim=2)  # [G, M]
        scales = torch.where(largest > 0, largest, 127.0) / 127
        rounded = (weight / scales.unsqueeze(2)).round()  # [G, M, K]
        self._shape = groups, outputs, inputs // groups
        self._weights = rounded.to(torch.int8).contiguous().transpose(1, 2).unbind()  # G [K, M]
        self._scales = scales.numpy()
        # Of the rounded weights: their error then counts for the input, not for the distance
        # from the center, and most inputs after a GELU are nearly 0.
        self._sums = (rounded.sum(dim=2) * scales).numpy()
        self._bias = _bias(linear).float().clone().numpy()

    def forward(self, x: Tensor, room: Room = fresh, name: str = "") -> Tensor:
        """[..., G*K] → float32 [..., M], in ``room(name)``."""
        groups, outputs, width = self._shape
        rows = x.reshape(-1, groups * width).float().contiguous()
        count = len(rows)
        quantized = room("int8", groups, count, width, dtype=torch.int8)
        products = room("int32", groups, count, outputs, dtype=torch.int32)
        out = room(name, count, outputs)
        scales, centers = np.empty((2, groups, count), np.float32)
        kernels.quantize(rows.detach().numpy(), quantized.numpy(), scales, centers)
        for inputs, weights, into in zip(quantized, self._weights, products, strict=True):
            _multiply(inputs, weights, into)
        given = products.numpy(), scales, centers, self._scales, self._sums, self._bias
        kernels.dequantize(*given, out.numpy())
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


def _bias(linear: nn.Linear) -> Tensor:
    """[M], zeros for a layer that has none."""
    if linear.bias is None:
        return linear.weight.new_zeros(linear.out_features)
    return linear.bias.detach()
