# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo COMMAND --help`: every option says what it does and what holds without it."""

from __future__ import annotations

import argparse

import pytest

from engine.cli import COMMANDS, _parser


def _options(command: str) -> list[argparse.Action]:
    [commands] = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return [each for each in commands.choices[command]._actions if each.dest != "help"]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_says_what_it_does_and_its_default(command: str) -> None:
    for option in _options(command):
        words = option.help or ""
        assert len(words.split()) >= 3, option.option_strings
        if not option.option_strings or option.required or option.nargs == 0:
            continue
        _, found, default = words.rpartition("(default: ")
        assert found, (option.option_strings, words)
        assert default.endswith(")")
        if option.default not in (None, "", [], "."):
            shown = option.default
            if isinstance(shown, float):
                shown = f"{shown:g}"
            assert default.startswith(str(shown)), (option.option_strings, words)


def test_a_help_text_is_no_format_string(capsys: pytest.CaptureFixture[str]) -> None:
    """A percent sign in a help text would fail when the help is asked for and not before."""
    for command in COMMANDS:
        with pytest.raises(SystemExit) as end:
            _parser().parse_args([command, "--help"])
        assert end.value.code == 0
        assert "--json" in capsys.readouterr().out
