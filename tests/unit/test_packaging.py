# SPDX-License-Identifier: MIT OR Apache-2.0
"""What an installation gets: the console script, every package, every file the packages read."""

from __future__ import annotations

import fnmatch
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import ROOT, imports_of, python_files, repository_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = ("app", "engine", "kernels")
# Where the distribution's name is not the module's.
MODULES = {"PySide6-Essentials": "PySide6"}


def name_of(requirement: str) -> str:
    """Distribution name of a requirement line."""
    return re.split(r"[<>=!~; \[]", requirement, maxsplit=1)[0]


def package_files() -> list[Path]:
    """Repository paths of the files inside the packages."""
    paths = (path.relative_to(ROOT) for path in repository_files())
    return [path for path in paths if path.parts[0] in PACKAGES]


def test_the_console_script_can_be_imported() -> None:
    (entry,) = PROJECT["project"]["scripts"].items()
    assert entry[0] == "rondo"
    module, _, function = entry[1].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_every_package_is_found() -> None:
    find = PROJECT["tool"]["setuptools"]["packages"]["find"]
    for package in PACKAGES:
        assert any(fnmatch.fnmatch(package, pattern) for pattern in find["include"])
    folders = {path.parent for path in package_files() if path.suffix == ".py"}
    missing = [str(f) for f in sorted(folders) if not (ROOT / f / "__init__.py").is_file()]
    assert not missing


def test_files_that_are_not_python_are_package_data() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    left_out = [
        str(path)
        for path in package_files()
        if path.suffix not in (".py", ".md")
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)
    ]
    assert not left_out


def test_package_data_lies_inside_a_package() -> None:
    """Setuptools looks for package data in folders with Python files of their own."""
    outside = [
        str(path)
        for path in package_files()
        if path.suffix != ".py"
        if not (ROOT / path.parent / "__init__.py").is_file()
    ]
    assert not outside


def test_every_import_is_a_declared_dependency() -> None:
    declared = {name_of(line) for line in PROJECT["project"]["dependencies"]}
    optional = {
        name_of(line)
        for lines in PROJECT["project"]["optional-dependencies"].values()
        for line in lines
    }
    modules = {MODULES.get(name, name.replace("-", "_")).lower() for name in declared | optional}
    modules |= {"pynvml" if "nvidia-ml-py" in optional else "", "llama_cpp"}
    known = modules | set(sys.stdlib_module_names) | {*PACKAGES, "ops"}
    strange = [
        f"{path.relative_to(ROOT)}:{entry.line}: {entry.module}"
        for path in python_files(*PACKAGES)
        for entry in imports_of(path.read_text("utf-8"), "engine")
        if entry.module.split(".")[0].lower() not in {name.lower() for name in known}
    ]
    assert not strange


def test_the_licence_files_are_there() -> None:
    for name in PROJECT["project"]["license-files"]:
        assert (ROOT / name).is_file()


@pytest.mark.parametrize("marker", ["torch", "triton"])
def test_torch_and_triton_keep_their_range(marker: str) -> None:
    lines = PROJECT["project"]["dependencies"]
    (line,) = (line for line in lines if name_of(line) == marker)
    assert {"torch": ">=2.13,<2.14", "triton": ">=3.6"}[marker] in line


@pytest.mark.parametrize("name", ["README.md", "ops/guides/operating.md"])
def test_every_link_of_a_page_leads_to_a_file(name: str) -> None:
    page = ROOT / name
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
