#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs what is missing, then opens the console; on a machine without a display it runs a demonstration.
set -euo pipefail
# shellcheck source=ops/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
bash ops/run.sh [--model DIR] [--threads N] [--knob QWEN38_X=V]   opens the console
bash ops/run.sh --headless [--model DIR] [--out DIR]              a demonstration without a display
bash ops/run.sh COMMAND ...                                       generate, probe, doctor, knobs; --help lists more

Environment:
  RONDO_VENV         folder of the virtual environment (default: .venv in the clone)
  RONDO_PYTHON       Python that makes it (default: the first of 3.11 to 3.14)
  RONDO_TORCH_INDEX  package index to take PyTorch from
TEXT
}

main() {
  case ${1:-} in
    -h | --help) usage; return ;;
    "" | -*) ;;
    *) ensure_environment ""; ensure_compiler; exec "$VENV/bin/python" -P -m engine "$@" ;;
  esac

  ensure_environment ""
  ensure_compiler
  if [ "${1:-}" = --headless ]; then shift; demonstrate "$@"; fi
  if ! has_display; then
    say "There is no display here: this is the demonstration without a window."
    demonstrate "$@"
  fi
  ensure_qt screen || fail "The window cannot open." "Without a window: bash ops/run.sh --headless"
  if [ "$(uname -s)" = Linux ] && [ -z "${QT_QPA_PLATFORM:-}" ] && ! qt_problem display >/dev/null 2>&1; then
    say "The display ${WAYLAND_DISPLAY:-${DISPLAY:-}} cannot be opened: this is the demonstration without a window."
    demonstrate "$@"
  fi
  exec "$VENV/bin/python" -P -m app "$@"
}

demonstrate() {
  ensure_qt offscreen || true
  exec "$VENV/bin/python" -P -m ops.demo_run "$@"
}

main "$@"
