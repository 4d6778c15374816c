# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switch registry: every declaration is sound, sources have their order, wrong input is named."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from source_tree import ROOT, python_files, repository_files

from engine.errors import UsageError
from engine.knob_kinds import BACKENDS
from engine.knobs import KNOBS, PREFIX, Knob, KnobSet, knob_named, read_profile

DEPTH = "QWEN38_MTP_DEPTH"
GRAPH = "QWEN38_VERIFY_GRAPH"
GROUPS = ("verify", "delta", "products", "drafters", "router", "runtime")


def profile(folder: Path, data: bytes) -> Path:
    """A profile file with the given bytes."""
    path = folder / "own profile.env"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_a_declaration_is_sound(knob: Knob) -> None:
    value = knob.parse(knob.default)
    types = {"bool": bool, "int": int, "float": float, "choice": str, "path": str, "text": str}
    assert type(value) is types[knob.kind]
    assert knob.bits in ("identical", "near-tie", "other-numbers", "proposes-only")
    assert knob.flip in ("live", "recapture", "reload")
    assert knob.effect.endswith(".")
    assert knob.engaged
    assert knob.name == knob.name.upper()
    assert knob.group in GROUPS
    assert set(knob.backends) <= set(BACKENDS)
    assert knob.backends or knob.why
    for other, text in (*knob.requires, *knob.excludes):
        knob_named(PREFIX + other).parse(text)
    with pytest.raises(UsageError) as caught:
        knob.parse("no\0such value")
    assert PREFIX + knob.name in caught.value.cause
    assert knob.accepted() in caught.value.next_step


def test_names_are_unique() -> None:
    assert len({knob.name for knob in KNOBS}) == len(KNOBS)


@pytest.mark.parametrize("text", ["", "-1", "5", "+2", "2.0", "0x1", "٣", "²", "1e0", "1" * 400])
def test_a_number_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MTP_DEPTH"):
        KnobSet.resolve(environ={DEPTH: text})


@pytest.mark.parametrize("text", ["", "true", "yes", "2", "on"])
def test_a_flag_is_0_or_1(text: str) -> None:
    with pytest.raises(UsageError, match="VERIFY_GRAPH"):
        KnobSet.resolve(environ={GRAPH: text})


def test_each_source_covers_the_ones_before(tmp_path: Path) -> None:
    path = profile(tmp_path, b"QWEN38_MTP_DEPTH=1\n")
    environ, changes = {DEPTH: "2"}, {DEPTH: " 4 "}
    by_default = KnobSet.resolve(environ={})
    assert by_default.raw("MTP_DEPTH") == ("3", "default")
    assert KnobSet.resolve(profile=path, environ={}).raw("MTP_DEPTH") == ("1", "profile")
    assert KnobSet.resolve(profile=path, environ=environ).raw("MTP_DEPTH") == ("2", "environment")
    full = KnobSet.resolve(profile=path, environ=environ, changes=changes)
    assert full.raw("MTP_DEPTH") == ("4", "caller")
    assert full.number("MTP_DEPTH") == 4
    assert full.raw("VERIFY_GRAPH")[1] == "default"
    later = full.changed({GRAPH: "0"})
    assert (later.flag("VERIFY_GRAPH"), later.number("MTP_DEPTH")) == (False, 4)
    assert full.flag("VERIFY_GRAPH") is True


def test_the_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEPTH, "0")
    assert KnobSet.resolve().number("MTP_DEPTH") == 0


@pytest.mark.parametrize("where", ["profile", "environ", "changes"])
def test_an_unknown_switch_is_refused_wherever_it_stands(where: str, tmp_path: Path) -> None:
    wrong = {"QWEN38_MTP_DEPHT": "3"}
    sources: dict[str, object] = {"environ": {}, where: wrong}
    if where == "profile":
        sources[where] = profile(tmp_path, b"QWEN38_MTP_DEPHT=3")
    with pytest.raises(UsageError) as caught:
        KnobSet.resolve(**sources)
    assert "QWEN38_MTP_DEPHT" in caught.value.cause
    assert DEPTH in caught.value.next_step


def test_other_variables_of_the_environment_do_not_matter() -> None:
    assert KnobSet.resolve(environ={"PATH": "x", "qwen38_x": "y"}).number("MTP_DEPTH") == 3


def test_a_profile_with_marks_of_other_editors(tmp_path: Path) -> None:
    text = "\ufeff# own profile\r\n\r\n  QWEN38_MTP_DEPTH = 2 \r\nQWEN38_CPU_ISA=\r\n"
    assert read_profile(profile(tmp_path, text.encode())) == {DEPTH: "2", "QWEN38_CPU_ISA": ""}


@pytest.mark.parametrize(
    ("data", "line", "said"),
    [
        (b"\n# x\nQWEN38_MTP_DEPHT=3\n", 3, "QWEN38_MTP_DEPHT"),
        (b"QWEN38_MTP_DEPTH=\n", 1, "QWEN38_MTP_DEPTH=''"),
        (b"QWEN38_MTP_DEPTH=3\r\nQWEN38_MTP_DEPTH=3\r\n", 2, "twice"),
        (b"QWEN38_VERIFY_GRAPH=1\n\nQWEN38_MTP_DEPTH\n", 3, "expected KEY=value"),
        (b"export QWEN38_MTP_DEPTH=3\n", 1, "export QWEN38_MTP_DEPTH"),
        (b'QWEN38_MTP_DEPTH="3"\n', 1, '"3"'),
        (b"QWEN38_MTP_DEPTH=3 # three\n", 1, "3 # three"),
        (b"# a\x0cb\x0bc\nQWEN38_MTP_DEPTH=$(id)\n", 2, "$(id)"),
        (b"QWEN38_MTP_DEPTH=3\0\n", 1, "QWEN38_MTP_DEPTH"),
        (b"=3\n", 1, "not a switch"),
    ],
)
def test_a_wrong_line_is_named(data: bytes, line: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_profile(profile(tmp_path, data))
    assert f"own profile.env, line {line}: " in caught.value.cause
    assert said in caught.value.cause
    assert caught.value.next_step


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    for data, said in (
        (b"# x\n" * (10 << 18), "larger than"),
        ("ä".encode() * (1 << 20), "larger than"),
        (b"\xff\xfe Q", "not UTF-8"),
    ):
        with pytest.raises(UsageError, match=said):
            read_profile(profile(tmp_path, data))
    for path in (tmp_path, tmp_path / "absent.env"):
        with pytest.raises(UsageError, match="cannot read"):
            read_profile(path)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "ops").glob("serve*.env")), ids=lambda path: path.name
)
def test_a_served_profile_parses(path: Path) -> None:
    assert KnobSet.resolve(profile=path, environ={})


def environment_reads(source: str) -> list[int]:
    """Lines of a module that look a QWEN38_* variable up in the environment."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call | ast.Subscript | ast.Compare)
        and any(word in ast.unparse(node) for word in ("environ", "getenv"))
        and any(word in ast.unparse(node) for word in (PREFIX, "PREFIX"))
    ]


def test_no_other_module_reads_a_switch_from_the_environment() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in python_files("app", "engine", "kernels", "ops")
        if path != ROOT / "engine" / "knobs.py"
        for line in environment_reads(path.read_text("utf-8"))
    ]
    native = [
        str(path.relative_to(ROOT))
        for path in repository_files()
        if path.suffix in (".cpp", ".h", ".hpp", ".cu", ".cuh")
        if "getenv" in path.read_text("utf-8")
    ]
    assert not found + native


@pytest.mark.parametrize(
    "source",
    [
        'x = os.environ["QWEN38_A"]',
        'x = os.environ.get("QWEN38_A", "1")',
        'x = os.getenv(f"QWEN38_{name}")',
        'x = "QWEN38_A" in os.environ',
        "x = environ.get(PREFIX + name)",
    ],
)
def test_a_read_of_a_switch_is_seen(source: str) -> None:
    assert environment_reads(source)


def test_a_flip_of_a_loaded_model_is_checked_as_a_whole() -> None:
    knobs = KnobSet({})
    flipped = knobs.flipped({DEPTH: "1"}, backend="native", offers={"the MTP head"})
    assert flipped.number("MTP_DEPTH") == 1
    # A value that stands already is no change, also of a switch that only a reload changes.
    same = knobs.flipped({"QWEN38_CPU_ISA": "", GRAPH: "0"}, backend="native", offers=())
    assert not same.flag("VERIFY_GRAPH")
    for changes, backend, said in (
        ({"QWEN38_UT_INVERSE": "0"}, "cuda", "it acts on the native backend only"),
        ({"QWEN38_GDNV_BV": "8"}, "cuda", "not part of this version"),
        ({"QWEN38_CPU_ISA": "avx2"}, "native", "when a model is loaded"),
        ({DEPTH: "1"}, "native", "the MTP head is not loaded"),
        ({GRAPH: "0"}, "reference", "changes nothing here"),
        ({GRAPH: "0", "QWEN38_X": "1"}, "native", "QWEN38_X"),
    ):
        with pytest.raises(UsageError, match=said):
            knobs.flipped(changes, backend=backend, offers=())
