# SPDX-License-Identifier: MIT OR Apache-2.0
"""app -> engine.api, engine -> kernels, never back; only app knows Qt."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from source_tree import ROOT, Import, imports_of, package_of, python_files

QT = ("PySide6", "shiboken6", "pyqtgraph")
FORBIDDEN = {
    "app": ("kernels",),
    "engine": ("app", "ops", "tests", *QT),
    "kernels": ("app", "engine", "ops", "tests", *QT),
}
# Within the engine: whoever drafts knows the backend's protocol, not the backends, and measures nothing itself.
SPEC = "engine/spec/"
SPEC_FORBIDDEN = ("engine.measure", "engine.commands", "engine.engine", "engine.runner", "kernels")
SPEC_MODEL = ("engine.model.backend", "engine.model.block_forward")
# The entry hands commands to the command line, and `--fake` puts the scripted engine behind the same handle.
DOORS = {
    "app/__main__.py": (
        "engine.api", "engine.cli", "engine.fake", "engine.fake_script", "engine.interrupt",
    )
}  # fmt: skip
DOOR = ("engine.api",)


def violations(name: str, source: str, package: str) -> list[str]:
    """Imports of one file that cross a layer, as `file:line: module`."""
    layer = name.split("/")[0]
    found = []
    for entry in imports_of(source, package):
        crossing = any(entry.reaches(target) for target in FORBIDDEN[layer])
        if name.startswith(SPEC):
            crossing = crossing or any(entry.reaches(target) for target in SPEC_FORBIDDEN)
            crossing = crossing or (
                entry.reaches("engine.model") and not _through_the_door(entry, SPEC_MODEL)
            )
        if layer == "app" and entry.reaches("engine"):
            crossing = crossing or not _through_the_door(entry, DOORS.get(name, DOOR))
        if crossing:
            found.append(f"{name}:{entry.line}: {entry.module}")
    return found


def _through_the_door(entry: Import, doors: tuple[str, ...]) -> bool:
    if entry.module == "engine":
        return bool(entry.names) and all(f"engine.{name}" in doors for name in entry.names)
    return entry.module in doors


@pytest.mark.parametrize("layer", ["app", "engine", "kernels"])
def test_no_import_crosses_a_layer(layer: str) -> None:
    files = python_files(layer)
    assert files, f"{layer}/ has no Python files"
    found = [
        line
        for path in files
        for line in violations(
            path.relative_to(ROOT).as_posix(), path.read_text("utf-8"), package_of(path)
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("app/live/view.py", "from engine.measure import telemetry"),
        ("app/bridge.py", "import engine.cli"),
        ("app/bridge.py", "import engine"),
        ("app/bridge.py", "from engine import Engine"),
        ("app/bridge.py", "def late():\n    from kernels.registry import table"),
        ("engine/runner.py", "from app import bridge"),
        ("engine/runner.py", "try:\n    import PySide6.QtCore\nexcept ImportError:\n    x = 1"),
        ("engine/model/reference.py", "from ...app import window"),
        ("engine/spec/drafters.py", "from engine.measure.price_store import live_prices"),
        ("engine/spec/drafters.py", "from engine.model.native import NativeBackend"),
        ("engine/spec/mtp.py", "from kernels.tape import Pool"),
        ("kernels/build.py", "import importlib\nimportlib.import_module('engine.errors')"),
        ("kernels/rope/reference.py", "import engine.knobs as knobs"),
    ],
)
def test_a_crossing_import_is_seen(name: str, source: str) -> None:
    assert violations(name, source, name.rpartition("/")[0].replace("/", "."))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("app/bridge.py", "from engine.api import EngineHandle"),
        ("app/bridge.py", "from engine import api"),
        ("app/__main__.py", "from engine.cli import main"),
        ("app/chat/view.py", "from app.theme import Palette\nfrom PySide6 import QtWidgets"),
        ("engine/model/native.py", "from kernels.build import load_library\nimport torch"),
        ("engine/spec/mtp.py", "from engine.model.backend import Backend"),
    ],
)
def test_an_import_through_the_door_passes(name: str, source: str) -> None:
    assert violations(name, source, name.rpartition("/")[0].replace("/", ".")) == []


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_engine_and_kernels_import_without_qt() -> None:
    """Every module loads in a Python where Qt cannot be imported."""
    modules = sorted(_module_name(p) for p in python_files("engine", "kernels"))
    modules = [name for name in modules if not name.endswith("__main__")]
    # A peer's worker runs in a process of its own, and only where the peer is installed.
    workers = {
        "engine.measure.peers.llama_cpp": "llama_cpp",
        "engine.measure.peers.transformers": "transformers",
    }
    modules = [name for name in modules if find_spec(workers.get(name, "sys"))]
    assert modules
    script = f"""
import importlib, sys
class NoQt:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {QT!r}:
            raise ImportError(f"{{name}} is out of reach here")
sys.meta_path.insert(0, NoQt())
for name in {modules!r}:
    importlib.import_module(name)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
