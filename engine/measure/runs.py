# SPDX-License-Identifier: MIT OR Apache-2.0
"""The store of runs: one folder for every A/B and bench, JSON and CSV, whole or absent.

A run is written under a temporary name, synced and renamed, so that two processes and a crash leave whole runs
only. Listing reads folder names and, for the page that is asked for, one small file a run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.api_compare import MOST_LABEL, CompareReport, RunRecord, RunSummary
from engine.errors import RondoError
from engine.measure.records import plain, record
from engine.measure.runs_text import CSV_ROWS, Files, bench_files, compare_files, headline_of
from engine.moment import iso_utc
from engine.path_status import make_folder
from engine.paths import data_dir
from engine.replace_file import replace_text

SCHEMA_VERSION = 1
_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
_SUMMARY, _RUN, _LABEL = "summary.json", "run.json", "label.txt"
_LARGEST_BYTES = 256 << 20
_WRITING, _DELETED = ".writing-", ".deleted-"
_ABANDONED_S = 3600.0


class RunStoreError(RondoError):
    """A run that cannot be stored, found or read."""

    title = "The runs store"


class RunStore:
    """Runs in `folder` (default: the user's data folder), which is made with the first run."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = data_dir() / "runs" if folder is None else folder

    def save_compare(self, report: CompareReport) -> CompareReport:
        """Store an A/B and return the report with its run id; RunStoreError says what was kept."""
        run_id = new_run_id()
        report = replace(report, run_id=run_id, label=_label(report.label), not_stored="")
        summary = RunSummary(
            run_id=run_id,
            kind="compare",
            test_time=_time_of(run_id),
            label=report.label,
            model_name=report.model_name,
            machine=str(report.machine.get("cpu_model") or ""),
            headline=headline_of(report),
            verdict=report.verdict,
        )
        body = {"request": plain(report.request), "machine": plain(report.machine)}
        self._save(summary, {**body, "compare": plain(report)}, compare_files(report))
        return report

    def save_bench(
        self,
        bench: Mapping[str, Any],
        rows: Iterable[Mapping[str, Any]],
        request: Mapping[str, Any],
        *,
        label: str = "",
    ) -> str:
        """Store a bench (the plain values of its report, its CSV rows, what was asked) and return its id."""
        run_id = new_run_id()
        machine = plain(bench.get("machine") or {})
        summary = RunSummary(
            run_id=run_id,
            kind="bench",
            test_time=_time_of(run_id),
            label=_label(label),
            model_name=str(request.get("shape") or ""),
            machine=str(machine.get("cpu_model") or ""),
            headline=f"{len(bench.get('rows') or ())} cases, {bench.get('seconds', 0):.0f} s",
            verdict="",
        )
        numbered = [
            {**row, "session_id": run_id, "run_id": f"{run_id}-{number}"}
            for number, row in enumerate(rows)
        ]
        stored = plain({**bench, CSV_ROWS: numbered})
        body = {"request": plain(request), "machine": machine, "bench": stored}
        self._save(summary, body, bench_files(numbered))
        return run_id

    def list(self, *, offset: int = 0, limit: int = 200) -> tuple[RunSummary, ...]:
        """Summaries, newest first; a run that cannot be read is listed with what is wrong."""
        try:
            names = [name for name in os.listdir(self.folder) if _ID.fullmatch(name)]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _unreadable(self.folder, error) from error
        chosen = sorted(names, reverse=True)[offset : offset + limit]
        return tuple(self._summary(name) for name in chosen)

    def read(self, run_id: str) -> RunRecord:
        """One run, whole. Raises RunStoreError where there is none or a file of it is damaged."""
        folder = self._folder(run_id)
        summary = self._summary(run_id)
        try:
            values = _read_json(folder / _RUN)
            compare = values.get("compare")
            report = record(CompareReport, compare) if compare is not None else None
            request, machine = _object(values, "request"), _object(values, "machine")
            bench = _bench_of(values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunStoreError(
                f"Run {run_id} is damaged: {_RUN}: {_words(error)}.",
                kept="The file was left as it is.",
                next_step="Delete the run, or restore the file.",
            ) from error
        if report is not None:
            report = replace(report, label=summary.label)
        return RunRecord(summary, request, machine, report, bench)

    def label(self, run_id: str, label: str) -> None:
        """Give a run another label of at most MOST_LABEL characters."""
        folder = self._folder(run_id)
        try:
            replace_text(folder / _LABEL, _label(label))
        except OSError as error:
            raise RunStoreError(
                f"Run {run_id} cannot be labelled: {_words(error)}.",
                kept="It keeps the label it had.",
                next_step=_advice(error),
            ) from error

    def delete(self, run_id: str) -> None:
        """Remove a run at once from the list, then its files; the error says which of the two failed."""
        folder = self._folder(run_id)
        self._sweep()
        away = self.folder / f"{_DELETED}{run_id}-{secrets.token_hex(3)}"
        try:
            os.rename(folder, away)
        except OSError as error:
            raise RunStoreError(
                f"Run {run_id} cannot be deleted: {_words(error)}.",
                kept="It stays in the list.",
                next_step=_advice(error),
            ) from error
        try:
            shutil.rmtree(away)
        except FileNotFoundError:  # another process sweeps it away as well
            shutil.rmtree(away, ignore_errors=True)
        except OSError as error:
            raise RunStoreError(
                f"Run {run_id} is out of the list, but files of it are left in {away}: "
                f"{_words(error)}.",
                kept="They are removed with the next run that is stored or deleted, if they can be.",
                next_step=_advice(error),
            ) from error

    def _summary(self, run_id: str) -> RunSummary:
        folder = self.folder / run_id
        try:
            values = _read_json(folder / _SUMMARY)
            summary = replace(record(RunSummary, values), run_id=run_id)
        except (OSError, ValueError, TypeError) as error:
            damaged = f"{_SUMMARY}: {_words(error)}"
            return RunSummary(run_id, "", _time_of(run_id), "", "", "", "", "", damaged)
        with contextlib.suppress(OSError):
            label = (folder / _LABEL).read_text("utf-8", errors="replace")
            summary = replace(summary, label=label[:MOST_LABEL])
        return summary

    def _folder(self, run_id: str) -> Path:
        folder = self.folder / run_id
        if not _ID.fullmatch(run_id) or not folder.is_dir():
            raise RunStoreError(
                f"There is no run {run_id!r}.", next_step="`rondo runs` lists what there is."
            )
        return folder

    def _save(self, summary: RunSummary, body: Mapping[str, Any], files: Files) -> None:
        texts = {
            _SUMMARY: _json({"schema_version": SCHEMA_VERSION, **plain(summary)}),
            _RUN: _json({"schema_version": SCHEMA_VERSION, "run_id": summary.run_id, **body}),
            **files,
        }
        temporary = None
        try:
            make_folder(self.folder)
            self._sweep()
            temporary = Path(tempfile.mkdtemp(prefix=_WRITING, dir=self.folder))
            for name, text in texts.items():
                with (temporary / name).open("wb") as file:
                    file.write(text.encode("utf-8", "replace"))
                    file.flush()
                    os.fsync(file.fileno())
            os.chmod(temporary, 0o755)
            os.rename(temporary, self.folder / summary.run_id)
            temporary = None
            _sync_folder(self.folder)
        except OSError as error:
            raise RunStoreError(
                f"The run was not stored in {self.folder}: {_words(error)}.",
                kept="The report stays in memory.",
                next_step=f"{_advice(error)} Or export the report into another folder.",
            ) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what a crash left: runs half deleted, and those half written long ago."""
        with contextlib.suppress(OSError):
            for found in list(os.scandir(self.folder)):
                written = found.name.startswith(_WRITING)
                if written and time.time() - found.stat().st_mtime < _ABANDONED_S:
                    continue  # another process may be at it
                if written or found.name.startswith(_DELETED):
                    shutil.rmtree(found.path, ignore_errors=True)


def _label(text: str) -> str:
    """A label as it is kept: one line of at most MOST_LABEL characters."""
    return " ".join(text.split())[:MOST_LABEL]


def new_run_id() -> str:
    """The present time and six random digits; sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _time_of(run_id: str) -> str:
    """The time in a run id; empty where a folder was given a name of that form that is no time."""
    try:
        return iso_utc(datetime.strptime(run_id[:16], "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return ""


def _read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError(f"larger than {_LARGEST_BYTES >> 20} MB")
    try:
        values = json.loads(path.read_text("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema version {version!r}; this Rondo reads {SCHEMA_VERSION}")
    return values


def _object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(values[name], dict):
        raise ValueError(f"{name} is no object")
    return values[name]


def _bench_of(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The figures of a bench, None in an A/B; ValueError where its rows are none."""
    if values.get("bench") is None:
        return None
    bench = _object(values, "bench")
    for name in ("rows", CSV_ROWS):
        rows = bench.get(name, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"bench.{name} is no list of objects")
    return bench


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _sync_folder(folder: Path) -> None:
    """Make the new name last; some systems cannot open a folder, and then it is left to them."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unreadable(folder: Path, error: OSError) -> RunStoreError:
    return RunStoreError(
        f"{folder} cannot be read: {_words(error)}.", next_step="Look at the folder's permissions."
    )


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error)


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space on that disk."
    return "Look at the folder's permissions."
