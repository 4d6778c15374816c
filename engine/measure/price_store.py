# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where measured verify prices are kept: one file for each machine, model, setting and build of kernels.

A table is never used for another of these: prices of one machine say little about the next, and a newer build
of the kernels has other steps.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.measure.machine import cpu_model
from engine.measure.price_run import quick_block_ms, quick_draft_ms, quick_prices
from engine.model.backend import Backend
from engine.model.cuda import CudaBackend
from engine.model.cuda_memory import device_name
from engine.model.native import NativeBackend
from engine.paths import price_tables_dir
from engine.spec.default_prices import default_prices
from engine.spec.prices import PriceTable, read_prices
from engine.spec.staircut_prices import LivePrices


@dataclass(frozen=True, slots=True)
class PriceKey:
    """What prices depend on.

    kernels: the build of the native code. model: geometry and formats. switches: `KnobSet.of_passes`.
    """

    machine: str
    isa: str
    threads: int
    backend: str
    kernels: str
    model: str
    switches: tuple[tuple[str, str], ...]

    @staticmethod
    def of(backend: Backend, knobs: KnobSet) -> PriceKey:
        """The key of a backend whose sequence is empty.

        A model counts by its geometry and by the bytes of a round, which tell its formats apart, not by the
        values of its weights.
        """
        if backend.length:
            raise ValueError("the bytes of a round are comparable on an empty sequence only")
        native = isinstance(backend, NativeBackend)
        gpu = isinstance(backend, CudaBackend)
        geometry = backend.config.geometry()
        del geometry["mtp_layers"], geometry["context_tokens"]  # no part of a verify pass
        shape = f"{sorted(geometry.items())} {backend.round_bytes(1, 0)}"
        return PriceKey(
            machine=device_name(backend.device) if gpu else cpu_model(),
            isa=backend.pool.library.isa if native else "torch",
            threads=backend.pool.threads if native else torch.get_num_threads(),
            backend=backend.name,
            kernels=backend.pool.library.path.stem.rpartition("-")[2] if native else "",
            model=hashlib.sha256(shape.encode()).hexdigest()[:12],
            switches=knobs.of_passes(),
        )

    def path(self) -> Path:
        """The file of these prices in the user's data folder."""
        text = repr(sorted(asdict(self).items()))
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        return price_tables_dir() / f"{self.model}-{name}.json"


def given_prices(path: Path) -> PriceTable:
    """The table of the file that QWEN38_STAIR_TABLES names; UsageError when it is none."""
    return read_prices(path, source=f"file given by QWEN38_STAIR_TABLES: {path}")


def kept_prices(key: PriceKey) -> PriceTable | None:
    """The table measured before for exactly this key, or None.

    Raises:
        UsageError: there is a file and it is no table.
    """
    path = key.path()
    if not path.is_file():
        return None
    table = read_prices(path, source="")
    date = str(table.provenance.get("date", ""))[:10]
    return replace(table, source=f"measured on this machine {date}".strip())


def live_prices(backend: Backend, knobs: KnobSet) -> LivePrices:
    """The prices a router starts from. What the backend's sequence holds is lost: it is empty afterwards.

    The file of QWEN38_STAIR_TABLES where one is named, else the table kept for exactly this machine, model and
    switches, else a few rounds timed now, or, where even these take too long, the proportions of the shipped
    table; the rounds to come correct both. Raises UsageError for a given file that is no table.
    """
    drafts = {"draft_ms": quick_draft_ms(backend), "block_ms": quick_block_ms(backend)}
    given = knobs.path("STAIR_TABLES")
    if given is not None:
        return LivePrices(given_prices(given), **drafts)
    backend.reset(speculate=False)
    key = PriceKey.of(backend, knobs)
    damaged = ""
    try:
        kept = kept_prices(key)
    except UsageError as error:
        kept, damaged = None, f" ({error.cause})"
    if kept is not None:
        return LivePrices(kept, **drafts)
    quick = quick_prices(backend)
    table = quick or default_prices()
    table = replace(table, source=table.source + damaged)
    return LivePrices(table, learns_rows=True, relative=quick is None, **drafts)
