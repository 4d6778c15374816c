# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo probe`: the cold memory-read roof of this machine."""

from __future__ import annotations

import argparse
import threading

from engine.cli import OK, print_json
from engine.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads that read (default: every core)"
    )
    parser.add_argument(
        "--megabytes",
        type=int,
        default=1024,
        metavar="N",
        help="megabytes (2^20 bytes) to read in a pass, 64 or more (default: 1024)",
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Measure and print."""
    from engine.measure.roof import probe_memory

    if arguments.megabytes < 64:
        raise UsageError(
            f"--megabytes {arguments.megabytes} is inside the caches.", next_step="Use 64 or more."
        )
    result = probe_memory(threads=arguments.threads, working_set_bytes=arguments.megabytes << 20)
    if arguments.json:
        print_json(result)
    else:
        print(
            f"read {result['read_gbps']:.1f} GB/s, copy {result['copy_gbps']:.1f} GB/s "
            f"with {result['threads']} threads over {arguments.megabytes} MB"
        )
    return OK
