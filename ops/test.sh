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
run_tests() { module pytest -q --durations=10 --rootdir "$ROOT" -c "$ROOT/pyproject.toml" "$@"; }

failed=""
module ruff check "$ROOT" || failed="$failed lint"
module ruff format --check "$ROOT" || failed="$failed format"
if [ $# -ne 0 ]; then
  run_tests "$@" || failed="$failed tests"
else
  # Two parts of about one length, side by side; native code is built once, by whichever needs it first.
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  export RONDO_TEST_CACHE=${RONDO_TEST_CACHE:-$work/cache}
  first=("$ROOT/tests/kernels" "$ROOT/tests/unit")
  run_tests "${first[@]}" >"$work/first.txt" 2>&1 &
  beside=$!
  run_tests "$ROOT/tests" "${first[@]/#/--ignore=}" || failed="$failed tests"
  wait "$beside" || failed="$failed kernels or unit"
  printf '\ntests/kernels and tests/unit:\n' && cat "$work/first.txt"
fi
[ -z "$failed" ] || fail "Not clean:$failed."
