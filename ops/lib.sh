#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Shared by run.sh and test.sh: finds a Python, keeps the virtual environment and the system libraries in order.
# Sourced, never run. Everything it says goes to standard error.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
TORCH="torch==2.13.0" # installed first, so that a local CPU build is preferred to a newer CUDA one
COMPILER_PACKAGES="g++"
QT_PACKAGES="libegl1 libgl1 libopengl0 libglib2.0-0 libxkbcommon0 libdbus-1-3 libfontconfig1 fonts-dejavu-core"
SCREEN_PACKAGES="libx11-xcb1 libxkbcommon-x11-0 libxcb-cursor0 libxcb-icccm4 libxcb-image0 libxcb-keysyms1
libxcb-randr0 libxcb-render-util0 libxcb-render0 libxcb-shape0 libxcb-shm0 libxcb-sync1 libxcb-xfixes0
libxcb-xkb1 libwayland-client0 libwayland-cursor0 libwayland-egl1"

# A user's settings for other Pythons must not reach into this environment.
unset PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PYTHONPATH="$ROOT"

say() { printf 'rondo: %s\n' "$1" >&2; shift; [ $# -eq 0 ] || printf '       %s\n' "$@" >&2; }
fail() { say "$@"; exit 1; }

is_root() { [ "$(id -u)" -eq 0 ]; }
is_writable() { [ -w "$1" ]; }

# A display to open a window on. A Qt platform that was chosen by hand counts as one.
has_display() {
  [ "$(uname -s)" != Linux ] || [ -n "${WAYLAND_DISPLAY:-}${DISPLAY:-}${QT_QPA_PLATFORM:-}" ]
}

# Installs Debian packages when that is possible without asking; otherwise prints the command. Returns 1 when
# they are not there afterwards.
system_install() {
  local reason=$1; shift
  if ! command -v apt-get >/dev/null; then
    say "$reason" "Install the equivalents of these Debian packages: $*"
    return 1
  fi
  if ! is_root; then
    say "$reason" "Run: sudo apt-get install -y $*"
    return 1
  fi
  say "$reason" "Installing: $*"
  local install="apt-get install -y -qq --no-install-recommends"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086 # the command is several words
  $install "$@" >/dev/null 2>&1 && return 0
  # shellcheck disable=SC2086
  apt-get update -qq >/dev/null 2>&1 && $install "$@" >/dev/null && return 0
  say "The system packages could not be installed." "Run by hand: apt-get update && apt-get install -y $*"
  return 1
}

is_python() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}
has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Prints the first Python of 3.11 to 3.14 that can make an environment; 1: none, 2: one without venv.
search_python() {
  local name seen=1
  for name in ${RONDO_PYTHON:+"$RONDO_PYTHON"} python3 python3.13 python3.12 python3.11 python3.14; do
    is_python "$name" || continue
    if has_venv "$name"; then command -v "$name"; return 0; fi
    seen=2
  done
  return $seen
}

find_python() {
  local status=0
  search_python || status=$?
  [ $status -ne 0 ] || return 0
  local reason="No Python from 3.11 to 3.14 was found."
  [ $status -ne 2 ] || reason="Python is there, but not its venv module."
  system_install "$reason" python3 python3-venv >&2 || exit 1
  search_python || fail "This system's Python is older than 3.11." \
    "Install Python 3.11 or newer and name it: RONDO_PYTHON=/path/to/python3 bash ops/run.sh"
}

# Where the environment lives: RONDO_VENV, .venv in the clone, or the user's data folder for a read-only clone.
environment_folder() {
  if [ -n "${RONDO_VENV:-}" ]; then
    case $RONDO_VENV in /*) echo "$RONDO_VENV" ;; *) echo "$PWD/$RONDO_VENV" ;; esac
  elif is_writable "$ROOT"; then
    echo "$ROOT/.venv"
  else
    local mark; mark=$(printf %s "$ROOT" | cksum | cut -d' ' -f1)
    echo "${XDG_DATA_HOME:-$HOME/.local/share}/rondo/venv-$mark"
  fi
}

# What an installation depends on; the same text in a stamp means that nothing has to be done.
fingerprint() { echo "$("$VENV/bin/python" -V 2>&1) $(cksum <"$ROOT/pyproject.toml") $ROOT"; }
is_stamped() {
  local stamp="$VENV/rondo.stamp${1:+-$1}"
  [ -f "$stamp" ] && [ -x "$VENV/bin/python" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ]
}

# Makes VENV complete for an extra ("" or dev). Safe when interrupted (the stamp is written last) and when two
# start at once (the second waits for the first).
ensure_environment() {
  local extra=$1
  VENV=$(environment_folder)
  LOG="$VENV/install.log"
  if is_stamped "$extra"; then return; fi
  # In this order: a start at the same time makes the lock first of all.
  if [ -d "$VENV" ] && [ -n "$(ls -A "$VENV")" ] \
    && [ ! -e "$VENV/pyvenv.cfg" ] && [ ! -e "$VENV/rondo.lock" ]; then
    fail "$VENV exists and is not a virtual environment; nothing was changed there." \
      "Set RONDO_VENV to a new folder."
  fi
  mkdir -p "$VENV" || fail "$VENV cannot be made." "Set RONDO_VENV to a folder that can be written."
  (
    if command -v flock >/dev/null; then
      flock -n 9 || { say "Another start is installing; waiting for it."; flock 9; }
    fi
    is_stamped "$extra" || install_environment "$extra" 9>&-
  ) 9>>"$VENV/rondo.lock" || exit
}

install_environment() {
  local extra=$1 python free_kb hint=""
  trap 'say "Interrupted. What was installed is kept; start again to go on."; exit 130' INT TERM
  if has_torch; then
    say "Checking $VENV; what is missing there is installed."
  else
    hint=hint_about_size
    say "Installing into $VENV (first start only; some minutes)."
    free_kb=$(df -Pk "$VENV" | awk 'NR == 2 { print $4 }')
    [ "${free_kb:-9999999}" -ge 3000000 ] || say "Only $((free_kb / 1024)) MB are free there; about 3 GB are needed."
  fi
  if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    if [ -e "$VENV/pyvenv.cfg" ] && [ ! -e "$VENV/rondo.made" ]; then
      fail "The environment $VENV has no working pip; it was not made here and nothing was changed." \
        "Repair it, or set RONDO_VENV to a new folder."
    fi
    python=$(find_python) || exit 1
    # What an interrupted start left, or an environment whose Python went away.
    : >"$VENV/rondo.made"
    rm -rf "${VENV:?}/bin" "${VENV:?}/lib" "${VENV:?}/lib64" "${VENV:?}/include" "$VENV/pyvenv.cfg"
    "$python" -m venv "$VENV" 2>"$LOG" \
      || fail "The virtual environment could not be made with $python." "Details: $LOG"
  fi
  rm -f "$LOG" "$VENV"/rondo.stamp* "$VENV"/rondo.qt-* # PySide6 may change, and with it what it needs
  # Older ones cannot install an editable project by pyproject.toml alone; a failure shows below.
  "$VENV/bin/python" -c 'import sys, pip; sys.exit(int(pip.__version__.split(".")[0]) < 22)' \
    || env -u PYTHONPATH "$VENV/bin/python" -m pip install --quiet --no-input --upgrade pip >&2 || true
  $hint
  # shellcheck disable=SC2086 # no index means no option
  pip_install ${RONDO_TORCH_INDEX:+--index-url "$RONDO_TORCH_INDEX"} "$TORCH"
  if is_writable "$ROOT"; then
    pip_install --editable "$ROOT${extra:+[$extra]}"
  else
    say "The clone cannot be written: its dependencies are installed, the code runs from where it is."
    local -a needed=()
    while IFS= read -r line; do needed+=("$line"); done < <(requirements "$extra")
    pip_install "${needed[@]}"
  fi
  fingerprint >"$VENV/rondo.stamp"
  [ -z "$extra" ] || fingerprint >"$VENV/rondo.stamp-$extra"
  trap - INT TERM
}

# Whether the environment holds PyTorch in the version wanted, any build of it: the rest takes little.
has_torch() {
  "$VENV/bin/python" -P - "$TORCH" >/dev/null 2>&1 <<'PYTHON'
import sys
from importlib.metadata import version

sys.exit(version("torch").partition("+")[0] != sys.argv[1].partition("==")[2])
PYTHON
}

# The requirement lines of pyproject.toml, those of an extra included.
requirements() {
  "$VENV/bin/python" - "$ROOT/pyproject.toml" "$1" <<'PYTHON'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"].get(sys.argv[2], [])
print("\n".join([*project["dependencies"], *extras]))
PYTHON
}

hint_about_size() {
  [ "$(uname -s)" = Linux ] && [ -z "${RONDO_TORCH_INDEX:-}" ] || return 0
  [ ! -e /proc/driver/nvidia ] && ! command -v nvidia-smi >/dev/null || return 0
  say "No NVIDIA GPU was found. Should pip download CUDA libraries now (some GB), they do no harm." \
    "To spare them: stop, set RONDO_TORCH_INDEX to PyTorch's index of CPU builds, start again."
}

pip_install() {
  local quiet=--quiet
  [ ! -t 2 ] || quiet=""
  # The clone on PYTHONPATH would look like an installed project to pip.
  # shellcheck disable=SC2086 # an empty option is none
  env -u PYTHONPATH "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input $quiet \
    --log "$LOG" "$@" >&2 && return
  local cause="pip could not install: $*"
  if grep -qE 'No space left on device|Errno 28' "$LOG"; then
    fail "The disk is full." "Free about 3 GB on the disk of $VENV, or set RONDO_VENV; then start again."
  elif grep -qE 'NameResolution|name resolution|Failed to establish a new connection|Network is unreachable|ProxyError|[Tt]imed out|SSLError' "$LOG"; then
    fail "The package index cannot be reached: no network, or a proxy that pip does not know." \
      "What was installed is kept. Connect and start again. Details: $LOG"
  fi
  fail "$cause" "What was installed is kept. Details: $LOG"
}

# The native kernels need a compiler; without one the readable operations run, so its lack stops nothing.
ensure_compiler() {
  # shellcheck disable=SC2086 # a list of package names
  command -v g++ >/dev/null \
    || system_install "No C++ compiler was found; without it the slower PyTorch operations run." \
      $COMPILER_PACKAGES || true
}

# Sees to the libraries that Qt loads; level is offscreen or screen. Returns 1 when Qt cannot be used.
ensure_qt() {
  local level=$1 stamp="$VENV/rondo.qt-$1" problem
  if [ -f "$stamp" ]; then return 0; fi
  if ! problem=$(qt_problem "$level"); then
    local packages=$QT_PACKAGES
    [ "$level" = offscreen ] || packages="$QT_PACKAGES $SCREEN_PACKAGES"
    # shellcheck disable=SC2086
    system_install "Qt lacks a system library: $problem" $packages || true
    problem=$(qt_problem "$level") || { say "Qt cannot be used: $problem"; return 1; }
  fi
  : >"$stamp"
}

# Prints what keeps Qt from loading and returns 1; silent otherwise.
qt_problem() { "$VENV/bin/python" -P "$ROOT/ops/qt_check.py" "$1"; }

# Runs a module of this repository, whatever the current folder holds.
module() { "$VENV/bin/python" -P -m "$@"; }
