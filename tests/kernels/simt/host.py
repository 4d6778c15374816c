# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds a CUDA source for the CPU and launches its entries there (simt.h beside this file)."""

from __future__ import annotations

import ctypes
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from kernels.build_cache import cache_folder, digest, hash_text, locked, produce

HERE = Path(__file__).parent
KERNELS = HERE.parents[2] / "kernels"
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-ffp-contract=off")


class SimtError(AssertionError):
    """A launch broke a rule of the machine it stands for."""


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("ranges", ctypes.c_uint32),
        ("range", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
    ]


class HostKernels:
    """The entries of one source, built for the CPU.

    Args:
        source: a file below kernels/, or any path.
        entry: one entry of it; all that are launched take its arguments.
        fp4_convert: which decoder: that of the FP4 conversions, or the one of bit operations.
        edits: (file name, old, new): changes of the source or of a header, to see a fault caught.
    """

    def __init__(
        self,
        source: str | Path,
        entry: str,
        *,
        fp4_convert: bool = True,
        edits: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        if not shutil.which("g++"):
            pytest.skip("the host build of the CUDA kernels needs g++")
        files = [KERNELS / source, *sorted(KERNELS.glob("cuda/*.cuh"))]
        own = [HERE / name for name in ("simt.h", "ptx.cuh", "host.cpp")]
        recipe = f"{FLAGS} {entry} {fp4_convert} {list(edits)}"
        content = digest([*files, *own])
        folder = cache_folder("simt")
        name = hash_text(recipe + content)
        library = folder / f"{Path(source).stem}-{name}.so"
        with locked(folder / "build.lock"):
            if not library.exists():
                sources = folder / name
                sources.mkdir(exist_ok=True)
                for file in files:
                    text = file.read_text("utf-8")
                    for name_of_file, old, new in edits:
                        if name_of_file == file.name:
                            assert old in text, f"{file.name} has no {old!r} to change"
                            text = text.replace(old, new)
                    # The host's own ptx.cuh is the one that counts.
                    (sources / file.name.replace("ptx.cuh", "ptx-device.cuh")).write_text(text)
                command = ["g++", *FLAGS, f"-DRONDO_FP4_CONVERT={int(fp4_convert)}"]
                command += [f'-DKERNEL_FILE="{Path(source).name}"', f"-DKERNEL_ENTRY={entry}"]
                command += [f"-I{HERE}", f"-I{sources}", str(HERE / "host.cpp")]
                produce(command, library)
                shutil.rmtree(sources)
        self._library = ctypes.CDLL(str(library))
        self._library.simt_launch.restype = ctypes.c_char_p

    def launch(
        self,
        entry: str,
        *,
        grid: int,
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Tensor | int | float],
        readable: Sequence[Tensor] | None,
    ) -> None:
        """Run every block of a grid; tensors go as their address; readable None lets it read anything.

        Raises:
            SimtError: a read outside `readable`, lanes or threads that do not meet, or a write behind
                the shared memory asked for.
        """
        words = [_word(argument) for argument in arguments]
        ranges = [0, 2**63 - 1]
        if readable is not None:
            ranges = [word for t in readable for word in (t.data_ptr(), _span_bytes(t))]
        values = (ctypes.c_uint64 * len(words))(*(word & (2**64 - 1) for word in words))
        spans = (ctypes.c_uint64 * len(ranges))(*ranges)
        how = _Launch(
            grid,
            threads,
            shared_bytes,
            len(ranges) // 2,
            ctypes.addressof(spans),
            ctypes.addressof(values),
        )
        function = getattr(self._library, entry)
        error = self._library.simt_launch(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(how))
        if error:
            raise SimtError(error.decode())


def _word(argument: Tensor | int | float) -> int:
    """What the launch passes: an address, a whole number, or the bits of a float32."""
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    if isinstance(argument, float):
        return int.from_bytes(struct.pack("<f", argument), "little")
    return argument


def _span_bytes(tensor: Tensor) -> int:
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
