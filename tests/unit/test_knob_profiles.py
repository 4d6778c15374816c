# SPDX-License-Identifier: MIT OR Apache-2.0
"""Profiles that are written: what is read back, and that a failed write leaves the old file."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import RondoError, UsageError
from engine.knob_rows import knob_rows, profile_of
from engine.knobs import KNOBS, Knob, KnobSet, read_profile, write_profile
from engine.paths import PROFILES, profile_path


def test_a_written_profile_is_read_back(tmp_path: Path) -> None:
    knobs = KnobSet.resolve(
        environ={}, changes={"QWEN38_MTP_DEPTH": " 1 ", "QWEN38_CORPUS": "a folder/ü = #1"}
    )
    path = tmp_path / "new folder" / "my profile.env"
    write_profile(path, profile_of(knobs), note="two\nlines")
    assert path.read_text("utf-8").startswith("# two\n# lines\nQWEN38_")
    assert (
        read_profile(path)
        == profile_of(knobs)
        == {
            "QWEN38_MTP_DEPTH": "1",
            "QWEN38_CORPUS": "a folder/ü = #1",
        }
    )
    assert KnobSet.resolve(profile=path, environ={}).signature() == knobs.signature()


def test_a_set_of_defaults_is_an_empty_profile(tmp_path: Path) -> None:
    write_profile(tmp_path / "p.env", profile_of(KnobSet({})))
    assert read_profile(tmp_path / "p.env") == {}


@pytest.mark.parametrize(
    "values", [{"QWEN38_NO": "1"}, {"QWEN38_MTP_DEPTH": "9"}, {"QWEN38_CORPUS": "a\nQWEN38_X=1"}]
)
def test_what_no_profile_may_hold_is_not_written(values: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "p.env"
    path.write_text("QWEN38_MTP_DEPTH=2\n")
    with pytest.raises(UsageError):
        write_profile(path, values)
    assert read_profile(path) == {"QWEN38_MTP_DEPTH": "2"}


def test_a_place_that_takes_no_file_is_named_and_nothing_is_left_over(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RondoError, match="cannot be written"):
        write_profile(tmp_path / "folder", {})
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    (tmp_path / "file").touch()
    with pytest.raises(RondoError, match="cannot be written"):
        write_profile(tmp_path / "file" / "p.env", {})


def test_the_shipped_profiles_have_names_and_differ() -> None:
    values = {name: read_profile(profile_path(name)) for name in PROFILES}
    assert list(values) == ["serve", "balanced", "fp8", "int8"]
    for name, each in values.items():
        assert profile_path(f"serve-{name}") == profile_path(name)
        knobs = KnobSet.resolve(profile=profile_path(name), environ={})
        rows = knob_rows(knobs, backend="native", offers=None, engaged={}, served={})
        assert all(row.available for row in rows if row.name in each)
    for other in ("balanced", "fp8", "int8"):
        assert values[other].items() ^ values["serve"].items()
        comments = profile_path(other).read_text("utf-8")
        assert "What differs from serve.env" in comments


@pytest.mark.parametrize("name", ["nothing", "serve-", "x" * 5000, "a\0b", "/"])
def test_a_profile_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(UsageError, match="neither a file nor one of serve, balanced, fp8, int8"):
        profile_path(name)


def test_a_long_value_and_a_large_file_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "p.env"
    path.write_bytes(b"QWEN38_CORPUS=" + b"x" * 5000 + b"\n")
    with pytest.raises(UsageError, match=r"line 1: QWEN38_CORPUS='x{80}\.\.\.' is not accepted"):
        read_profile(path)
    path.write_bytes(b"# " + b"x" * (10 << 20))
    with pytest.raises(UsageError, match="larger than"):
        read_profile(path)


def test_rules_between_switches_hold_for_every_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruled = Knob(
        "VERIFY_GRAPH", "bool", "1", "A rule.", "identical", "live", "tape replays", "verify",
        requires=(("MTP_DEPTH", "3"),), excludes=(("CPU_ISA", "avx2"),),
    )  # fmt: skip
    monkeypatch.setattr(
        "engine.knobs.KNOBS", tuple(ruled if k.name == ruled.name else k for k in KNOBS)
    )
    assert KnobSet.resolve(environ={})
    assert KnobSet.resolve(environ={"QWEN38_MTP_DEPTH": "2", "QWEN38_VERIFY_GRAPH": "0"})
    with pytest.raises(UsageError, match="VERIFY_GRAPH=1 needs QWEN38_MTP_DEPTH=3"):
        KnobSet.resolve(environ={"QWEN38_MTP_DEPTH": "2"})
    with pytest.raises(UsageError, match="VERIFY_GRAPH=1 excludes QWEN38_CPU_ISA=avx2"):
        KnobSet.resolve(environ={}, changes={"QWEN38_CPU_ISA": "avx2"})


def test_a_path_is_sought_here_then_among_the_products_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def path_of(text: str) -> Path | None:
        return KnobSet({}).changed({"QWEN38_CORPUS": text}).path("CORPUS")

    monkeypatch.chdir(tmp_path)
    assert path_of("") is None
    assert path_of("ops/serve.env") == profile_path("serve")
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "serve.env").touch()
    assert path_of("ops/serve.env") == Path("ops/serve.env")
    assert path_of("~/x") == Path.home() / "x"
    assert path_of("~nobody-has-this-name/x") == Path("~nobody-has-this-name/x")
    assert path_of("no such file") == Path("no such file")


@pytest.mark.parametrize(
    ("text", "accepted"),
    [("1", 1.0), ("0.25", 0.25), (".5", 0.5), ("10.", 10.0), ("-1", None), ("1e1", None), ("", None),
     ("nan", None), ("inf", None), ("0.01", None), ("10.1", None), ("1_0", None), ("1.2.3", None), ("٣", None)],
)  # fmt: skip
def test_a_float_is_a_plain_decimal(text: str, accepted: float | None) -> None:
    if accepted is not None:
        assert KnobSet({}).changed({"QWEN38_DF2_TEMP": text}).decimal("DF2_TEMP") == accepted
        return
    with pytest.raises(UsageError, match="DF2_TEMP"):
        KnobSet({}).changed({"QWEN38_DF2_TEMP": text})


def test_an_alias_is_what_it_stands_for() -> None:
    assert KnobSet({}).changed({"QWEN38_LEN_MODE": "wide"}).choice("LEN_MODE") == "stair"


def test_a_profiles_relative_path_is_taken_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = tmp_path / "profiles", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    for place in (folder, here):
        (place / "tiles.json").touch()
    (here / "only-here.json").touch()
    profile = folder / "p.env"
    profile.write_text(
        "QWEN38_SKINNY_TILES=tiles.json\n"
        "QWEN38_SKINNY_TILES_WIDE=only-here.json\n"
        "QWEN38_FP8_TILES=../here/tiles.json\n"
        "QWEN38_CORPUS=ops/serve.env\n"
        "QWEN38_DFLASH2=off\n"
        "QWEN38_SUFFIX_STORE=tiles.json\n"
    )
    monkeypatch.chdir(here)
    knobs = KnobSet.resolve(profile="../profiles/p.env", environ={})
    assert knobs.path("SKINNY_TILES") == folder / "tiles.json"
    assert knobs.path("FP8_TILES") == here / "tiles.json"
    # Nothing of that name lies beside the profile.
    assert knobs.path("SKINNY_TILES_WIDE") == Path("only-here.json")
    assert knobs.path("CORPUS") == profile_path("serve")
    assert knobs.raw("DFLASH2")[0] == "off"
    assert knobs.text("SUFFIX_STORE") == "tiles.json"  # no path
    # Elsewhere it means the same.
    write_profile(here / "saved.env", profile_of(knobs))
    saved = KnobSet.resolve(profile=here / "saved.env", environ={})
    assert saved.path("SKINNY_TILES") == folder / "tiles.json"


def test_a_shipped_profile_names_a_shipped_file_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clone of its own, with the line that a shipped profile would have.
    clone = tmp_path / "clone"
    (clone / "ops").mkdir(parents=True)
    shipped = clone / "ops" / "skinny-tiles.json"
    shipped.touch()
    (clone / "ops" / "serve.env").write_text("QWEN38_SKINNY_TILES=skinny-tiles.json\n")
    monkeypatch.setattr("engine.paths._ROOT", clone)
    other = tmp_path / "other"
    (other / "ops").mkdir(parents=True)
    (other / "ops" / "skinny-tiles.json").touch()
    for folder in (clone, clone / "ops", tmp_path, other):
        monkeypatch.chdir(folder)
        knobs = KnobSet.resolve(profile=profile_path("serve"), environ={})
        assert knobs.path("SKINNY_TILES") == shipped
        # No folder of this machine is shown or saved.
        assert knobs.raw("SKINNY_TILES") == ("ops/skinny-tiles.json", "profile")
