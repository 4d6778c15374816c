# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo check`: every kernel against its readable twin on this machine, row invariance included."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from dataclasses import asdict

from engine.cli import GATE, OK, print_json
from engine.commands.shared import tell
from engine.errors import Cancelled, RondoError, UsageError
from kernels.checks import CheckResult


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--isa",
        action="append",
        metavar="NAME",
        help="check this instruction set; may be repeated (default: all this machine has)",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="OPERATION",
        help="check this operation; may be repeated (default: all)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="whole number that draws the inputs (default: 0)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="whose kernels are checked (default: cpu)",
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Run the checks and print one line each; exit 3 when one fails."""
    names = tuple(arguments.only) if arguments.only else None
    checks = _cuda_results if arguments.device == "cuda" else _cpu_results
    results = []
    for result in checks(arguments, names):
        results.append(result)
        if cancel.is_set():
            raise Cancelled
    failed = sum(not result.ok for result in results)
    if arguments.json:
        print_json({"checks": [asdict(result) for result in results], "failed": failed})
    else:
        _print_table(results)
        print(f"{len(results) - failed} of {len(results)} checks hold")
    return GATE if failed else OK


def _cpu_results(
    arguments: argparse.Namespace, names: tuple[str, ...] | None
) -> Iterator[CheckResult]:
    from kernels.build import NativeBuildError, load_library, machine_isas
    from kernels.registry import operation, run_checks

    try:
        for name in names or ():
            operation(name)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    unknown = set(arguments.isa or ()) - set(machine_isas())
    if unknown:
        raise UsageError(
            f"This machine has no level {', '.join(sorted(unknown))}.",
            next_step=f"Use one of {', '.join(machine_isas())}.",
        )
    for isa in arguments.isa or machine_isas():
        try:
            library = load_library(isa, on_progress=tell)
        except (NativeBuildError, OSError) as error:
            raise RondoError(
                str(error), next_step="`rondo doctor` says what is missing."
            ) from error
        yield from run_checks(library, names=names, seed=arguments.seed)


def _cuda_results(
    arguments: argparse.Namespace, names: tuple[str, ...] | None
) -> Iterator[CheckResult]:
    from kernels.build_cache import NativeBuildError
    from kernels.cuda_build import CudaError, CudaLibrary
    from kernels.cuda_registry import run_cuda_checks

    if arguments.isa:
        raise UsageError("--isa names instruction sets of the processor, not of a GPU.")
    try:
        library = CudaLibrary(on_progress=tell)
    except (NativeBuildError, CudaError, OSError) as error:
        raise RondoError(
            f"The GPU kernels cannot be used: {error}.",
            next_step="`rondo doctor` says what is missing; --device cpu checks the native kernels.",
        ) from error
    try:
        yield from run_cuda_checks(library, names=names, seed=arguments.seed)
    except ValueError as error:
        raise UsageError(f"{error}.") from None


def _print_table(results: list[CheckResult]) -> None:
    """One line a kernel and level; failures in full."""
    groups: dict[tuple[str, str], list[CheckResult]] = {}
    for result in results:
        groups.setdefault((result.implementation, result.kernel), []).append(result)
    for (implementation, kernel), group in groups.items():
        failed = sum(not result.ok for result in group)
        status = "FAIL" if failed else "ok"
        compared = [result.row_invariant for result in group if result.row_invariant is not None]
        rows = "rows equal to the bit" if compared and all(compared) else ""
        print(
            f"{status:5}{implementation:16}{kernel:20}{len(group) - failed:4} of {len(group)} checks hold  "
            f"{rows}"
        )
    for result in results:
        if not result.ok:
            print(f"FAIL {result.implementation} {result.kernel}: {result.reason}")
