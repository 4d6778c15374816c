# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every source file names its licence, and no file names a machine or a package registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from source_tree import ROOT, repository_files

LICENCE = "SPDX-License-Identifier: MIT OR Apache-2.0"
COMMENT = {
    ".py": "#", ".sh": "#", ".cpp": "//", ".h": "//", ".hpp": "//", ".cu": "//", ".cuh": "//",
}  # fmt: skip
# Written in parts, so that this file does not contain what it looks for.
REGISTRIES = ("pypi." "org", "python" "hosted.org", "download." "pytorch.org", "npm" "js.org",
              "deb." "debian.org", "anaconda." "org", "conda." "io")  # fmt: skip
MACHINE_PATH = re.compile(r"(?<![\w.:/$}~<-])/(?:work|tmp|root|home|Users)/[\w.-]")
TEXT_LIMIT_BYTES = 4 << 20


def first_fault(name: str, text: str) -> str:
    """What is wrong with the licence line of a source file; empty when nothing is."""
    lines = text.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    mark = COMMENT.get(Path(name).suffix, "#")
    if not lines or lines[0] != f"{mark} {LICENCE}":
        return f"{name}: the first line (after a shebang) must be '{mark} {LICENCE}'"
    return ""


def is_source(path: Path) -> bool:
    """Whether a file carries a licence line: by its suffix, or because it starts with a shebang."""
    if path.suffix in COMMENT:
        return True
    with path.open("rb") as file:
        return not path.suffix and file.read(2) == b"#!"


def text_files() -> list[tuple[str, str]]:
    """(name, text) of the repository's text files."""
    found = []
    for path in repository_files():
        if path.stat().st_size > TEXT_LIMIT_BYTES:
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            found.append((path.relative_to(ROOT).as_posix(), data.decode("utf-8", "replace")))
    return found


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    """`file:line: text` wherever a text file matches."""
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in text_files()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_every_source_file_names_its_licence() -> None:
    sources = [path for path in repository_files() if is_source(path)]
    assert len(sources) > 20
    faults = [
        fault
        for path in sources
        if (fault := first_fault(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", ""),
        ("a.py", '"""No licence."""\n'),
        ("a.py", f"\n# {LICENCE}\n"),
        ("a.cpp", f"# {LICENCE}\n"),
        ("run", "#!/usr/bin/env bash\nset -e\n"),
    ],
)
def test_a_missing_licence_line_is_seen(name: str, text: str) -> None:
    assert first_fault(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.py", f"# {LICENCE}\n"), ("a.cu", f"// {LICENCE}\n"), ("run", f"#!/bin/sh\n# {LICENCE}\n")],
)
def test_a_licence_line_is_accepted(name: str, text: str) -> None:
    assert not first_fault(name, text)


def test_no_file_names_a_package_registry() -> None:
    found = lines_with(re.compile("|".join(re.escape(host) for host in REGISTRIES)))
    assert not found, "\n".join(found)


def test_no_file_names_a_path_of_one_machine() -> None:
    found = lines_with(MACHINE_PATH)
    assert not found, "\n".join(found)


def test_a_machine_path_is_seen() -> None:
    for prefix in ("work", "tmp", "root", "home"):
        assert MACHINE_PATH.search(f"open('/{prefix}/x')")
    assert not MACHINE_PATH.search("https://host.example/home/x")


def test_both_licences_are_there_in_full() -> None:
    mit, apache = ((ROOT / f"LICENSE-{n}").read_text("utf-8") for n in ("MIT", "APACHE"))
    assert "WITHOUT WARRANTY OF ANY KIND" in mit
    assert "END OF TERMS AND CONDITIONS" in apache
    assert all(f"   {number}. " in apache for number in range(1, 10))
    notice = (ROOT / "LICENSE").read_text("utf-8")
    assert LICENCE in notice
    assert "LICENSE-MIT" in notice
    assert "LICENSE-APACHE" in notice
