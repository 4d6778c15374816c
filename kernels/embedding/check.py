# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native embedding."""

from __future__ import annotations

import torch

from kernels.build import NativeLibrary
from kernels.checks import CheckResult, expect, poison, same_bits
from kernels.embedding.native import embed
from kernels.tape import Pool, Tape


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Rows copied to the bit at every row count, ids read at replay, bad ids turned into NaN."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(300, 80, generator=generator).bfloat16()
    results = []
    for threads in (1, 2):
        with Pool(library, threads) as pool:
            for rows in (1, 5, 32):
                ids = torch.zeros(32, dtype=torch.int32)
                out = poison(torch.empty(rows, 96, dtype=torch.bfloat16))
                tape = Tape(pool)
                embed(tape, table=table, ids=ids, out=out[:, :80], rows=rows)
                ids.copy_(torch.randint(300, (32,), generator=generator))
                ids[0] = 299
                tape.run()
                same = same_bits(out[:, :80], table[ids[:rows].long()])
                untouched = bool(out[:, 80:].isnan().all())
                reason = f"{rows} rows on {threads} workers differ from the table"
                results.append(expect("embedding", library.isa, same and untouched, reason))
                ids[0] = 300
                ids[rows - 1] = -1
                tape.run()
                marked = bool(out[rows - 1, :80].isnan().all()) and bool(out[0, :80].isnan().all())
                reason = "an id outside the table was not turned into NaN"
                results.append(expect("embedding", library.isa, marked, reason))
    return results
