# SPDX-License-Identifier: MIT OR Apache-2.0
"""E2M1 conversion: exhaustive codes, exact ties, and the native form."""

from __future__ import annotations

import pytest
import torch

from kernels.build import NativeLibrary
from kernels.cpu.buffers import aligned_empty
from kernels.e2m1 import native
from kernels.e2m1.check import check
from kernels.e2m1.reference import VALUES, decode, encode, pack, unpack
from kernels.tape import Pool, Tape


def test_checks_pass(library: NativeLibrary) -> None:
    results = check(library)
    assert len(results) >= 12
    assert [result.reason for result in results if not result.ok] == []


def test_every_code_comes_back() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert encode(decode(codes)).tolist() == codes.tolist()
    assert decode(codes[:8]).tolist() == list(VALUES)
    assert torch.signbit(decode(torch.tensor([8], dtype=torch.uint8))).item()


def test_ties_go_to_the_even_code_and_only_exact_ties() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert encode(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    below = torch.nextafter(ties, torch.zeros(7))
    above = torch.nextafter(ties, torch.full((7,), 9.0))
    assert encode(below).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert encode(above).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert encode(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]


def test_every_byte_unpacks_and_packs() -> None:
    packed = torch.arange(256, dtype=torch.uint8)
    codes = unpack(packed)
    assert codes[:4].tolist() == [0, 0, 1, 0]
    assert codes[32:34].tolist() == [0, 1]
    assert torch.equal(pack(codes), packed)
    with pytest.raises(ValueError, match="even"):
        pack(codes[:3])


def test_operands_that_do_not_fit_are_refused(fastest: NativeLibrary) -> None:
    with Pool(fastest, 1) as pool:
        tape = Tape(pool)
        out = aligned_empty(2, torch.uint8)
        with pytest.raises(ValueError, match="even number"):
            native.encode(tape, torch.zeros(3), out)
        with pytest.raises(ValueError, match="out must have shape"):
            native.encode(tape, torch.zeros(8), out)
        with pytest.raises(ValueError, match=r"packed must be torch\.uint8"):
            native.decode(tape, torch.zeros(2), torch.zeros(4))
