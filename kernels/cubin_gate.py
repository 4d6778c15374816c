# SPDX-License-Identifier: MIT OR Apache-2.0
"""Holds compiled GPU kernels to the manifest of their target, on a machine without a GPU.

A manifest (targets/NAME.toml) names every kernel with its budget: registers, and how often an instruction may
stand in its machine code. No kernel may keep anything in local memory. `python -m kernels.cubin_gate` prints
the figures beside the budgets.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernels.build_cache import NativeBuildError
from kernels.cuda_build import ROOT, cubin_path, find_nvcc, nvcc_version, target_named

MANIFESTS = ROOT / "targets"
_RESERVED_SHARED_BYTES = 1024  # what the driver keeps of every block's shared memory since sm_90
_LOCAL = ("LDL", "STL")
_USAGE = re.compile(r"Function (\S+?):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


@dataclass(frozen=True)
class KernelFacts:
    """What the machine code of one kernel takes; `instructions` counts opcodes with their suffixes."""

    registers: int
    stack_bytes: int
    shared_bytes: int  # the driver's own left out; of a .cu file the static part
    local_bytes: int
    instructions: Counter[str]

    def count(self, opcode: str) -> int:
        """Instructions whose opcode is `opcode` or goes on behind a dot."""
        return sum(
            n
            for name, n in self.instructions.items()
            if name == opcode or name.startswith(opcode + ".")
        )


@dataclass(frozen=True)
class Budget:
    """Limits of one kernel.

    Attributes:
        registers: most registers a thread.
        shared_bytes: most shared memory a block, what the launch asks for included.
        counts: opcode -> how often it stands in the code, exactly; 0 says that it must not.
    """

    registers: int
    shared_bytes: int
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Module:
    """One source of a manifest: a `.cu` file, or a Python module with kernels of Triton.

    Such a module offers `cubins(target) -> {name: bytes}`, and `shared_bytes(target) -> {name: int}` for what
    a launch asks for.
    """

    source: str
    used_by: str
    kernels: Mapping[str, Budget]


@dataclass(frozen=True)
class Manifest:
    """What one target runs.

    Attributes:
        target: as nvcc names it.
        shared_bytes: most shared memory a block of the target can have.
        shadows: common source -> the source that this target runs in its place.
    """

    target: str
    shared_bytes: int
    shadows: Mapping[str, str]
    modules: tuple[Module, ...]


def read_manifest(path: Path) -> Manifest:
    """The manifest of a file.

    Raises:
        ValueError: it misses something, has something unknown, or shadows without a reason.
    """
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        limit = values.pop("shared_bytes")
        target = target_named(values.pop("target")).name
        modules = tuple(
            _module(source, entry, limit) for source, entry in values.pop("modules").items()
        )
        shadows = {}
        for source, entry in values.pop("shadows", {}).items():
            if not str(entry.get("reason", "")).strip():
                raise ValueError(f"{source} is shadowed without a reason")
            shadows[source] = entry["by"]
    except KeyError as error:
        raise ValueError(f"{path}: {error} is missing") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if values:
        raise ValueError(f"{path}: unknown: {', '.join(values)}")
    return Manifest(target, limit, shadows, modules)


def _module(source: str, entry: dict[str, Any], limit: int) -> Module:
    common = entry.get("counts", {})
    budgets = {}
    for name, own in entry["kernels"].items():
        known = {"registers", "shared_bytes", "counts"}
        if set(own) - known:
            raise ValueError(f"{name}: unknown: {', '.join(sorted(set(own) - known))}")
        counts = {opcode: 0 for opcode in _LOCAL} | common | own.get("counts", {})
        budgets[name] = Budget(own["registers"], own.get("shared_bytes", 0), counts)
        if budgets[name].shared_bytes > limit:
            raise ValueError(f"{name}: more shared memory than a block of the target has")
    return Module(source, entry["used_by"], budgets)


def find_tool(name: str) -> str | None:
    """cuobjdump or nvdisasm: of CUDA_HOME, on PATH, or those that Triton brings; None when there is none."""
    homes = [os.environ.get(key) for key in ("CUDA_HOME", "CUDA_PATH")]
    places = [str(Path(home) / "bin") for home in homes if home]
    places += [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    triton = find_spec("triton")
    if triton and triton.submodule_search_locations:
        places.append(str(Path(triton.submodule_search_locations[0]) / "backends/nvidia/bin"))
    return next(filter(None, (shutil.which(name, path=place) for place in places)), None)


def missing_tools(targets: Collection[str] | None = None) -> str:
    """What the gate lacks on this machine, in words; empty when it can compile and read the targets, or all."""
    if targets is None:
        targets = [path.stem for path in MANIFESTS.glob("*.toml")]
    lacking = [f"no {name}" for name in ("cuobjdump", "nvdisasm") if find_tool(name) is None]
    if reader := find_tool("nvdisasm"):
        known = subprocess.run([reader, "--help"], capture_output=True, text=True, check=False)
        for target in sorted(targets):
            if not re.search(
                rf"\b{target.upper().replace('_', '').removesuffix('A')}\b", known.stdout
            ):
                lacking.append(f"{reader} does not read {target}")
    needed = max(target_named(target).nvcc for target in targets)
    try:
        version = nvcc_version(find_nvcc())
        if version < needed:
            lacking.append(f"nvcc {version[0]}.{version[1]} is older than {needed[0]}.{needed[1]}")
    except NativeBuildError:
        lacking.append("no nvcc")
    return f"{', '.join(lacking)} on this machine" if lacking else ""


def facts_of(cubin: Path) -> dict[str, KernelFacts]:
    """The kernels of a cubin with their registers, memory and instructions.

    Raises:
        NativeBuildError: cuobjdump is missing or cannot read the file.
    """
    usage = {
        name: tuple(map(int, numbers))
        for name, *numbers in _USAGE.findall(_run("-res-usage", cubin))
    }
    instructions: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    for line in _run("-sass", cubin).splitlines():
        if started := _FUNCTION.match(line):
            current = instructions.setdefault(started[1], Counter())
        elif found := _INSTRUCTION.match(line):
            current[found[1]] += 1
    return {
        name: KernelFacts(
            registers,
            stack,
            max(0, shared - _RESERVED_SHARED_BYTES),
            local,
            instructions.get(name, Counter()),
        )
        for name, (registers, stack, shared, local) in usage.items()
    }


def _run(option: str, cubin: Path) -> str:
    tool = find_tool("cuobjdump")
    if tool is None:
        raise NativeBuildError("no cuobjdump was found; CUDA and Triton bring one")
    folder = str(Path(find_tool("nvdisasm") or tool).parent)
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run(
        [tool, option, str(cubin)], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise NativeBuildError(f"`{tool} {option} {cubin}` failed: {done.stderr.strip()}")
    return done.stdout + done.stderr


def budget_faults(name: str, facts: KernelFacts, budget: Budget) -> list[str]:
    """Where a kernel leaves its budget, in words."""
    found = []
    if facts.registers > budget.registers:
        found.append(f"{name}: {facts.registers} registers, the budget is {budget.registers}")
    if facts.stack_bytes or facts.local_bytes:
        found.append(f"{name}: {facts.stack_bytes + facts.local_bytes} bytes of local memory")
    if facts.shared_bytes > budget.shared_bytes:
        found.append(
            f"{name}: {facts.shared_bytes} bytes of shared memory, the budget is {budget.shared_bytes}"
        )
    for opcode, wanted in budget.counts.items():
        there = facts.count(opcode)
        if there != wanted:
            found.append(f"{name}: {there} times {opcode}, expected {wanted}")
    return found


def module_faults(module: Module, facts: Mapping[str, KernelFacts]) -> list[str]:
    """Faults of one compiled module: budgets, kernels nobody declared, declared ones that are not there."""
    found = [f"{module.source}: {name} is not declared" for name in facts.keys() - module.kernels]
    found += [f"{module.source}: {name} does not exist" for name in module.kernels.keys() - facts]
    for name in sorted(facts.keys() & module.kernels):
        found += budget_faults(name, facts[name], module.kernels[name])
    return found


def module_facts(manifest: Manifest, module: Module) -> dict[str, KernelFacts]:
    """The facts of one module compiled for the manifest's target.

    Raises:
        NativeBuildError: it cannot be compiled or read.
    """
    source = manifest.shadows.get(module.source, module.source)
    if source.endswith(".cu"):
        return facts_of(cubin_path(ROOT / source, target_named(manifest.target)))
    name = ".".join(("kernels", *Path(source).with_suffix("").parts))
    facts: dict[str, KernelFacts] = {}
    asked = importlib.import_module(name).shared_bytes(manifest.target)
    with tempfile.TemporaryDirectory() as folder:
        for kernel, image in importlib.import_module(name).cubins(manifest.target).items():
            file = Path(folder) / f"{kernel}.cubin"
            file.write_bytes(image)
            # One kernel an image; a compiler may decorate its name.
            (own,) = facts_of(file).values()
            facts[kernel] = replace(own, shared_bytes=max(own.shared_bytes, asked[kernel]))
    return facts


def undeclared_sources(manifest: Manifest) -> list[str]:
    """CUDA files, and Python modules that launch kernels of Triton, which the manifest neither runs nor shadows
    with."""
    known = {module.source for module in manifest.modules} | set(manifest.shadows.values())
    files = [*ROOT.glob("**/*.cu"), *(path for path in ROOT.glob("**/*.py") if _jitted(path)[1])]
    return sorted({path.relative_to(ROOT).as_posix() for path in files} - known)


def unused_kernels(manifest: Manifest) -> list[str]:
    """Declared kernels that the module named in used_by cannot launch, and launched ones not declared."""
    found = []
    for module in manifest.modules:
        using = importlib.import_module(module.used_by)
        launched = set(using.entries().get(module.source, ()))
        found += [f"{name} is never launched" for name in module.kernels.keys() - launched]
        found += [f"{name} is not declared" for name in launched - module.kernels.keys()]
        if module.source.endswith(".py"):
            forms = {variant.kernel.__name__ for variant in using.GATE.variants}
            found += launch_faults(ROOT / module.source, forms)
    return sorted(found)


def launch_faults(path: Path, forms: Collection[str]) -> list[str]:
    """What a module launches beside `forms`, the functions with compiled forms, and what it never launches.

    A function under triton.jit that nothing launches has to be called, here or in a module that imports it.
    """
    defined, launched, called = _jitted(path)
    found = [
        f"{path.name}: {name} is launched and has no compiled form"
        for name in launched - set(forms)
    ]
    found += [
        f"{path.name}: {name} has a compiled form and is never launched"
        for name in set(forms) - launched
    ]
    idle = defined - launched - called
    if idle:
        idle -= {name for other in ROOT.glob("**/*.py") for name in _imported(other)}
    return sorted(found + [f"{path.name}: {name} is never used" for name in idle])


def _jitted(path: Path) -> tuple[set[str], set[str], set[str]]:
    """Names of a module's functions under triton.jit: all, those launched as name[grid](...), those called."""
    text = path.read_text(encoding="utf-8")
    if "triton.jit" not in text:
        return set(), set(), set()
    nodes = list(ast.walk(ast.parse(text)))
    defined = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(each) for each in node.decorator_list)
    }
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    launched = {
        each.value.id
        for each in calls
        if isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name)
    }
    called = {each.id for each in calls if isinstance(each, ast.Name)}
    return defined, launched & defined, called & defined


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def main(argv: list[str] | None = None) -> int:
    """Print every kernel's figures and what is wrong; 3 when something is."""
    parser = argparse.ArgumentParser(prog="python -m kernels.cubin_gate", description=main.__doc__)
    known = sorted(path.stem for path in MANIFESTS.glob("*.toml"))
    parser.add_argument("--target", action="append", choices=known, help="default: every manifest")
    arguments = parser.parse_args(argv)
    lacking = missing_tools(arguments.target)
    if lacking:
        print(f"not available: {lacking}", file=sys.stderr)
        return 1
    found: list[str] = []
    for path in sorted(MANIFESTS.glob("*.toml")):
        manifest = read_manifest(path)
        if arguments.target and manifest.target not in arguments.target:
            continue
        for line in _table(manifest, found):
            print(line)
    for fault in found:
        print(f"FAIL {fault}")
    return 3 if found else 0


def _table(manifest: Manifest, found: list[str]) -> Iterator[str]:
    for module in manifest.modules:
        facts = module_facts(manifest, module)
        found += [f"{manifest.target} {fault}" for fault in module_faults(module, facts)]
        for name, own in sorted(facts.items()):
            budget = module.kernels.get(name)
            limit = budget.registers if budget else "-"
            watched = budget.counts if budget else {}
            counts = ", ".join(f"{opcode} {own.count(opcode)}" for opcode in watched)
            yield f"{manifest.target:8} {name:34} registers {own.registers:3} of {limit:>3}  {counts}"
    found += [
        f"{manifest.target} {source} is not declared" for source in undeclared_sources(manifest)
    ]
    found += [f"{manifest.target} {fault}" for fault in unused_kernels(manifest)]


if __name__ == "__main__":
    sys.exit(main())
