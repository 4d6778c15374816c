# SPDX-License-Identifier: MIT OR Apache-2.0
"""The markdown splitter: what settles when, and that chunking never matters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chat import markdown_stream
from app.chat.markdown_stream import Block, CodeEnd, CodeStart, CodeText, MarkdownStream, Op

PIECES = st.sampled_from(
    ["\n", "\n\n", "- a", "1. b", "2. c", "  more", "```", "```py", "~~~", "# h", "---", "***", "text ",
     "word", "| a | b |", "> q", "\r", "\r\n", "\x00", "\u2029", "x" * 30, " ", "\t", "`", "    ", "\ud800"]
)  # fmt: skip


def _run(chunks: list[str]) -> list[Op]:
    stream = MarkdownStream()
    ops: list[Op] = []
    for chunk in chunks:
        ops += stream.feed(chunk)
    return ops + stream.finish()


@settings(max_examples=400, deadline=None)
@given(parts=st.lists(PIECES, max_size=40), data=st.data(), limit=st.sampled_from([50, 4000]))
def test_any_chunking_gives_the_same_blocks(parts, data, limit) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markdown_stream, "LINE_LIMIT", limit)
        whole = _run([text])
        assert _run(chunks) == whole
        assert _run(list(text)) == whole


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab \n-", max_size=200))
def test_no_visible_character_is_lost(text: str) -> None:
    said = "\n".join(op.text for op in _run([text]) if isinstance(op, Block | CodeText))
    assert "".join(said.split()) == "".join(text.split())


def test_paragraphs_settle_at_a_blank_line() -> None:
    stream = MarkdownStream()
    assert stream.feed("one\ntwo") == []
    assert stream.tail == "one\ntwo"
    assert stream.feed("\n\nthree") == [Block("one\ntwo")]
    assert stream.tail == "three"
    assert stream.finish() == [Block("three")]


def test_each_list_item_settles_with_the_next() -> None:
    assert _run(["- a\n  b\n- c\n\n  d\n\nend"]) == [
        Block("- a\n  b"),
        Block("- c\n\n  d"),
        Block("end"),
    ]


def test_headings_and_rules_stand_alone() -> None:
    ops = _run(["intro\n# head\ntext\n\n***\n\ntitle\n---\n"])
    assert [op.text for op in ops] == ["intro", "# head", "text", "***", "title\n---"]


def test_code_lines_settle_one_by_one() -> None:
    stream = MarkdownStream()
    assert stream.feed("```py\nx = 1\n  y") == [CodeStart("py"), CodeText("x = 1")]
    assert stream.in_code
    assert stream.tail == "  y"
    assert stream.feed("\n# no heading\n```\nafter") == [
        CodeText("  y"), CodeText("# no heading"), CodeEnd()
    ]  # fmt: skip
    assert not stream.in_code


def test_a_fence_closes_only_with_its_own_mark() -> None:
    assert _run(["````\n```\n````\n"]) == [CodeStart(""), CodeText("```"), CodeEnd()]
    assert _run(["~~~\n```\n"])[-1] == CodeEnd(), "an open fence is closed at the end"


def test_a_huge_line_is_broken_for_display() -> None:
    ops = _run(["word " * 200_000])
    assert max(len(op.text) for op in ops) <= markdown_stream.LINE_LIMIT
    code = _run(["```\n" + "x" * 10_000 + "\n```\n"])
    assert [op.ends_line for op in code if isinstance(op, CodeText)] == [False, False, True]


def test_characters_that_break_documents_are_replaced() -> None:
    assert _run(["a\x00b\ud800c\ufdd0d\ufffce"]) == [Block("a\ufffdb\ufffdc\ufffdd\ufffde")]
