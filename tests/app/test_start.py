# SPDX-License-Identifier: MIT OR Apache-2.0
"""Starting the console: options, commands, no display, settings, import order."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QLocale, QSettings, Qt

from app import __main__ as start
from app.chat.sampling import SamplingButton
from app.settings import Sampling, Settings
from engine import cli

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments: str, **environ: str) -> subprocess.CompletedProcess:
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**env, **environ},
        check=False,
    )


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems always have a display"
)
def test_without_a_display_it_says_so() -> None:
    done = _run("-m", "app")
    assert done.returncode == 2
    assert "no display" in done.stderr
    assert "generate" in done.stderr


def test_the_window_comes_up_and_closes() -> None:
    done = _run("-m", "app", "--fake", "demo", "--time-to-window", QT_QPA_PLATFORM="offscreen")
    assert done.returncode == 0, done.stderr
    window, model = done.stdout.splitlines()
    assert window.startswith("window ready in ")
    assert model.startswith("model ready in ")
    assert float(window.split()[3]) < float(model.split()[3])


def test_the_window_needs_no_torch() -> None:
    done = _run(
        "-c", "import sys, app.main; print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_the_engine_needs_no_compiler_of_torch() -> None:
    done = _run(
        "-c",
        "import sys, engine.engine; print('torch._dynamo' in sys.modules, 'triton' in sys.modules)",
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_model_that_does_not_load_ends_the_measured_start_with_an_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    done = _run("-m", "app", "--time-to-window", "--model", missing, QT_QPA_PLATFORM="offscreen")
    assert done.returncode == 1, done.stderr
    assert "load failed" in done.stdout


def test_commands_are_handed_on(monkeypatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(cli, "main", lambda arguments: seen.append(arguments) or 3)
    assert start.main(["probe", "--json"]) == 3
    assert seen == [["probe", "--json"]]


def test_help_lists_options_and_commands(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        start.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--model" in said
    assert all(name in said for name in cli.COMMANDS)


def test_a_knob_without_a_value_is_refused(capsys) -> None:
    assert start.main(["--knob", "QWEN38_MTP_DEPTH"]) == 2
    assert "is not KEY=value" in capsys.readouterr().err


def test_a_profile_that_is_not_there_is_refused(capsys) -> None:
    assert start.main(["--profile", "fastest"]) == 2
    assert "neither a file nor one of serve" in capsys.readouterr().err


def test_the_window_takes_a_profile(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr("app.main.run", lambda options: asked.append(options) or 0)
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    assert start.main(["--profile", "int8", "--knob", "QWEN38_MTP_DEPTH=2"]) == 0
    assert [(options.profile, options.knobs) for options in asked] == [
        ("int8", {"QWEN38_MTP_DEPTH": "2"})
    ]


def test_an_unknown_script_is_refused(capsys) -> None:
    assert start.main(["--fake", "nonsense"]) == 2
    assert "steady" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("python", "pyside", "works"),
    [((3, 11), (6, 12), False), ((3, 11), (6, 11), True), ((3, 12), (6, 12), True)],
)
def test_the_pyside_that_aborts_is_refused(python, pyside, works) -> None:
    assert (start.pyside_trouble(python, pyside) == "") is works


def test_the_installed_pyside_keeps_its_references() -> None:
    from PySide6.QtCore import QObject

    thing, before = QObject(), sys.getrefcount(None)
    for _ in range(2000):
        thing.setObjectName("x")
    assert abs(sys.getrefcount(None) - before) < 100


def test_settings_keep_their_types(tmp_path) -> None:
    path = str(tmp_path / "kept.ini")
    first = Settings(QSettings(path, QSettings.Format.IniFormat))
    first.sampling = Sampling(temperature=0.5, seed=3, speculate=False)
    first.theme = "dark"
    for index in range(12):
        first.add_recent_model(f"models/{index}")
    first.add_recent_model("models/5")
    first.sync()
    again = Settings(QSettings(path, QSettings.Format.IniFormat))
    assert again.sampling == Sampling(temperature=0.5, seed=3, speculate=False)
    assert again.theme == "dark"
    assert again.recent_models[:2] == ["models/5", "models/11"]
    assert len(again.recent_models) == 8


@pytest.mark.parametrize("stored", ["not json", "[]", '{"max_tokens": "many", "top_k": 7}'])
def test_broken_settings_fall_back(tmp_path, stored: str) -> None:
    store = QSettings(str(tmp_path / "broken.ini"), QSettings.Format.IniFormat)
    store.setValue("sampling", stored)
    store.setValue("recent_models", stored)
    settings = Settings(store)
    assert settings.sampling.max_tokens == Sampling().max_tokens
    assert settings.recent_models == []


def test_stored_sampling_out_of_range_comes_to_the_nearest(qtbot, theme) -> None:
    huge = 10**30
    stored = Sampling(
        temperature=math.nan, top_p=7.0, top_k=-3, min_p=-1.0, seed=huge, max_tokens=huge
    )
    button = SamplingButton(theme, stored)
    qtbot.addWidget(button)
    assert button.value == Sampling(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=2**31 - 1, max_tokens=131_072
    )


@pytest.mark.parametrize("name", ["C", "de_DE", "tr_TR"])
@pytest.mark.parametrize("typed", ["0.7", "0,7"])
def test_a_decimal_is_typed_alike_in_every_locale(qtbot, theme, name: str, typed: str) -> None:
    before = QLocale()
    QLocale.setDefault(QLocale(name))
    try:
        button = SamplingButton(theme, Sampling())
        qtbot.addWidget(button)
        field = button.popover.temperature
        field.selectAll()
        qtbot.keyClicks(field, typed)
        assert field.text() == "0.7"
        qtbot.keyClick(field, Qt.Key.Key_Return)
        assert field.text() == "0.70"
        assert button.value.temperature == 0.7
    finally:
        QLocale.setDefault(before)
