# SPDX-License-Identifier: MIT OR Apache-2.0
"""The files of this repository, as the tests of its shape see them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__", ".ruff_cache", ".pytest_cache"}


def repository_files() -> list[Path]:
    """Files that git tracks or would track; every file, caches aside, where there is no git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        return [
            path
            for path in ROOT.rglob("*")
            if path.is_file() and not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts)
        ]
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def python_files(*folders: str) -> list[Path]:
    """Python files below the named top folders."""
    return [
        path
        for path in repository_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders
    ]


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, wherever in the file it stands; `from a import b` counts as a and a.b."""

    module: str
    line: int
    names: tuple[str, ...] = ()

    def reaches(self, package: str) -> bool:
        """Whether this import loads `package` or something inside it."""
        targets = (self.module, *(f"{self.module}.{name}" for name in self.names))
        return any(target == package or target.startswith(package + ".") for target in targets)


def imports_of(source: str, package: str = "") -> Iterator[Import]:
    """Every import of a module's source; `package` resolves relative ones.

    `importlib.import_module` and `__import__` with a literal name count.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base]) if base else ".".join(parents)
            yield Import(base, node.lineno, tuple(alias.name for alias in node.names))
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            first = node.args[0]
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield Import(str(first.value), node.lineno)


def package_of(path: Path) -> str:
    """Dotted name of the package that holds `path`."""
    return ".".join(path.relative_to(ROOT).parent.parts)
