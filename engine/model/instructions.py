# SPDX-License-Identifier: MIT OR Apache-2.0
"""The instruction-set levels of the native kernels: what they are called, and which a switch may ask for."""

from __future__ import annotations

from engine.errors import UsageError
from engine.knobs import KnobSet
from kernels.build import machine_isas

ISA_NAMES = {
    "amx": "AMX BF16",
    "avx512bf16": "AVX-512 BF16",
    "avx512vnni": "AVX-512 VNNI",
    "avx512": "AVX-512",
    "avxvnni": "AVX2 with VNNI",
    "avx2": "AVX2",
    "dotprod": "NEON with dot product",
    "neon": "NEON",
    "portable": "portable code",
}


def refuse_instructions(knobs: KnobSet) -> None:
    """Raise UsageError where QWEN38_CPU_ISA names a level that this processor cannot run."""
    wanted, usable = knobs.choice("CPU_ISA"), machine_isas()
    if wanted not in ("", "reference", *usable):
        raise UsageError(
            f"QWEN38_CPU_ISA={wanted}: this processor cannot run {ISA_NAMES[wanted]}.",
            next_step=f"Leave it empty for {usable[0]}, or use one of {', '.join(usable)}, reference.",
        )
