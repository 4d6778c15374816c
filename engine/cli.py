# SPDX-License-Identifier: MIT OR Apache-2.0
"""The headless commands: parsing, exit codes and error messages.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a gate did not hold, 130 interrupted. With --json stdout carries one
JSON object and everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import errno
import functools
import importlib
import io
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from engine.allocation import memory_short
from engine.errors import Cancelled, RondoError, UsageError
from engine.interrupt import INTERRUPTED, ending_at_once
from engine.numbers import SPACE
from engine.paths import demo_model, profile_path

if TYPE_CHECKING:
    from engine.engine import Engine

OK, FAILED, USAGE, GATE = 0, 1, 2, 3
_KEPT = "What was stored before is as it was."
_STOPPED = "interrupted; what was stored before is as it was."
_ENDED_EARLY = "interrupted; what was done until then stands."
_HOLD_NOTHING = ("probe", "doctor", "knobs")  # and store nothing, so they need not end in order
_PLAIN = "plain-space-"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMMANDS = {
    "generate": "one answer on the terminal",
    "ab": "two switch settings in alternating pairs, in one process, with a verdict",
    "runs": "the stored A/B and bench runs: list, show, diff, export, label, delete, rerun",
    "bench": "whole-round timings on a named shape, peers and the machine's roof in the same run",
    "probe": "cold memory-read rate of this machine",
    "doctor": "what this machine has, what will be used, what is missing",
    "check": "every kernel against its readable twin, row invariance included",
    "agree": "speculative against plain greedy decoding, token for token",
    "quantize": "an NVFP4 copy of a BF16 checkpoint, with its loss",
    "corpus": "text files as a corpus for the lookup drafter",
    "tune": "a table of product sizes that are fastest on this machine",
    "knobs": "the QWEN38_* switches, their values and where each comes from",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _replace_closed()
    _keep_readable()
    parser = _parser()
    arguments = parser.parse_args(argv)
    cancel = threading.Event()
    previous = signal.signal(signal.SIGINT, lambda *_: _interrupt(cancel))
    try:
        with ending_at_once(_STOPPED) if arguments.holds_nothing else contextlib.nullcontext():
            code = arguments.run(arguments, cancel)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`rondo generate | head`), perhaps by the same Ctrl+C.
        _drop_output()
        code = FAILED
    except (Exception, KeyboardInterrupt) as error:
        if cancel.is_set() or isinstance(error, KeyboardInterrupt):
            # A module that is read, or a compiler that was interrupted too, fails in ways of its own.
            return _interrupted(str(error) if isinstance(error, Cancelled) else _STOPPED)
        return _failed(error, arguments)
    finally:
        signal.signal(signal.SIGINT, previous)
    return _interrupted(_ENDED_EARLY) if cancel.is_set() else code


def _replace_closed() -> None:
    """Where the caller closed a stream (`rondo knobs >&-`), read nothing and write to nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _keep_readable() -> None:
    """Where an encoding lacks the space that parts digits, write a plain one."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.errors.startswith(_PLAIN):
            name = _PLAIN + stream.errors
            codecs.register_error(name, functools.partial(_plain_space, stream.errors))
            stream.reconfigure(errors=name)


def _plain_space(otherwise: str, error: UnicodeError) -> tuple[str | bytes, int]:
    """Handle an error of encoding; what is no such space goes to the handler named `otherwise`."""
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] == SPACE:
        return " ", error.start + 1
    return codecs.lookup_error(otherwise)(error)


def _failed(error: Exception, arguments: argparse.Namespace) -> int:
    """Tell an error and return its exit code; raises one that is no trouble of the operator's."""
    known: Exception | None = error
    if isinstance(error, MemoryError | RuntimeError | OSError):
        known = memory_short(error, f"`{arguments.prog}`", kept=_KEPT) or _unwritten(error)
    if not isinstance(known, RondoError):
        raise error
    _tell(known, as_json=arguments.json)
    return USAGE if isinstance(known, UsageError) else FAILED


def _interrupted(sentence: str) -> int:
    """Say how an interrupted command ended; its streams may have lost their readers by the same Ctrl+C."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    with contextlib.suppress(BrokenPipeError):
        print(f"rondo: {sentence}", file=sys.stderr)
    return INTERRUPTED


def _drop_output() -> None:
    """The interpreter must not try again to flush what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritten(error: Exception) -> RondoError | None:
    """What to say where the output has no room; None for any other error."""
    # A file has a name; what the standard output raises has none.
    if not isinstance(error, OSError) or error.filename or error.errno not in _NO_ROOM:
        return None
    _drop_output()
    return RondoError(
        f"The output could not be written: {error.strerror}.",
        kept=_KEPT,
        next_step="Make room, or send the output elsewhere.",
    )


def print_json(values: dict[str, object]) -> None:
    """The one JSON object of a command, with characters outside UTF-8 replaced."""
    text = json.dumps(values, ensure_ascii=False, indent=2, default=str)
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
    sys.stdout.flush()


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that opens a model."""
    parser.add_argument("--model", metavar="DIR", help="model folder (default: the demo model)")
    add_switch_options(parser)
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="worker threads (default: the number that is fastest at load)",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where the model computes; auto takes the GPU if it can (default: auto)",
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens to make room for, prompt and answer together (default: 32768, or the model's limit)",
    )


def add_label_option(parser: argparse.ArgumentParser) -> None:
    """The option that names a run in the list of stored ones."""
    parser.add_argument(
        "--label", default="", metavar="T", help="words shown in the list of runs (default: none)"
    )


def add_switch_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where the switches' values come from."""
    parser.add_argument(
        "--profile",
        default="serve",
        metavar="NAME",
        help="values of the switches: serve, balanced, fp8, int8, or a file of KEY=value lines"
        " (default: serve)",
    )
    parser.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="QWEN38_X=V",
        help="give one switch another value; may be repeated (default: as the profile has it)",
    )


def knob_changes(arguments: argparse.Namespace) -> dict[str, str]:
    """The --knob options as a mapping; UsageError when one is not KEY=value."""
    return dict(setting(text, "--knob") for text in arguments.knob)


def check_profile(arguments: argparse.Namespace) -> None:
    """UsageError where --profile names neither a set of switches nor a file."""
    profile_path(arguments.profile)


def setting(text: str, option: str) -> tuple[str, str]:
    """QWEN38_X=V as (name, value); UsageError, which names the option, where it is no KEY=value."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{option} {text!r} is not KEY=value.", next_step="Write QWEN38_X=V.")
    return name.strip(), value.strip()


def open_model(arguments: argparse.Namespace, cancel: threading.Event, **options: Any) -> Engine:
    """The model that the options of `add_model_options` name, with its notices told on stderr.

    `options` are further ones of `Engine.open`, whose errors it raises.
    """
    from engine.engine import Engine

    engine = Engine.open(
        arguments.model or demo_model(),
        profile=arguments.profile,
        knobs=knob_changes(arguments),
        device=arguments.device,
        threads=arguments.threads,
        context_tokens=arguments.context,
        cancel=cancel,
        **options,
    )
    for notice in engine.card.notices:
        print(f"note: {notice}", file=sys.stderr)
    return engine


def _interrupt(cancel: threading.Event) -> None:
    """The first Ctrl+C asks the command to end; a second one ends what does not look, such as a read."""
    if cancel.is_set():
        raise KeyboardInterrupt
    cancel.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rondo", description="Rondo without its window. `rondo` alone opens the console."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        command.add_argument(
            "--json", action="store_true", help="print one JSON object in place of text"
        )
        module = importlib.import_module(f"engine.commands.{name}")
        module.add_options(command)
        command.set_defaults(run=module.run, prog=command.prog, holds_nothing=name in _HOLD_NOTHING)
    return parser


def _tell(error: RondoError, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "error": {
                    "title": error.title,
                    "cause": error.cause,
                    "kept": error.kept,
                    "next_step": error.next_step,
                }
            }
        )
    lines = [f"rondo: {error.cause}", error.kept, error.next_step]
    print("\n       ".join(line for line in lines if line), file=sys.stderr)
