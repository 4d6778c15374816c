# SPDX-License-Identifier: MIT OR Apache-2.0
"""How a linear layer's weight lies in memory: one frozen record for each stored form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.fp8_linear.reference import dequantise_blocks, dequantise_rows
from kernels.nvfp4_linear.reference import dequantise_nvfp4

FP8_BLOCK = 128
NVFP4_GROUP = 16


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A plain matrix [N, K] in bf16, or in float32 when a float32 checkpoint is read unchanged."""

    weight: Tensor

    format_name = "BF16"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): output rows and input columns."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes that one use of the whole matrix reads."""
        return self.weight.nbytes

    def dequantise(self) -> Tensor:
        """The matrix itself [N, K]."""
        return self.weight


@dataclass(frozen=True, slots=True, eq=False)
class Nvfp4:
    """Four-bit codes with a scale for every 16 columns and one for the whole matrix.

    codes: uint8 [N, K/2], element 2j in the low nibble of byte j; scales: float8_e4m3fn [N, K/16];
    W = e2m1(code) * scale * scale_2.
    """

    codes: Tensor
    scales: Tensor
    scale_2: float

    format_name = "NVFP4"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): output rows and input columns."""
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes that one use of the whole matrix reads."""
        return self.codes.nbytes + self.scales.nbytes + 4

    def dequantise(self) -> Tensor:
        """The values, rounded once to bf16 [N, K]."""
        values = dequantise_nvfp4(self.codes, self.scales, self.scale_2)
        return values.to(torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class _Fp8:
    """E4M3 codes [N, K] and their scales."""

    codes: Tensor
    scale: Tensor

    format_name = "FP8"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): output rows and input columns."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes that one use of the whole matrix reads."""
        return self.codes.nbytes + self.scale.nbytes


class Fp8Block(_Fp8):
    """E4M3 codes [N, K] with one scale for every 128x128 block.

    codes: float8_e4m3fn [N, K]; scale: float32 [ceil(N/128), ceil(K/128)]; W = code * scale.
    """

    __slots__ = ()

    def dequantise(self) -> Tensor:
        """The values, rounded once to bf16 [N, K]."""
        return dequantise_blocks(self.codes, self.scale).to(torch.bfloat16)


class Fp8Row(_Fp8):
    """E4M3 codes [N, K] with one scale for every output row; a per-tensor scale is repeated.

    codes: float8_e4m3fn [N, K]; scale: float32 [N]; W = code * scale.
    """

    __slots__ = ()

    def dequantise(self) -> Tensor:
        """The values, rounded once to bf16 [N, K]."""
        return dequantise_rows(self.codes, self.scale).to(torch.bfloat16)


StoredLinear = Dense | Nvfp4 | Fp8Block | Fp8Row
