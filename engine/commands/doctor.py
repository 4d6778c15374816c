# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo doctor`: what this machine has, what will be used, what is missing and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import threading
from dataclasses import asdict, dataclass

from engine.cli import FAILED, OK, print_json
from engine.errors import RondoError, reason_of
from engine.hardware import free_memory_bytes, physical_core_count, total_memory_bytes
from engine.knobs import PREFIX, KnobSet
from engine.measure.machine import cpp_compiler, cpu_model
from engine.path_status import path_status
from engine.paths import data_dir, demo_model, profile_path

_GOOD, _NOTE, _BAD = "ok", "note", "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: `status` is ok, note (works without it) or missing (does not)."""

    subject: str
    status: str
    found: str
    advice: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command has no options of its own."""


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Print every finding; exit 1 when something needed is missing."""
    checks = (_python, _libraries, _memory, _native, _gpu, _display, _demo, _switches, _data)
    findings = [finding for check in checks for finding in check()]
    healthy = all(finding.status != _BAD for finding in findings)
    if arguments.json:
        print_json({"ok": healthy, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            print(f"{finding.status:8}{finding.subject}: {finding.found}")
            if finding.advice:
                print(f"        {finding.advice}")
    return OK if healthy else FAILED


def _python() -> list[Finding]:
    return [Finding("Python", _GOOD, f"{platform.python_version()} on {platform.machine()}")]


def _libraries() -> list[Finding]:
    needed = ("torch", "numpy", "safetensors", "tokenizers", "jinja2", "psutil")
    findings = []
    for name in (*needed, "PySide6-Essentials", "pyqtgraph"):
        try:
            findings.append(Finding(name, _GOOD, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            status = _BAD if name in needed else _NOTE
            why = "" if name in needed else " (only the window needs it)"
            findings.append(Finding(name, status, f"not installed{why}", "Run: bash ops/run.sh"))
    return findings


def _memory() -> list[Finding]:
    text = f"{free_memory_bytes() / 1e9:.1f} GB free of {total_memory_bytes() / 1e9:.1f} GB"
    cores = f"{physical_core_count() or os.cpu_count()} cores"
    return [Finding("memory", _GOOD, text), Finding("processor", _GOOD, cores)]


def _native() -> list[Finding]:
    from kernels.build import NativeBuildError, load_library, machine_isas

    found = cpp_compiler()
    findings = [
        Finding("compiler", _GOOD, found)
        if found
        else Finding("compiler", _NOTE, "no g++", "Install g++ (Debian: apt install g++).")
    ]
    try:
        library = load_library()
    except (NativeBuildError, OSError) as error:
        cause, _, more = str(error).partition("\n")
        advice = more or "The PyTorch operations are used instead; they are slower."
        return [*findings, Finding("native kernels", _NOTE, cause, advice)]
    built, best = f"built for {library.isa}", machine_isas()[0]
    if library.isa != best:
        advice = f"A newer C++ compiler would build them for {best}, which this processor has."
        return [*findings, Finding("native kernels", _NOTE, built, advice)]
    return [*findings, Finding("native kernels", _GOOD, built)]


def _gpu() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        return [Finding("GPU", _NOTE, "none that PyTorch can use; the CPU computes")]
    from engine.model.cuda_ready import UNPROVEN

    name = torch.cuda.get_device_name(0)
    return [Finding("GPU", _NOTE, name, UNPROVEN), _gpu_kernels()]


def _gpu_kernels() -> Finding:
    import torch

    from kernels.build_cache import NativeBuildError
    from kernels.cuda_build import find_nvcc, nvcc_version, target_of

    try:
        target = target_of(torch.cuda.get_device_capability(0))
        version = nvcc_version(find_nvcc())
    except NativeBuildError as error:
        return Finding("GPU kernels", _NOTE, "not usable", f"{error}.")
    found = f"for {target.name}, with nvcc {version[0]}.{version[1]}"
    if version < target.nvcc:
        advice = f"{target.name} needs nvcc {target.nvcc[0]}.{target.nvcc[1]} or newer."
        return Finding("GPU kernels", _NOTE, found, advice)
    return Finding("GPU kernels", _GOOD, found)


def _display() -> list[Finding]:
    if (
        platform.system() != "Linux"
        or os.environ.get("WAYLAND_DISPLAY")
        or os.environ.get("DISPLAY")
    ):
        return [Finding("display", _GOOD, "present")]
    return [Finding("display", _NOTE, "none", "The window needs one; the commands do not.")]


def _demo() -> list[Finding]:
    if (demo_model() / "config.json").is_file():
        return [Finding("demo model", _GOOD, "present")]
    advice = "Get the whole repository, or pass --model DIR."
    return [Finding("demo model", _BAD, f"not at {demo_model()}", advice)]


def _switches() -> list[Finding]:
    from engine.model.instructions import refuse_instructions

    try:
        knobs = KnobSet.resolve(profile=profile_path("serve"))
        refuse_instructions(knobs)
        return [
            Finding("switches", _GOOD, "the serve profile and the environment parse"),
            *_tile_tables(knobs),
        ]
    except RondoError as error:
        return [Finding("switches", _BAD, error.cause, error.next_step)]


def _tile_tables(knobs: KnobSet) -> list[Finding]:
    """Whether the tables of product sizes that are named were measured at this level, on this processor."""
    from engine.model.tiles import read_tiles
    from kernels.build import machine_isas

    level = knobs.choice("CPU_ISA") or machine_isas()[0]
    advice = "`rondo tune` makes a table for this machine."
    findings = []
    for name in ("SKINNY_TILES", "SKINNY_TILES_WIDE", "FP8_TILES"):
        path = knobs.path(name)
        if path is None or level == "reference":
            continue
        table = read_tiles(path, level)
        said = f"a table for {level}, entries: {len(table.sizes)}"
        if table.unfit:
            found = Finding(PREFIX + name, _NOTE, f"{table.unfit}: the defaults are used", advice)
        elif table.measured_on not in ("", cpu_model()):
            said += f"; measured on {table.measured_on}, not on this processor"
            found = Finding(PREFIX + name, _NOTE, said, advice)
        else:
            found = Finding(PREFIX + name, _GOOD, said)
        findings.append(found)
    return findings


def _data() -> list[Finding]:
    folder = data_dir()
    parent = folder
    try:
        while path_status(parent) is None:
            parent = parent.parent
    except OSError as error:
        found = f"{folder} cannot be written: {reason_of(error)}"
        return [Finding("data folder", _NOTE, found, "Set XDG_DATA_HOME.")]
    if os.access(parent, os.W_OK):
        return [Finding("data folder", _GOOD, str(folder))]
    return [Finding("data folder", _NOTE, f"{folder} cannot be written", "Set XDG_DATA_HOME.")]
