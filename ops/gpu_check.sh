#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Everything that only a GPU can show, in one run of less than ten minutes: builds, checks, agreement, read rates,
# rounds. Needs a Python with PyTorch and nvcc; installs nothing. Writes one JSON or log file a stage to OUT
# (default: a new folder), all their figures to summary.json there, and ends with a short table. A stage that this
# machine lacks something for says what.
#
#   PYTHON=python3 OUT=folder bash ops/gpu_check.sh [--sweep]
#
# Exit code: 0 when no stage failed, 1 when one did or when there is no GPU or no PyTorch.
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$(mktemp -d -t rondo-gpu-check.XXXXXX)}
export PYTHONPATH=$ROOT PYTHONUNBUFFERED=1
# Set by hand: what a tool detects lacks the `a`, and with it the FP4 conversions.
export TORCH_CUDA_ARCH_LIST="9.0a;12.0a;12.1a"
BUDGET_S=570
SWEEP=""
case ${1:-} in
  "") ;;
  --sweep) SWEEP=--sweep ;;
  *) sed -n '3,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac

say() { printf 'gpu_check: %s\n' "$*" >&2; }
PYTHON=$(type -P "$PYTHON" || { say "there is no Python called $PYTHON; set PYTHON to one with PyTorch"; exit 1; }) || exit 1
# Both are meant from where the caller stands.
case $PYTHON in /*) ;; *) PYTHON=$PWD/$PYTHON ;; esac
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd -P) || exit 1
cd "$ROOT" || exit 1
: >"$OUT/stages.tsv" || exit 1

record() { printf '%s\t%s\t%s\t%s\n' "$@" >>"$OUT/stages.tsv"; }

# stage NAME LIMIT_S COMMAND...: standard output to NAME.json, the rest to NAME.log. Exit code 2 means that the
# command does not know what it is asked (that part is not there yet), 124 or 137 that it took too long. The limits
# add up to more than BUDGET_S: a stage gets what is left, so those that matter most come first.
stage() {
  local name=$1 limit=$2 begin=$SECONDS code=0 note status=ok lacking
  shift 2
  if [ $((BUDGET_S - SECONDS)) -lt "$limit" ]; then limit=$((BUDGET_S - SECONDS)); fi
  if [ "$limit" -lt 10 ]; then
    record "$name" "not run" 0 "the time of the whole check is used up"
    return
  fi
  say "$name"
  timeout -k 5 "$limit" "$@" >"$OUT/$name.json" 2>"$OUT/$name.log" || code=$?
  note=$(grep -m 1 -E '^(rondo|not available): ' "$OUT/$name.log" || grep -v '^ *$' "$OUT/$name.log" | tail -n 1)
  note=$(printf %s "${note#*: }" | tr '\t' ' ' | cut -c1-150)
  case $code in
    0) note="" ;;
    2) status="not available" ;;
    124 | 137) status=FAIL; note="longer than $limit s" ;;
    *)
      status=FAIL
      lacking=$(sed -nE "s/^ModuleNotFoundError: No module named '([A-Za-z0-9_]+).*/\\1/p" "$OUT/$name.log" | tail -n 1)
      if grep -q '^not available: ' "$OUT/$name.log"; then
        status="not available"
      elif [ -n "$lacking" ] && [ ! -e "$ROOT/$lacking" ]; then
        status="not available" note="this Python has no $lacking"
      fi
      ;;
  esac
  [ "$status" != "not available" ] || note="why: $note"
  record "$name" "$status" "$((SECONDS - begin))" "$note"
}

environment() {
  "$PYTHON" - <<'PYTHON'
import importlib, json, platform, subprocess, sys
import torch
from kernels.build_cache import NativeBuildError
from kernels.cuda_build import find_nvcc

def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""

values = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
for name in ("triton", "numpy", "psutil", "safetensors", "tokenizers", "jinja2"):
    try:
        values[name] = getattr(importlib.import_module(name), "__version__", "there")
    except ImportError:
        values[name] = None
try:
    values["nvcc"] = [find_nvcc(), *said(find_nvcc(), "--version").splitlines()[-2:]]
except NativeBuildError as error:
    values["nvcc"] = str(error)
values["smi"] = said("nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total", "--format=csv,noheader")
if torch.cuda.is_available():
    own = torch.cuda.get_device_properties(0)
    values["gpu"] = {"name": own.name, "capability": [own.major, own.minor], "l2_bytes": own.L2_cache_size,
                     "multiprocessors": own.multi_processor_count, "memory_bytes": own.total_memory}
print(json.dumps(values, indent=1))
if not torch.cuda.is_available():
    why = "PyTorch sees no GPU" if torch.version.cuda else f"PyTorch {torch.__version__} is made without CUDA"
    print(why, file=sys.stderr)
    sys.exit(1)
PYTHON
}

build() {
  "$PYTHON" - <<'PYTHON'
import json, sys, time
from kernels.cubin_gate import MANIFESTS, read_manifest
from kernels.cuda_build import CudaLibrary

library = CudaLibrary(on_progress=lambda line: print(line, file=sys.stderr))
path = MANIFESTS / f"{library.target.name}.toml"
built = {}
for module in read_manifest(path if path.exists() else MANIFESTS / "sm_90a.toml").modules:
    if module.source.endswith(".cu"):
        begin = time.monotonic()
        for name in module.kernels:
            library.function(module.source, name)
        built[module.source] = {"kernels": len(module.kernels), "s": round(time.monotonic() - begin, 2)}
print(json.dumps({"target": library.target.name, "modules": built}, indent=1))
PYTHON
}
# The products of a small shape under a tool of compute-sanitizer: accesses (memcheck), shared memory (racecheck).
# Each tensor is an allocation of its own, as an access behind one is found only where its allocation ends, and
# answers of the driver that PyTorch asks for and expects are no errors of a kernel.
sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "not available: no compute-sanitizer here" >&2; return 1; }
  local calls=()
  [ "$1" != memcheck ] || calls=(--report-api-errors no)
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" "${calls[@]}" --error-exitcode 9 --log-file "$OUT/$1.txt" "$PYTHON" -c '
import json
from kernels.cuda_build import CudaLibrary
from kernels.head import cuda_check as head
from kernels.nvfp4_linear import cuda_check as nvfp4
library = CudaLibrary()
results = [*nvfp4.check(library, shapes=((44, 640),), orders=((4, 0),)), *head.check(library, shapes=((44, 640),))]
print(json.dumps({"checks": len(results), "failed": sum(not r.ok for r in results)}))' || {
    echo "see $1.txt: $(grep -m 1 -E "=+ (Invalid|Error|Warning|Race)" "$OUT/$1.txt")" >&2
    return 1
  }
}
export -f environment build sanitize
export PYTHON OUT

table() {
  "$PYTHON" - "$OUT" <<'PYTHON'
import json, sys
from pathlib import Path

out = Path(sys.argv[1])
stages = [line.split("\t") for line in (out / "stages.tsv").read_text().splitlines()]
print(f"{'stage':18} {'status':14} {'s':>4}  note")
for name, status, seconds, note in stages:
    print(f"{name:18} {status:14} {seconds:>4}  {note}")

def read(name):
    # Empty, cut off or the report of an error: then there are no figures.
    try:
        found = json.loads((out / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}
    return {} if "error" in found else found

fields = ("stage", "status", "s", "note")
summary = {"stages": [dict(zip(fields, stage)) for stage in stages]}
summary |= {stage[0]: read(stage[0]) for stage in stages}
(out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
gpu = read("environment").get("gpu", {})
if gpu:
    print(f"\n{gpu['name']}, {gpu['multiprocessors']} multiprocessors, L2 {gpu['l2_bytes'] / 1e6:.0f} MB")
checks = read("check").get("checks", [])
if checks:
    print(f"checks: {sum(c['status'] == 'pass' for c in checks)} of {len(checks)} hold")
    for check in [c for c in checks if c["status"] != "pass"][:5]:
        print(f"  FAIL {check['kernel']}: {check['reason'][:140]}")
rates = read("cold").get("rates", [])
if rates:
    roof = read("cold")["roof_gbps"]
    print(f"read rates over cold weights (a plain sum reads {roof:.0f} GB/s), best setting of each:")
    best = {}
    for rate in rates:
        key = (rate["kernel"], f"{rate['outputs']}x{rate['inputs']}", rate["rows"])
        if key not in best or rate["us"] < best[key]["us"]:
            best[key] = rate
    for (kernel, shape, rows), rate in best.items():
        print(f"  {kernel:13} {shape:>13} {rows:3} rows {rate['us']:8.1f} us {rate['read_gbps']:6.0f} GB/s"
              f" {100 * rate['read_gbps'] / roof:4.0f} % {rate['tile']}")
proofs = read("graphs").get("proofs", [])
if proofs:
    print(f"captured against eager, rows, trees, commits: {sum(p['ok'] for p in proofs)} of {len(proofs)} hold to the bit")
    for proof in [p for p in proofs if not p["ok"]][:5]:
        print(f"  FAIL {proof['name']}: {proof['reason'][:140]}")
for name in ("agree", "agree-eager"):
    report = read(name)
    if report:
        print(f"{name}: {report['identical']} of {report['prompts']} answers identical, {report['near_ties']} near ties,"
              f" {report['divergences']} divergences")
for name in ("rounds", "rounds-27b"):
    rows = read(name).get("rows", [])
    if rows:
        print(f"{name}: {rows[0]['shape']}, synthetic {rows[0]['weight_format']} weights")
    for row in rows:
        rate = f"{row['read_gbps']:6.0f} GB/s" if row["read_gbps"] else "           "
        roof = f" {100 * row['read_gbps'] / row['roof_gbps']:3.0f} %" if row["read_gbps"] and row["roof_gbps"] else ""
        print(f"  {row['suite']:8} {row['rows']:4} {row['ms_median']:9.3f} ms {rate}{roof}")
PYTHON
}

finish() {
  table
  say "files: $OUT"
  ! grep -q "$(printf '\tFAIL\t')" "$OUT/stages.tsv"
}

stage environment 80 bash -c environment
if ! grep -q "$(printf '^environment\tok')" "$OUT/stages.tsv"; then
  finish
  exit 1
fi
stage build 180 bash -c build
stage check 180 "$PYTHON" -m engine check --device cuda --json
stage graphs 120 "$PYTHON" -m engine.measure.gpu_proof
stage agree 150 "$PYTHON" -m engine agree --device cuda --json --limit 6 --tokens 64
stage rounds 100 "$PYTHON" -m engine bench --device cuda --json --shape qwen3.8-27b:8 --suite decode,verify,prefill \
  --prefill 256 --budget 5
stage rounds-27b 150 "$PYTHON" -m engine bench --device cuda --json --shape qwen3.8-27b --suite decode,verify --budget 10
# shellcheck disable=SC2086 # no sweep means no option
stage cold 150 "$PYTHON" -m kernels.cuda_bench --json $SWEEP
stage gate 120 "$PYTHON" -m kernels.cubin_gate
stage memcheck 60 bash -c "sanitize memcheck"
stage racecheck 60 bash -c "sanitize racecheck"
stage agree-eager 60 "$PYTHON" -m engine agree --device cuda --json --limit 2 --tokens 48 --configs served,trees \
  --knob QWEN38_VERIFY_GRAPH=0 --knob QWEN38_DRAFT_GRAPH=0
stage plan 60 "$PYTHON" -m engine bench --suite plan --no-native --json --shape qwen3.8-27b
finish
