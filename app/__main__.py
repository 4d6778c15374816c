# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo`: the console without a command, the headless commands with one."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import PackageNotFoundError, version

from engine.interrupt import end_on_interrupt

OK, FAILED, USAGE = 0, 1, 2
_NONE_IS_IMMORTAL = (3, 12)
_BROKEN_PYSIDE = (6, 12)


def main(argv: list[str] | None = None) -> int:
    """Open the console or run a headless command; returns the exit code."""
    if argv is None:
        end_on_interrupt()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-"):
        from engine import cli

        return cli.main(arguments)
    options = _parser().parse_args(arguments)
    from engine.cli import UsageError, check_profile, knob_changes

    try:
        knobs = knob_changes(options)
        check_profile(options)
    except UsageError as error:
        print(f"rondo: {error}", file=sys.stderr)
        return USAGE
    trouble = display_trouble(dict(os.environ), sys.platform) or pyside_trouble(
        sys.version_info[:2], _pyside_version()
    )
    if trouble:
        print(f"rondo: {trouble}", file=sys.stderr)
        return USAGE
    return _console(options, knobs)


def _console(options: argparse.Namespace, knobs: dict[str, str]) -> int:
    try:
        from app.main import Options, run
    except ImportError as error:
        print(
            f"rondo: the window cannot be opened: {error}. Install what is missing (on Debian: libegl1 "
            "libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1); the commands of `rondo --help` need no window.",
            file=sys.stderr,
        )
        return FAILED
    make_handle = None
    if options.fake:
        from engine.fake import FakeEngine
        from engine.fake_script import SCRIPTS

        if options.fake not in SCRIPTS:
            print(f"rondo: unknown script; one of {', '.join(SCRIPTS)}", file=sys.stderr)
            return USAGE

        def make_handle() -> FakeEngine:
            return FakeEngine(options.fake)

    return run(
        Options(
            model=options.model or "",
            threads=options.threads,
            knobs=knobs,
            profile=options.profile,
            time_to_window=options.time_to_window,
            make_handle=make_handle,
        )
    )


def display_trouble(environ: dict[str, str], platform: str) -> str:
    """Why no window can be shown here, or an empty string."""
    if not platform.startswith("linux"):
        return ""
    if any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")):
        return ""
    from engine.cli import COMMANDS

    return (
        "there is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set). "
        f'These commands need none: {", ".join(COMMANDS)}. Try `rondo generate --prompt "Hello"`.'
    )


def pyside_trouble(python: tuple[int, int], pyside: tuple[int, int]) -> str:
    """PySide6 6.12 counts on an immortal None; before Python 3.12 it aborts the process after some minutes."""
    if python >= _NONE_IS_IMMORTAL or pyside < _BROKEN_PYSIDE:
        return ""
    return (
        f"PySide6 {pyside[0]}.{pyside[1]} does not work with Python {python[0]}.{python[1]}. "
        "Install an older one: pip install 'PySide6-Essentials<6.12'"
    )


def _pyside_version() -> tuple[int, int]:
    try:
        major, minor = version("PySide6-Essentials").split(".")[:2]
    except PackageNotFoundError:
        return (0, 0)
    return int(major), int(minor)


def _parser() -> argparse.ArgumentParser:
    from engine.cli import COMMANDS, add_switch_options

    commands = "\n".join(f"  {name:<12}{what}" for name, what in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="rondo",
        description="Opens the console. With a command, runs headless instead.",
        epilog=f"commands (each has its own --help):\n{commands}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="DIR", help="model folder (default: the demo model)")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="worker threads of the engine (default: the number that is fastest at load)",
    )
    add_switch_options(parser)
    parser.add_argument(
        "--time-to-window",
        action="store_true",
        help="print how long the window and the model took, then close",
    )
    parser.add_argument("--fake", metavar="SCRIPT", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
