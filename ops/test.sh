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
  # The kernels' tests, which compile for half of their time, run beside the others; native code is built once.
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  export RONDO_TEST_CACHE=${RONDO_TEST_CACHE:-$work/cache}
  run_tests "$ROOT/tests/kernels" >"$work/kernels.txt" 2>&1 &
  kernels=$!
  run_tests "$ROOT/tests" --ignore "$ROOT/tests/kernels" || failed="$failed tests"
  wait "$kernels" || failed="$failed kernels"
  printf '\ntests/kernels:\n' && cat "$work/kernels.txt"
fi
[ -z "$failed" ] || fail "Not clean:$failed."
