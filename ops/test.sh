#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Lint, then every test (or those that the arguments name); needs no display. Fails when any of them fails.
set -euo pipefail
# shellcheck source=ops/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ensure_environment dev
ensure_compiler
ensure_qt offscreen || fail "The tests of the window need Qt."
export QT_QPA_PLATFORM=offscreen
[ $# -ne 0 ] || set -- "$ROOT/tests"

failed=""
module ruff check "$ROOT" || failed="$failed lint"
module ruff format --check "$ROOT" || failed="$failed format"
module pytest -q --durations=10 --rootdir "$ROOT" -c "$ROOT/pyproject.toml" "$@" || failed="$failed tests"
[ -z "$failed" ] || fail "Not clean:$failed."
