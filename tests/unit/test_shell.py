# SPDX-License-Identifier: MIT OR Apache-2.0
"""ops/*.sh: syntax, and the decisions of lib.sh with stand-ins for Python, pip and apt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT

SCRIPTS = [*sorted((ROOT / "ops").glob("*.sh")), ROOT / ".ci" / "run"]
BASH = shutil.which("bash")
SYSTEM_TOOLS = (
    "awk", "bash", "cat", "cksum", "cut", "df", "dirname", "env", "flock", "grep", "head", "id", "ls", "mkdir",
    "rm", "sleep", "touch", "uname",
)  # fmt: skip

pytestmark = pytest.mark.skipif(BASH is None, reason="the scripts need bash")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the scripts in a folder with a blank, beside a pyproject.toml."""
    root = tmp_path / "a clone"
    (root / "ops").mkdir(parents=True)
    for path in (ROOT / "ops").glob("*.sh"):
        shutil.copy(path, root / "ops")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH folder with the plain system tools and nothing else: no Python, no apt, no compiler."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in SYSTEM_TOOLS:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def stand_in(folder: Path, name: str, body: str) -> Path:
    """An executable shell script."""
    path = folder / name
    path.write_text(f"#!{BASH}\n{body}\n")
    path.chmod(0o755)
    return path


def python_stand_in(folder: Path, name: str, *, fits: bool = True, venv: bool = True) -> Path:
    """A `python` that answers the questions of lib.sh and makes environments with a pip that logs."""
    return stand_in(
        folder,
        name,
        f"""case "$*" in
  *version_info*) exit {0 if fits else 1} ;;
  *ensurepip*) exit {0 if venv else 1} ;;
  "-m venv "*) mkdir -p "$3/bin"; touch "$3/pyvenv.cfg"
    cp "$(command -v "$0" || echo "$0")" "$3/bin/python"; exit ;;
  -V) echo "Python 3.11.9"; exit ;;
  "-P - torch=="*) exit "${{LACKS_TORCH:-1}}" ;;
  *"pip install"*) echo "$*" >>"${{CALLS:-/dev/null}}"
    while [ "$1" != --log ]; do shift; done
    echo "${{PIP_SAYS:-fine}}" >>"$2"; sleep "${{PIP_S:-0}}"; exit "${{PIP_EXIT:-0}}" ;;
esac
exit 0""",
    )


def run(
    clone: Path, tools: Path, script: str, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Source lib.sh in `clone` with PATH reduced to `tools`, and run `script`."""
    return subprocess.run(
        [BASH or "bash", "-c", f'set -euo pipefail; . "$LIB"; {script}'],
        env={
            "PATH": str(tools),
            "HOME": os.environ["HOME"],
            "LIB": str(clone / "ops" / "lib.sh"),
            **environ,
        },
        cwd=cwd or clone,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses(path: Path) -> None:
    assert path.read_text("utf-8").startswith("#!/usr/bin/env bash\n")
    subprocess.run([BASH or "bash", "-n", str(path)], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_is_content() -> None:
    run = subprocess.run(
        ["shellcheck", "-x", "-P", str(ROOT), *map(str, SCRIPTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("name", ["run.sh", "test.sh"])
def test_a_script_that_is_started_can_be_executed(name: str) -> None:
    assert os.access(ROOT / "ops" / name, os.X_OK)


def test_help_installs_nothing(clone: Path, tools: Path) -> None:
    done = run(clone, tools, 'bash "$(dirname "$LIB")/run.sh" --help')
    assert done.returncode == 0
    assert "RONDO_VENV" in done.stdout
    assert not (clone / ".venv").exists()


def test_the_first_python_that_fits_is_taken(clone: Path, tools: Path) -> None:
    python_stand_in(tools, "python3", fits=False)
    python_stand_in(tools, "python3.13", venv=False)
    python_stand_in(tools, "python3.12")
    python_stand_in(tools, "python3.11")
    done = run(clone, tools, "find_python")
    assert done.stdout.strip() == str(tools / "python3.12")
    own = python_stand_in(tools, "my python")
    done = run(clone, tools, "find_python", RONDO_PYTHON=str(own))
    assert done.stdout.strip() == str(own)


def test_this_python_fits(clone: Path, tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    assert run(clone, tools, "is_python python3").returncode == 0


@pytest.mark.parametrize(
    ("pythons", "said"),
    [({}, "No Python from 3.11"), ({"fits": False}, "No Python"), ({"venv": False}, "venv module")],
)
def test_no_python_is_said_with_what_to_install(
    pythons: dict[str, bool], said: str, clone: Path, tools: Path
) -> None:
    if pythons:
        python_stand_in(tools, "python3", **pythons)
    done = run(clone, tools, 'ensure_environment ""; echo went on')
    assert done.returncode == 1
    assert said in done.stderr
    assert "python3-venv" in done.stderr
    assert "went on" not in done.stdout


def test_a_missing_package_is_installed_by_root_and_named_to_others(
    clone: Path, tools: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    stand_in(tools, "apt-get", f'echo "$*" >>"{calls}"; exit "${{APT_EXIT:-0}}"')
    done = run(clone, tools, 'is_root() { false; }; system_install "No g++." g++')
    assert done.returncode == 1
    assert "sudo apt-get install -y g++" in done.stderr
    assert not calls.exists()
    done = run(clone, tools, 'is_root() { true; }; system_install "No g++." g++')
    assert done.returncode == 0
    assert "install -y" in calls.read_text()
    calls.unlink()
    done = run(clone, tools, 'is_root() { true; }; system_install "No g++." g++', APT_EXIT="100")
    assert done.returncode == 1
    assert "update" in calls.read_text()
    assert "by hand" in done.stderr


def test_an_environment_is_made_once(clone: Path, tools: Path, tmp_path: Path) -> None:
    python_stand_in(tools, "python3")
    (tools / "cp").symlink_to(shutil.which("cp") or "")
    calls, elsewhere = tmp_path / "calls", tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = 'ensure_environment ""; echo "$VENV"'
    done = run(clone, tools, script, cwd=elsewhere, CALLS=str(calls))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(clone / ".venv")
    installs = calls.read_text().splitlines()
    assert "torch==" in installs[0]
    assert installs[-1].endswith(f"--editable {clone}")
    done = run(clone, tools, script, CALLS=str(calls))
    assert (done.returncode, done.stderr) == (0, "")
    assert calls.read_text().splitlines() == installs
    # The tests' extra is not there yet; afterwards the plain start has nothing to do either.
    assert run(clone, tools, "ensure_environment dev", CALLS=str(calls)).returncode == 0
    assert calls.read_text().splitlines()[-1].endswith(f"--editable {clone}[dev]")
    after = calls.read_text()
    assert run(clone, tools, script, CALLS=str(calls)).stderr == ""
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert run(clone, tools, script, CALLS=str(calls)).returncode == 0
    assert len(calls.read_text()) > len(after)


@pytest.mark.parametrize(("lacks_torch", "said"), [("0", "Checking"), ("1", "Installing into")])
def test_an_environment_that_is_there_is_said_to_be_checked(
    lacks_torch: str, said: str, clone: Path, tools: Path, tmp_path: Path
) -> None:
    python_stand_in(tools, "python3")
    (tools / "cp").symlink_to(shutil.which("cp") or "")
    own, calls = tmp_path / "own", tmp_path / "calls"
    made = run(clone, tools, f'python3 -m venv "{own}"')
    assert made.returncode == 0, made.stderr
    done = run(
        clone,
        tools,
        'hint_about_size() { say "Some GB."; }; ensure_environment ""',
        RONDO_VENV=str(own),
        LACKS_TORCH=lacks_torch,
        CALLS=str(calls),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"rondo: {said} {own}")
    for words in ("first start only", "Some GB."):
        assert (words in done.stderr) == (lacks_torch == "1")
    assert len(calls.read_text().splitlines()) == 2


@pytest.mark.parametrize("wanted", [True, False])
def test_torch_counts_in_the_version_wanted(wanted: bool, clone: Path, tools: Path) -> None:
    venv = clone / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    [packages] = venv.glob("lib/python*/site-packages")
    told = packages / "torch-1.0.dist-info"
    told.mkdir()
    script = 'VENV="$ROOT/env"; has_torch && echo yes || echo no'
    version = run(clone, tools, 'echo "${TORCH#*==}"').stdout.strip() if wanted else "1.0"
    (told / "METADATA").write_text(f"Name: torch\nVersion: {version}+cpu\n")
    assert run(clone, tools, script).stdout == ("yes\n" if wanted else "no\n")


@pytest.mark.parametrize(
    ("pip_says", "said"),
    [
        ("NewConnectionError: [Errno -3] Temporary failure in name resolution", "no network"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: conflicting dependencies", "pip could not install"),
    ],
)
def test_a_failed_installation_says_why_and_goes_on_later(
    pip_says: str, said: str, clone: Path, tools: Path
) -> None:
    python_stand_in(tools, "python3")
    (tools / "cp").symlink_to(shutil.which("cp") or "")
    script = 'ensure_environment ""; echo went on'
    done = run(clone, tools, script, PIP_EXIT="1", PIP_SAYS=pip_says)
    assert done.returncode == 1
    assert said in done.stderr
    assert "went on" not in done.stdout
    assert not list((clone / ".venv").glob("rondo.stamp*"))
    assert run(clone, tools, script).stdout == "went on\n"


def test_two_starts_at_once_install_once(clone: Path, tools: Path, tmp_path: Path) -> None:
    python_stand_in(tools, "python3")
    (tools / "cp").symlink_to(shutil.which("cp") or "")
    calls = tmp_path / "calls"
    one = 'ensure_environment ""; echo ready'
    done = run(clone, tools, f"({one}) & ({one}) & wait", CALLS=str(calls), PIP_S="0.3")
    assert done.stdout == "ready\nready\n", done.stderr
    assert calls.read_text().count("--editable") == 1


def test_a_folder_that_is_no_environment_is_left_alone(
    clone: Path, tools: Path, tmp_path: Path
) -> None:
    python_stand_in(tools, "python3")
    mine = tmp_path / "mine"
    (mine / "bin").mkdir(parents=True)
    (mine / "bin" / "tool").write_text("kept")
    done = run(clone, tools, 'ensure_environment ""', RONDO_VENV=str(mine))
    assert done.returncode == 1
    assert "not a virtual environment" in done.stderr
    (mine / "pyvenv.cfg").touch()
    done = run(clone, tools, 'ensure_environment ""', RONDO_VENV=str(mine))
    assert done.returncode == 1
    assert "not made here" in done.stderr
    assert (mine / "bin" / "tool").read_text() == "kept"


def test_a_clone_that_cannot_be_written_gets_its_environment_elsewhere(
    clone: Path, tools: Path
) -> None:
    done = run(clone, tools, 'is_writable() { [ "$1" != "$ROOT" ]; }; environment_folder')
    folder = Path(done.stdout.strip())
    assert folder.is_relative_to(Path(os.environ["HOME"]) / ".local" / "share" / "rondo")
    done = run(clone, tools, "environment_folder", RONDO_VENV="x y")
    assert done.stdout.strip() == str(clone / "x y")


def test_a_clone_that_cannot_be_written_is_not_installed_into(
    clone: Path, tools: Path, tmp_path: Path
) -> None:
    python_stand_in(tools, "python3")
    (tools / "cp").symlink_to(shutil.which("cp") or "")
    calls = tmp_path / "calls"
    script = """is_writable() { [ "$1" != "$ROOT" ]; }
requirements() { printf '%s\\n' 'one>=1; python_version < "4"' "two[$1]"; }
ensure_environment dev; echo "$VENV" """
    done = run(clone, tools, script, CALLS=str(calls))
    assert done.returncode == 0, done.stderr
    assert calls.read_text().splitlines()[-1].endswith('one>=1; python_version < "4" two[dev]')
    assert "--editable" not in calls.read_text()
    assert sorted(path.name for path in clone.iterdir()) == ["ops", "pyproject.toml"]


def test_the_requirements_are_those_of_the_project(clone: Path, tools: Path) -> None:
    venv = clone / "env" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    done = run(clone, tools, 'VENV="$ROOT/env"; requirements dev')
    lines = done.stdout.splitlines()
    assert any(line.startswith("torch>=") for line in lines)
    assert any(line.startswith("pytest>=") for line in lines)
    assert "pytest" not in run(clone, tools, 'VENV="$ROOT/env"; requirements ""').stdout


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_a_display_is_what_the_environment_names(clone: Path, tools: Path) -> None:
    script = "has_display && echo yes || echo no"
    assert run(clone, tools, script).stdout == "no\n"
    assert run(clone, tools, script, DISPLAY="").stdout == "no\n"
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        assert run(clone, tools, script, **{variable: "x"}).stdout == "yes\n"


def test_settings_for_other_pythons_do_not_reach_in(clone: Path, tools: Path) -> None:
    script = 'echo "${PIP_USER:-} ${PYTHONHOME:-} $PYTHONPATH"'
    done = run(clone, tools, script, PIP_USER="1", PYTHONHOME="x", PYTHONPATH="y")
    assert done.stdout.strip() == str(clone)
