# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measurements as CSV: one row for every measured run, columns with units in their names.

UTF-8, RFC 4180 quoting, a decimal point in any locale, full precision, empty for missing. A file is written
whole under a temporary name and never replaces another. Text that a spreadsheet would take for a formula
gets a leading apostrophe.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import RondoError
from engine.path_status import path_status

SCHEMA_VERSION = 1


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


RUN_COLUMNS = _names(
    """
    schema_version run_id session_id label side pair_index order_in_pair workload test_time
    code_sha256_12 git_commit git_dirty app_version python_version torch_version triton_version cuda_version
    driver_version host cpu_info gpu_info gpu_peak_gbps model_name model_sha8 weight_format knobs_sha8
    knobs_json engaged_json seed temperature n_prompt n_gen_requested n_gen n_context_start drafter
    warmup_runs discarded rounds tokens_per_round draft_tokens accepted_tokens acceptance_pct
    ms_per_round_median ms_per_round_mean ms_per_round_p90 draft_ms_per_round verify_ms_per_round
    other_ms_per_round ttft_ms prefill_tps decode_tps bytes_per_round achieved_gbps mem_allocated_bytes
    mem_reserved_bytes mem_free_bytes gpu_temp_c sm_clock_mhz power_w tokens_sha256_12 finish_reason ui_mode
    error
    suite rows threads peer ms_per_round_min ms_per_round_max roof_gbps gflops peak_gflops tokens_per_s
    repeat interrupted_rounds
    """
)
_CODE_COLUMNS = _names(
    "code_sha256_12 git_commit git_dirty app_version python_version torch_version"
)
KERNEL_COLUMNS = _names(
    """
    schema_version run_id phase kernel_name kernel_family count_per_round total_ms_per_round share_pct
    median_us min_us max_us stddev_us grid block regs smem_bytes bytes_moved achieved_gbps profiled
    """
)
COMPARE_COLUMNS = _names(
    """
    schema_version comparison_id test_time label workload metric unit better base_label cand_label n_pairs
    base_median cand_median ratio_median delta_pct ci95_low_pct ci95_high_pct p_signflip noise_floor_pct
    min_effect_pct smallest_resolvable_pct tokens_identical engaged_differs reloaded verdict reason
    estimator repeats interrupted_pct
    """
)
KNOB_COLUMN = "knob:"  # before the name of a switch whose value differs within a file
_FORMULA = ("=", "+", "-", "@", "\t", "\n")


class ExportError(RondoError):
    """A file that could not be written."""

    title = "The export was not written"


def machine_columns(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a run's row that its machine record fills."""
    return {
        "cpu_info": machine.get("cpu_model"),
        "mem_free_bytes": machine.get("memory_available_bytes"),
        **{name: machine.get(name) for name in _CODE_COLUMNS},
    }


def write_csv(
    path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write `rows` to a new file; a column a row does not have stays empty.

    Raises:
        ExportError: the file exists, or cannot be written; says what was kept.
        ValueError: a row has a column that the schema does not know.
    """
    write_new_file(path, csv_text(columns, rows))


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The file's text: a header, then the rows with `schema_version` filled in."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        unknown = row.keys() - set(columns)
        if unknown:
            raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
        values = {"schema_version": SCHEMA_VERSION, **row}
        writer.writerow([cell(values.get(column)) for column in columns])
    return buffer.getvalue()


def cell(value: Any) -> str:
    """One value as text: repr for numbers, true or false, empty for None and for what is not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    # The csv module leaves a lone carriage return unquoted, which readers take for the end of a row.
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return "'" + text if text.startswith(_FORMULA) else text


def write_json(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write a new JSON file beside a CSV; the same rules and errors as `write_csv`."""
    text = json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False)
    write_new_file(path, text + "\n")


def require_new(path: str | os.PathLike[str]) -> None:
    """ExportError now rather than after a long measurement when `path` exists or its folder does not."""
    target = Path(path)
    if os.path.lexists(target):
        raise _exists(target)
    try:
        path_status(target)
    except OSError as error:
        raise _failed(target, error) from error
    if not target.parent.is_dir():
        raise _failed(target, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    if not os.access(target.parent, os.W_OK):
        raise _failed(target, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def write_new_file(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 `text` to a path that does not exist yet, all of it or nothing."""
    target = Path(path)
    if os.path.lexists(target):
        raise _exists(target)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=".export-", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        _publish(temporary, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise _failed(target, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _publish(temporary: str, target: Path) -> None:
    """Give the finished file its name; FileExistsError when another took the name meanwhile."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: take the name first, then move the file onto it.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            os.replace(temporary, target)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(target)
            raise


def _exists(target: Path) -> ExportError:
    return ExportError(
        f"{target} exists already.",
        kept="It was left as it is.",
        next_step="Choose another file name.",
    )


def _failed(target: Path, error: OSError) -> ExportError:
    steps = {
        errno.ENOSPC: "Free some space on that disk, or choose another folder.",
        errno.EDQUOT: "Free some space in your quota, or choose another folder.",
        errno.ENOENT: "Create the folder first, or choose another.",
        errno.ENAMETOOLONG: "Choose a shorter file name.",
    }
    return ExportError(
        f"{target} cannot be written: {error.strerror or error}.",
        kept="No partial file was left; the results stay on the screen.",
        next_step=steps.get(error.errno, "Choose a folder that you may write to."),
    )
