# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo tune`: a table of product sizes that are fastest on this machine, with the default's bits.

On the processor these are sizes of loops, with --device cuda launch settings; a file holds both, each in its
own section, and the processor's by the instruction level that they were measured at.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli import OK, print_json
from engine.commands.shared import tell, threads_of
from engine.errors import Cancelled, RondoError, UsageError
from engine.hardware import MOST_THREADS
from engine.measure.machine import machine_record
from engine.measure.shapes import Shape, named_shape, shape_names
from engine.model.tiles import LEVELS, plain_level
from engine.moment import iso_utc
from engine.path_status import make_folder
from engine.paths import data_dir
from engine.replace_file import replace_text

if TYPE_CHECKING:
    from engine.measure.tune import TuneRow
    from engine.measure.tune_cuda import CudaTuneRow

# (weights, wide) -> the switch that reads such a table, its file name and its rows.
_TABLES = {
    ("nvfp4", False): ("QWEN38_SKINNY_TILES", "skinny-tiles.json", "1 to 16"),
    ("nvfp4", True): ("QWEN38_SKINNY_TILES_WIDE", "skinny-tiles-wide.json", "17 to 32"),
    ("fp8", False): ("QWEN38_FP8_TILES", "fp8-tiles.json", "1 to 32"),
}
_MACHINE = ("cpu_model", "isa_flags", "cores", "cores_available", "caches", "load_1min", "compiler")
_CODE = ("git_commit", "git_dirty", "code_sha256_12")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--shape",
        default="demo",
        metavar="NAME[:LAYERS],...",
        help=f"one or several with commas, for one table: {', '.join(shape_names())} (default: demo)",
    )
    parser.add_argument(
        "--vocab",
        type=int,
        metavar="N",
        help="at most N rows of the vocabulary (default: the shape's own)",
    )
    parser.add_argument(
        "--weights",
        default="nvfp4",
        choices=("nvfp4", "fp8"),
        help="format whose products are tuned (default: nvfp4)",
    )
    parser.add_argument(
        "--wide",
        action="store_true",
        help="tune passes of 17 to 32 rows, which nvfp4 keeps in a table of their own",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="what computes: cpu tunes sizes of loops, cuda launch settings (default: cpu)",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="worker threads, cpu alone (default: every core)"
    )
    parser.add_argument(
        "--turns", type=int, metavar="N", help="times each setting is timed, cpu alone (default: 5)"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="table to write (default: in the user's data folder)"
    )


@dataclass(frozen=True)
class _Table:
    """What a sweep leaves: entries, their origin, and a line of words for each product.

    `level`: the instruction level of a processor's table, empty for a GPU's.
    """

    level: str
    entries: dict[str, Any]
    origin: dict[str, Any]
    rows: list[Any]
    words: list[str]


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Sweep, write the table and say what it brings."""
    if (arguments.weights, arguments.wide) not in _TABLES:
        raise UsageError("One table serves all rows of FP8 weights.", next_step="Leave out --wide.")
    switch, file_name, row_range = _TABLES[arguments.weights, arguments.wide]
    shapes = _shapes(arguments)
    path = Path(arguments.out) if arguments.out else data_dir() / "tiles" / file_name
    present = _present(path)
    _require_room(path)
    try:
        measure = _on_gpu if arguments.device == "cuda" else _on_processor
        measured = measure(arguments, shapes, cancel)
    except (Cancelled, KeyboardInterrupt):
        kept = f"{path} is as it was." if path.exists() else "No table was written."
        raise Cancelled("Tuning was cancelled.", kept=kept) from None
    origin = {
        "switch": switch,
        "shape": ",".join(shape.name for shape in shapes),
        "cut": [f"{shape.name}: {shape.note}" for shape in shapes if shape.note],
        **measured.origin,
        "date": iso_utc(),
        **_provenance(),
    }
    about = f"Product sizes by weight shape for {row_range} rows, written by `rondo tune`."
    _write(path, {"about": about, **_joined(present, measured, origin)})
    if arguments.json:
        section = "tiles" if measured.level else "cuda"
        made = {section: measured.entries, f"{section}_from": origin}
        print_json({"file": str(path), **made, "rows": [asdict(row) for row in measured.rows]})
        return OK
    for line in measured.words:
        print(line)
    print(f"{path}\nuse it with --knob {switch}={path}")
    return OK


def _shapes(arguments: argparse.Namespace) -> list[Shape]:
    """The shapes that --shape names, each once; UsageError where one is none."""
    found = {}
    for text in arguments.shape.split(","):
        shape = named_shape(text)
        if arguments.vocab is not None:
            capped = named_shape(text, vocab=arguments.vocab)
            shape = min(shape, capped, key=lambda each: each.config.vocab_size)
        found[shape.name] = shape
    return list(found.values())


def _joined(present: dict[str, Any], measured: _Table, origin: dict[str, Any]) -> dict[str, Any]:
    """What the file holds afterwards: tables of other devices and levels stay."""
    if not measured.level:
        return {**present, "cuda": measured.entries, "cuda_from": origin}
    plain, levels = present.get("tiles"), dict(present.get(LEVELS) or {})
    rest = {name: value for name, value in present.items() if name not in ("tiles", "tiles_from")}
    if plain and (level := plain_level(present)):
        levels.setdefault(level, {"tiles": plain, "tiles_from": present["tiles_from"]})
    elif plain:
        rest["tiles"] = plain  # of no level, so it serves those that have no table
    levels[measured.level] = {"tiles": measured.entries, "tiles_from": origin}
    return {**rest, LEVELS: levels}


def _on_processor(
    arguments: argparse.Namespace, shapes: list[Shape], cancel: threading.Event
) -> _Table:
    from engine.measure.tune import NARROW_ROWS, WIDE_ROWS, tune
    from kernels.build import NativeBuildError, load_library
    from kernels.tape import Pool

    turns = 5 if arguments.turns is None else arguments.turns
    if not 1 <= turns <= 1000:
        raise UsageError(f"{turns} turns are not accepted.", next_step="Use 1 to 1000.")
    rows = WIDE_ROWS if arguments.wide else NARROW_ROWS
    if arguments.weights == "fp8":
        rows = (*NARROW_ROWS, *WIDE_ROWS)
    threads = threads_of(arguments)
    if not 1 <= threads <= MOST_THREADS:
        raise UsageError(
            f"{threads} threads are not accepted.", next_step=f"Use 1 to {MOST_THREADS}."
        )
    try:
        library = load_library()
        with Pool(library, threads) as pool:
            found = tune(
                shapes,
                weight_format=arguments.weights,
                rows=rows,
                pool=pool,
                turns=turns,
                on_progress=tell,
                cancel=cancel,
            )
    except NativeBuildError as error:
        raise RondoError(f"{error}.", next_step="`rondo doctor` says what is missing.") from error
    return _Table(
        library.isa,
        {row.key: _entry(asdict(row.blocking), row) for row in found if _gains(row)},
        {"threads": threads, "isa": library.isa},
        found,
        [_words(row, asdict(row.blocking)) for row in found],
    )


def _on_gpu(arguments: argparse.Namespace, shapes: list[Shape], cancel: threading.Event) -> _Table:
    import torch

    from kernels.build_cache import NativeBuildError
    from kernels.cuda_build import CudaError, CudaLibrary

    if arguments.threads is not None or arguments.turns is not None:
        raise UsageError("--threads and --turns are of a sweep on the processor.")
    if not torch.cuda.is_available():
        raise _no_gpu("PyTorch sees no GPU")
    try:
        from engine.measure.tune_cuda import gpu_record, tune_cuda

        library = CudaLibrary(on_progress=tell)
        found = tune_cuda(
            shapes,
            weight_format=arguments.weights,
            wide=arguments.wide,
            library=library,
            on_progress=tell,
            cancel=cancel,
        )
    except (NativeBuildError, CudaError, ImportError, OSError) as error:
        raise _no_gpu(str(error)) from error
    return _Table(
        "",
        {row.key: _entry(row.setting, row) for row in found if _gains(row)},
        gpu_record(library),
        found,
        [_words(row, row.setting) for row in found],
    )


def _no_gpu(reason: str) -> RondoError:
    return RondoError(
        f"The GPU cannot compute: {reason}.",
        kept="No table was written.",
        next_step="`rondo doctor` says what is missing; --device cpu tunes the processor's products.",
    )


def _present(path: Path) -> dict[str, Any]:
    """What the file holds already, such as another device's table; nothing where there is none.

    Raises UsageError for a file that is no table: it would be lost.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _occupied(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _occupied(path, f"is not JSON: {error}") from error
    if not isinstance(content, dict) or not {"tiles", LEVELS, "cuda"} & content.keys():
        raise _occupied(path, "holds something else")
    return content


def _require_room(path: Path) -> None:
    """UsageError where nothing can be written beside `path`: known before the sweep, not after it."""
    try:
        make_folder(path.parent)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(
            f"{path}: nothing can be written there: {error.strerror}.",
            kept="Nothing was measured.",
            next_step="Name another file with --out.",
        ) from error


def _occupied(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path} is no table of product sizes: it {reason}.",
        kept="Nothing was measured, and the file is as it was.",
        next_step="Name another file with --out.",
    )


def _provenance() -> dict[str, Any]:
    machine = machine_record()
    return {
        "machine": {name: machine[name] for name in _MACHINE},
        **{name: machine[name] for name in _CODE},
    }


def _gains(row: TuneRow | CudaTuneRow) -> bool:
    return row.tuned_gbps > row.default_gbps


def _entry(setting: dict[str, Any], row: TuneRow | CudaTuneRow) -> dict[str, Any]:
    return {
        **setting,
        "measured_rows": list(row.rows),
        "default_gbps": row.default_gbps,
        "tuned_gbps": row.tuned_gbps,
    }


def _words(row: TuneRow | CudaTuneRow, setting: dict[str, Any]) -> str:
    chosen = ", ".join(f"{name} {value}" for name, value in setting.items())
    gain = 100 * (row.tuned_gbps / row.default_gbps - 1)
    said = f"{gain:+.1f} % with {chosen}" if gain > 0 else "the default is as good"
    return f"{row.key}: {row.default_gbps:.2f} GB/s; {said} ({row.settings} settings)"


def _write(path: Path, table: dict[str, Any]) -> None:
    text = json.dumps(table, indent=2) + "\n"
    try:
        replace_text(path, text)
    except OSError as error:
        print(text, file=sys.stderr)
        raise RondoError(
            f"{path}: the table cannot be written: {error.strerror}.",
            kept="It stands above; what the file held is as it was.",
            next_step="Use --out FILE.",
        ) from error
