# SPDX-License-Identifier: MIT OR Apache-2.0
"""The machine record: what it holds, what it must not hold."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
from pathlib import Path

import psutil
import pytest

from engine.measure import machine
from engine.measure.machine import code_record, machine_record


@pytest.fixture(scope="module")
def record() -> dict:
    return machine_record()


def test_record_names_the_machine_and_the_code(record: dict) -> None:
    assert record["memory_bytes"] == psutil.virtual_memory().total
    assert 1 <= record["cores_available"] <= record["threads"]
    assert record["python_version"] == platform.python_version()
    assert record["torch_version"]
    assert record["cpu_model"]
    assert len(record["code_sha256_12"]) == 12
    json.dumps(record, allow_nan=False)


def test_record_holds_no_name_of_host_user_or_folder(record: dict) -> None:
    text = json.dumps(record)
    private = {platform.node(), str(Path.home()), os.getcwd(), "/home/", "/root"}
    assert not [name for name in private if len(name) > 1 and name in text]
    # A user called like a word of the record would be no leak; keys are fixed, so look at the values.
    assert getpass.getuser() not in [value for value in record.values() if isinstance(value, str)]


def test_code_hash_follows_the_sources_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    source = tmp_path / "engine" / "a.py"
    source.write_text("x = 1\n", encoding="utf-8")
    before = code_record(tmp_path)
    (tmp_path / "engine" / "notes.txt").write_text("not code", encoding="utf-8")
    assert code_record(tmp_path) == before
    source.write_text("x = 2\n", encoding="utf-8")
    assert code_record(tmp_path)["code_sha256_12"] != before["code_sha256_12"]
    source.rename(source.with_name("b.py"))
    renamed = code_record(tmp_path)["code_sha256_12"]
    source.with_name("b.py").rename(source)
    assert renamed != code_record(tmp_path)["code_sha256_12"]


def test_git_state_is_known_in_a_work_tree_and_none_outside(tmp_path: Path) -> None:
    assert code_record(tmp_path)["git_commit"] is None
    assert code_record(tmp_path)["git_dirty"] is None

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "Start")
    clean = code_record(tmp_path)
    assert clean["git_commit"] == git("rev-parse", "HEAD")
    assert clean["git_dirty"] is False
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "table.json").write_text("{}", encoding="utf-8")
    assert code_record(tmp_path)["git_dirty"] is False
    for folder in ("app", "engine", "kernels"):
        (tmp_path / folder).mkdir()
        source = tmp_path / folder / "new.py"
        source.write_text("x = 1\n", encoding="utf-8")
        assert code_record(tmp_path)["git_dirty"] is True
        git("add", str(source))
        git("commit", "-q", "-m", f"Add {folder}")
        assert code_record(tmp_path)["git_dirty"] is False
        source.write_text("x = 2\n", encoding="utf-8")
        assert code_record(tmp_path)["git_dirty"] is True
        git("commit", "-q", "-a", "-m", f"Change {folder}")


def test_caches_are_read_with_their_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, (level, kind, size, shared) in enumerate(
        [("1", "Data", "48K", "0"), ("3", "Unified", "32M", "0-3,8"), ("4", "Unified", "", "0")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (
            ("level", level),
            ("type", kind),
            ("size", size),
            ("shared_cpu_list", shared),
        ):
            (folder / name).write_text(text + "\n", encoding="ascii")
    monkeypatch.setattr(machine, "_CACHE", tmp_path)
    caches = machine_record()["caches"]
    assert [(c["level"], c["bytes"], c["shared_by"]) for c in caches] == [
        (1, 48 << 10, 1),
        (3, 32 << 20, 5),
    ]


def test_limits_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_own_cgroup", lambda: tmp_path)
    assert machine_record()["cgroup_cpus"] is None
    (tmp_path / "cpu.max").write_text("150000 100000\n", encoding="ascii")
    (tmp_path / "memory.max").write_text("1073741824\n", encoding="ascii")
    record = machine_record()
    assert (record["cgroup_cpus"], record["cgroup_memory_bytes"]) == (1.5, 1 << 30)
    (tmp_path / "cpu.max").write_text("max 100000\n", encoding="ascii")
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    record = machine_record()
    assert (record["cgroup_cpus"], record["cgroup_memory_bytes"]) == (None, None)
