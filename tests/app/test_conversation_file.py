# SPDX-License-Identifier: MIT OR Apache-2.0
"""A conversation as a file: what is written, what comes back, and that nothing else is taken for one."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat import conversation_file as module
from app.chat.conversation_file import (
    LIMIT_BYTES,
    ConversationFileError,
    from_json,
    proposed_name,
    read_conversation,
    to_json,
    to_markdown,
    write_conversation,
)
from app.chat.readout import details, readout
from app.chat.transcript import Conversation, Transcript, Turn
from engine.api import ErrorReport, Generation

WHEN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
DONE = Generation(
    "It reads.", "Hm.", (5, 6, 7), 12, 0, "stop", 2, 6, 3, 1.5, 50.0, 9.0, 1e3, 1234.0, 8.0, 10, 3.0, 41.0
)  # fmt: skip
FAILED = ErrorReport(
    "It failed", "A NaN.", "kept", "next", "a stack of a/secret/folder", prompt_refused=True
)


def _answer() -> Turn:
    return Turn("assistant", DONE.text, DONE.reasoning, generation=DONE, model="demo · BF16")


def _conversation(*turns: Turn) -> Conversation:
    return Conversation(turns or (Turn("user", "Why?"), _answer()), "demo · BF16", WHEN)


def _data(*turns: Turn) -> dict:
    return json.loads(to_json(_conversation(*turns)))


def _seen(turn: Turn) -> tuple:
    error = turn.error and replace(turn.error, details="")
    made = turn.generation
    return (
        turn.role,
        turn.text,
        turn.reasoning,
        turn.status,
        turn.model,
        turn.speculated,
        error,
        made,
    )


# JSON.


def test_what_the_json_holds() -> None:
    failed = Turn("assistant", "half", status="failed", error=FAILED)
    text = to_json(_conversation(Turn("user", "Why?"), _answer(), Turn("user", "And?"), failed))
    data = json.loads(text)
    assert {key: value for key, value in data.items() if key != "turns"} == {
        "format": "rondo-conversation",
        "version": 1,
        "saved": "2026-03-04T05:06:07+00:00",
        "model": "demo · BF16",
    }
    asked, answer, _, last = data["turns"]
    assert asked == {"role": "user", "text": "Why?"}
    assert (answer["text"], answer["reasoning"], answer["ended"]) == ("It reads.", "Hm.", "stop")
    assert answer["figures"]["token_ids"] == [5, 6, 7]
    assert answer["figures"]["decode_tps"] == 1234.0
    assert answer["error"] is None
    assert (last["text"], last["ended"], last["figures"]) == ("half", "error", None)
    assert last["error"]["cause"] == "A NaN."
    assert "a/secret/folder" not in text, "a stack names folders of this machine"
    assert len(text.splitlines()) == 6 + 4 + 2, "a turn is a line"


texts = st.text(st.characters(exclude_categories=[], exclude_characters="\0"), max_size=40).filter(
    lambda text: not any("\ud800" <= c <= "\udfff" for c in text)
)
counts = st.integers(0, 2**53 - 1)
rates = st.floats(0, 1e15, exclude_max=True)
maybe = st.none() | rates


@st.composite
def answers(draw: st.DrawFn) -> Turn:
    text, reasoning = draw(texts), draw(texts)
    turn = Turn("assistant", text, reasoning, model=draw(texts), speculated=draw(st.booleans()))
    if draw(st.booleans()):
        turn.error, turn.status = ErrorReport(*(draw(texts) for _ in range(4))), "failed"
        return turn
    turn.generation = Generation(
        text, reasoning, tuple(draw(st.lists(counts, max_size=4))), draw(counts), draw(counts),
        draw(st.sampled_from(["stop", "length", "context", "cancelled"])), draw(counts), draw(counts),
        draw(counts), draw(maybe), draw(maybe), draw(rates), draw(maybe), draw(maybe), draw(maybe),
        draw(st.none() | counts), draw(maybe), draw(maybe), draw(st.none() | counts),
        draw(st.sampled_from(["memory", "cache"])), draw(counts),
    )  # fmt: skip
    return turn


pairs = st.lists(
    st.tuples(texts.filter(str.strip).map(lambda text: Turn("user", text)), answers()),
    min_size=1,
    max_size=3,
)


@given(pairs, texts)
def test_what_was_written_comes_back(turns: list[tuple[Turn, Turn]], model: str) -> None:
    wanted = Conversation(tuple(turn for pair in turns for turn in pair), model, WHEN)
    text = to_json(wanted)
    found = from_json(text)
    assert (found.model, found.saved) == (model, WHEN)
    assert [_seen(turn) for turn in found.turns] == [_seen(turn) for turn in wanted.turns]
    assert to_json(found) == text
    to_markdown(found).encode()
    for turn in found.turns:
        if turn.generation is not None:
            assert readout(turn.generation, turn.speculated)
            assert details(turn.generation)


def test_text_of_a_file_is_cleaned_as_typed_text_is() -> None:
    data = _data()
    data["turns"][0]["text"] = "a\0b\ud800 <|im_start|>system"
    data["turns"][1] |= {"text": "\udfff", "reasoning": "\0", "model": "m\0"}
    asked, answer = from_json(json.dumps(data)).turns
    assert asked.text == "a\ufffdb\ufffd <|im_start|>system"
    assert (answer.text, answer.reasoning, answer.model) == ("\ufffd", "\ufffd", "m\ufffd")
    assert (answer.generation.text, answer.generation.reasoning) == ("\ufffd", "\ufffd")


def test_a_filled_transcript_is_asked_with_whole() -> None:
    transcript = Transcript()
    transcript.fill(_conversation().turns)
    assert not transcript.is_unsaved
    transcript.ask("And?")
    assert transcript.is_unsaved
    sent = [(message.role, message.content, message.reasoning) for message in transcript.messages()]
    assert sent == [("user", "Why?", ""), ("assistant", "It reads.", "Hm."), ("user", "And?", "")]


def test_every_change_takes_saved_back() -> None:
    for change in (lambda t: t.ask("q"), lambda t: t.begin_answer(3), lambda t: t.cut(1)):
        transcript = Transcript()
        transcript.fill(_conversation().turns)
        change(transcript)
        assert transcript.is_unsaved
    transcript.cut(0)
    assert not transcript.is_unsaved, "there is nothing to save"


def _gone(name: str):
    return lambda data: data["turns"][1].pop(name)


def _with(**values: object):
    return lambda data: data["turns"][1].update(values)


def _figure(name: str, value: object):
    return lambda data: data["turns"][1]["figures"].update({name: value})


WRONG = [
    (lambda d: d.update(format="other"), "not a conversation of Rondo"),
    (lambda d: d.pop("format"), "not a conversation of Rondo"),
    (lambda d: d.update(version=2), "version 2 of the format; this Rondo reads version 1"),
    (lambda d: d.update(version=0), "version 0"),
    (lambda d: d.update(version=True), "“version” is true where a whole number"),
    (lambda d: d.pop("version"), "“version” is missing"),
    (lambda d: d.update(saved="yesterday"), "“saved” is no date: “yesterday”"),
    (lambda d: d.update(saved=None), "“saved” is null"),
    (lambda d: d.pop("model"), "“model” is missing"),
    (lambda d: d.update(model="m" * 20_001), "where a short text is expected"),
    (lambda d: d.pop("turns"), "“turns” is not a list"),
    (lambda d: d.update(turns=[]), "not a question and its answer"),
    (lambda d: d["turns"].pop(), "not a question and its answer"),
    (lambda d: d["turns"].reverse(), "turn 1: “role” is “assistant” where “user” is its turn"),
    (lambda d: d["turns"][0].update(role="system"), "turn 1: “role” is “system”"),
    (lambda d: d["turns"][1].update(role=["user"]), "turn 2: “role” is a list"),
    (lambda d: d["turns"].__setitem__(0, "x"), "turn 1 is not an object"),
    (lambda d: d["turns"][0].update(text=" \n"), "turn 1: the question is empty"),
    (lambda d: d["turns"][0].update(text={}), "turn 1: “text” is an object where text is expected"),
    (_gone("text"), "turn 2: “text” is missing"),
    (_gone("reasoning"), "turn 2: “reasoning” is missing"),
    (_gone("model"), "turn 2: “model” is missing"),
    (_gone("speculated"), "turn 2: “speculated” is missing"),
    (_gone("ended"), "turn 2: “ended” is missing"),
    (_gone("figures"), "turn 2: “figures” is not an object"),
    (_with(ended="later"), "turn 2: “ended” is “later”, which is no ending"),
    (_with(ended="error"), "turn 2: “error” is not an object"),
    (_with(ended="error", error={"title": "t"}), "turn 2, “error”: “cause” is missing"),
    (_with(speculated=1), "“speculated” is 1 where true or false"),
    (lambda d: d["turns"][1]["figures"].pop("rounds"), "turn 2, “figures”: “rounds” is missing"),
    (_figure("rounds", 2.5), "“rounds” is 2.5 where a whole number"),
    (_figure("rounds", -1), "“rounds” is -1"),
    (_figure("rounds", 2**53), "“rounds” is a number too large"),
    (_figure("ttft_ms", None), "“ttft_ms” is null"),
    (_figure("ttft_ms", "9"), "“ttft_ms” is “9” where a number"),
    (_figure("decode_tps", 1e300), "“decode_tps” is 1e+300"),
    (_figure("token_ids", [1, "2"]), "“token_ids” is a list where a list of whole numbers"),
    (_figure("token_ids", [True]), "where a list of whole numbers"),
    (_figure("roof_place", 3), "“roof_place” is 3"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_field_is_named(damage, said: str) -> None:
    data = _data()
    damage(data)
    with pytest.raises(ConversationFileError) as refused:
        from_json(json.dumps(data))
    assert said in refused.value.cause
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "It is not JSON (line 1, column 1)"),
        ("{\n", "It is not JSON (line 2, column 1)"),
        ("# Conversation", "It is not JSON"),
        ("[]", "not a conversation of Rondo"),
        ("null", "not a conversation of Rondo"),
        ('"rondo-conversation"', "not a conversation of Rondo"),
        ('{"format": "rondo-conversation", "format": 1}', "the key 'format' stands twice"),
        ('{"version": NaN}', "NaN is no number of JSON"),
        ('{"version": ' + "9" * 5000 + "}", "It is not read as JSON"),
        ("[" * 100_000, "It is not read as JSON"),
    ],
    ids=range(10),
)
def test_text_that_is_no_conversation(text: str, said: str) -> None:
    with pytest.raises(ConversationFileError) as refused:
        from_json(text)
    assert said in refused.value.cause
    assert len(refused.value.cause) < 300


def test_an_infinite_figure_is_refused() -> None:
    text = to_json(_conversation()).replace('"ttft_ms": 9.0', '"ttft_ms": 1e999')
    with pytest.raises(ConversationFileError, match="“ttft_ms” is a number too large"):
        from_json(text)


@given(st.data())
def test_no_damage_raises_anything_else(data: st.DataObject) -> None:
    text = to_json(_conversation())
    at = data.draw(st.integers(0, len(text)))
    upto = data.draw(st.integers(at, min(len(text), at + 12)))
    damaged = text[:at] + data.draw(st.text('{}[]",:0e9-ntf\\u \n', max_size=6)) + text[upto:]
    try:
        found = from_json(damaged)
    except ConversationFileError:
        return
    assert to_json(found)
    assert all(readout(turn.generation) for turn in found.turns if turn.generation is not None)


def test_a_figure_that_a_later_version_adds_may_be_missing_or_unknown() -> None:
    data = _data()
    del data["turns"][1]["figures"]["kept_prompt_tokens"]
    data["turns"][1]["figures"]["of_tomorrow"] = [1]
    data["note"] = "mine"
    assert from_json(json.dumps(data)).turns[1].generation == DONE


# Files.


def test_a_file_is_written_whole_and_read(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.json"
    write_conversation(path, _conversation(), markdown=False)
    assert path.read_text("utf-8") == to_json(_conversation())
    assert [_seen(turn) for turn in read_conversation(path).turns] == [
        _seen(turn) for turn in _conversation().turns
    ]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as an editor may leave it
    assert len(read_conversation(path).turns) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch, code: int) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("engine.replace_file.os.fsync", fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        write_conversation(path, _conversation(), markdown=False)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path], "no part of the new one is left"


def test_what_could_not_be_opened_again_is_not_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "LIMIT_BYTES", 700)
    large = _conversation(Turn("user", "x" * 800), _answer())
    with pytest.raises(ConversationFileError, match="is not opened again"):
        write_conversation(tmp_path / "a.json", large, markdown=False)
    assert list(tmp_path.iterdir()) == []
    write_conversation(tmp_path / "a.md", large, markdown=True)


def test_files_that_are_no_conversation(tmp_path: Path) -> None:
    def cause(path: Path) -> str:
        with pytest.raises(ConversationFileError) as refused:
            read_conversation(path)
        return refused.value.cause

    assert cause(tmp_path) == "It is a folder."
    os.mkfifo(tmp_path / "pipe")  # which a read would wait for
    assert cause(tmp_path / "pipe") == "It is a pipe or a device."
    assert cause(Path("/dev/zero")) == "It is a pipe or a device."
    (tmp_path / "binary").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    assert cause(tmp_path / "binary") == "It is not UTF-8 text (byte 0)."
    with pytest.raises(FileNotFoundError):
        read_conversation(tmp_path / "none")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LIMIT_BYTES + 1)
    with monkeypatch.context() as closed:
        closed.setattr(Path, "open", None)
        with pytest.raises(
            ConversationFileError, match=r"16\.8 MB; a conversation has 16\.8 MB at most"
        ):
            read_conversation(path)


# Names.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Why is decoding memory bound?", "2026-03-04-Why-is-decoding-memory-bound"),
        ("../../etc/passwd\n$(rm) `x`", "2026-03-04-etc-passwd-rm-x"),
        ("  ???  \0 /", "2026-03-04-conversation"),
        ("Ärger über 数据", "2026-03-04-Ärger-über-数据"),
        ("w" * 400, "2026-03-04-conversation"),
        ("one two " * 30, "2026-03-04-one-two-one-two-one-two-one-two-one-two-one-two"),
    ],
)
def test_the_proposed_name(text: str, name: str) -> None:
    assert proposed_name([Turn("user", text)], WHEN) == name
    assert len(name.encode()) < 200
