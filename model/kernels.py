"""Loops that torch has no fused operation for, compiled for this CPU by numba.

Every function works in place on rows of C-contiguous float32 or int8 arrays, releases the GIL
and uses no thread of its own, so that many threads may run it on parts of one array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

# No "nnan" and "ninf": a passage whose numbers are not finite has to be found out.
_FAST_MATH: Final = {"contract", "reassoc", "nsz", "arcp"}


def compiled(function: Function) -> Function:
    """Compile at the first call, and keep the machine code on disk where a folder can be written.

    numba looks for ``NUMBA_CACHE_DIR``, the package's own folder and the user's cache.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": _FAST_MATH, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # nowhere to write
        return njit(**options)(function)  # type: ignore[no-any-return]


@compiled
def _ordered(bits: Any) -> Any:
    """The bits of a float32 as an int32 of the same order, and back.

    A maximum of integers is vectorised, one of floats is not; a NaN is beyond infinity.
    """
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@compiled
def _row_maximum(row: NDArray[np.float32], bits: NDArray[np.int32]) -> Any:
    """bits: scratch."""
    integers = row.view(np.int32)
    top = _ordered(integers[0])
    for j in range(len(row)):
        top = max(top, _ordered(integers[j]))
    bits[0] = _ordered(top)
    return bits.view(np.float32)[0]


@compiled
def _softmax_row(
    row: NDArray[np.float32], bits: NDArray[np.int32], powers: NDArray[np.float32], top: Any
) -> None:
    """Softmax in place. bits and powers are two views of one scratch row.

    e^x is 2^n · e^f with n the nearest integer to x / ln 2 and a polynomial of degree 6 for e^f
    (Cephes' expf, relative error 2e-7); 2^n is built in the exponent's bits.
    """
    for j in range(len(row)):
        x = max(row[j] - top, np.float32(-87.0))
        n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
        f = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
        p = np.float32(1.9875691500e-4)
        p = p * f + np.float32(1.3981999507e-3)
        p = p * f + np.float32(8.3334519073e-3)
        p = p * f + np.float32(4.1665795894e-2)
        p = p * f + np.float32(1.6666665459e-1)
        p = p * f + np.float32(5.0000001201e-1)
        row[j] = p * f * f + f + np.float32(1.0)
        bits[j] = (np.int32(n) + np.int32(127)) << np.int32(23)
    total = np.float32(0.0)
    for j in range(len(row)):
        value = row[j] * powers[j]
        row[j] = value
        total += value
    scale = np.float32(1.0) / total
    for j in range(len(row)):
        row[j] *= scale


@compiled
def biased_softmax(
    scores: NDArray[np.float32],
    c2p: NDArray[np.float32],
    p2c: NDArray[np.float32],
    bucket: NDArray[np.uint32],
    lengths: NDArray[np.int64],
) -> None:
    """Add the position terms to the scores and take the softmax over keys, in one pass, in place.

    scores: [N, L, L], query by key, scaled. c2p: [N, L, B] and p2c: [N, B, L], the position
    terms of each query and each key for every bucket, scaled. bucket: uint32 [2 L - 1]; the
    entry at L - 1 - i + j is the bucket of query i and key j. lengths: [N]; what lies beyond
    is padding, whose rows and columns become 0.
    """
    count, length, _ = scores.shape
    bits = np.empty(length, np.int32)
    powers = bits.view(np.float32)
    stride = np.uint32(length)
    for n in range(count):
        real = lengths[n]
        by_key = p2c[n].ravel()
        for i in range(real):
            row = scores[n, i, :real]
            by_query = c2p[n, i]
            places = bucket[length - 1 - i : length - 1 - i + real]
            for j in range(real):
                place = places[j]
                row[j] += by_query[place] + by_key[place * stride + np.uint32(j)]
            _softmax_row(row, bits, powers, _row_maximum(row, bits))
            scores[n, i, real:] = np.float32(0.0)
        scores[n, real:] = np.float32(0.0)


@compiled
def biased_softmax_backward(
    weights: NDArray[np.float32],
    grads: NDArray[np.float32],
    bucket: NDArray[np.uint32],
    lengths: NDArray[np.int64],
    c2p_grads: NDArray[np.float32],
    p2c_grads: NDArray[np.float32],
) -> None:
    """The gradients of ``biased_softmax``, whose result is ``weights``.

    grads: [N, L, L], of the weights; becomes that of the scores. c2p_grads: [N, L, B] and
    p2c_grads: [N, B, L], zeros, are filled in.
    """
    count, length, _ = weights.shape
    stride = np.uint32(length)
    for n in range(count):
        real = lengths[n]
        by_key = p2c_grads[n].ravel()
        for i in range(real):
            row = grads[n, i, :real]
            weight = weights[n, i, :real]
            mean = np.float32(0.0)
            for j in range(real):
                mean += weight[j] * row[j]
            for j in range(real):
                row[j] = weight[j] * (row[j] - mean)
            by_query = c2p_grads[n, i]
            places = bucket[length - 1 - i : length - 1 - i + real]
            for j in range(real):
                place = places[j]
                by_query[place] += row[j]
                by_key[place * stride + np.uint32(j)] += row[j]
            grads[n, i, real:] = np.float32(0.0)
        grads[n, real:] = np.float32(0.0)


@compiled
def quantize(
    values: NDArray[np.float32],
    quantized: NDArray[np.int8],
    scales: NDArray[np.float32],
    centers: NDArray[np.float32],
) -> None:
    """Round each group of a row to int8: values ≈ quantized · scale + center.

    values: [N, G * K]. quantized: int8 [G, N, K], in [-127, 127]; scales, centers: [G, N]. The
    center is the middle of the group's range. A group with a number that is not finite has the
    scale NaN.
    """
    groups, count, width = quantized.shape
    ends = np.empty(2, np.int32)
    for n in range(count):
        for g in range(groups):
            row = values[n, g * width : (g + 1) * width]
            integers = row.view(np.int32)
            low = high = _ordered(integers[0])
            for k in range(width):
                value = _ordered(integers[k])
                low = min(low, value)
                high = max(high, value)
            ends[0], ends[1] = _ordered(low), _ordered(high)
            bottom, top = ends.view(np.float32)
            scale = (top - bottom) * np.float32(1 / 254)
            center = np.float32(0.5) * (top + bottom)
            if not np.isfinite(scale):
                scale = np.float32(np.nan)
            scales[g, n] = scale
            centers[g, n] = center
            inverse = np.float32(1.0) / scale if scale > 0 else np.float32(0.0)
            # The middle falls on 127.5: rounding down then is rounding to the nearest.
            shift = np.float32(127.5) - center * inverse if scale > 0 else np.float32(127.5)
            into = quantized[g, n]
            for k in range(width):
                into[k] = np.int8(np.int32(row[k] * inverse + shift) - 127)


@compiled
def dequantize(
    sums: NDArray[np.int32],
    scales: NDArray[np.float32],
    centers: NDArray[np.float32],
    weight_scales: NDArray[np.float32],
    weight_sums: NDArray[np.float32],
    bias: NDArray[np.float32],
    values: NDArray[np.float32],
) -> None:
    """What the products of a group's quantised inputs and weights stand for, over all groups.

    sums: int32 [G, N, M]; scales, centers: [G, N]; weight_scales and weight_sums, the sums of
    the rounded weights, scaled: [G, M]; bias: [M]. values: [N, M], filled in.
    """
    groups, count, width = sums.shape
    for n in range(count):
        into = values[n]
        for m in range(width):
            into[m] = bias[m]
        for g in range(groups):
            scale, center = scales[g, n], centers[g, n]
            row, weight_scale, weight_sum = sums[g, n], weight_scales[g], weight_sums[g]
            for m in range(width):
                into[m] += np.float32(row[m]) * (scale * weight_scale[m]) + center * weight_sum[m]
