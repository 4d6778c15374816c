# SPDX-License-Identifier: MIT OR Apache-2.0
"""A conversation as Markdown: its parts in order, and no text that takes the file over."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtGui import QTextDocument

from app.chat.conversation_markdown import to_markdown
from app.chat.readout import readout
from app.chat.transcript import Conversation, Turn
from engine.api import ErrorReport, Generation

WHEN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
DONE = Generation(
    "", "", (5, 6), 5, 0, "stop", 2, 6, 3, 2.0, 50.0, 9.0, 1e3, 1e2, 8.0, None, None, None
)
LINE = f"*{readout(DONE)}*"


def _written(question: str, answer: str, reasoning: str = "", **changes: object) -> str:
    turn = Turn("assistant", answer, reasoning, model="demo · BF16", generation=DONE)
    for name, value in changes.items():
        setattr(turn, name, value)
    return to_markdown(Conversation((Turn("user", question), turn), "other", WHEN))


def _answer(text: str) -> str:
    return _written("q", text).split("## Rondo\n\n")[1].removesuffix(f"\n\n{LINE}\n")


def test_the_parts_in_order() -> None:
    assert _written("Why?\nTell me.", "**Because.**\n", "Hm.\n\nSo.") == (
        "# Conversation of 2026-03-04 05:06\n\n"
        "Model: demo · BF16\n\n"
        "## You\n\nWhy?  \nTell me.\n\n"
        "## Rondo\n\n> **Thinking**\n>\n> Hm.\n>\n> So.\n\n"
        f"**Because.**\n\n{LINE}\n"
    )


def test_no_speculation_is_said_as_in_the_window() -> None:
    plain = Generation(
        "", "", (5,), 5, 0, "stop", 1, 0, 0, 1.0, None, 9.0, None, None, None, None, None, None
    )
    text = _written("q", "a", generation=plain, speculated=False)
    assert text.endswith(f"*{readout(plain, False)}*\n")
    assert "no\u00a0speculation" in text


def test_an_error_is_told() -> None:
    error = ErrorReport("It *failed*", "A\nNaN <b>.", "", "", "stack")
    text = _written("q", "half", generation=None, error=error, status="failed")
    assert text.endswith("half\n\n*ended by an error: It \\*failed\\*.* A NaN \\<b\\>.\n")
    assert "stack" not in text


def test_several_models_are_named_where_they_wrote() -> None:
    turns = [Turn("user", "q"), Turn("assistant", "a", model="one\n# x", generation=DONE)]
    turns += [Turn("user", "q"), Turn("assistant", "b", model="two", generation=DONE)]
    text = to_markdown(Conversation(tuple(turns), "two", WHEN))
    assert "Models: one \\# x, two\n" in text
    assert "## Rondo (one \\# x)\n\na" in text
    assert "## Rondo (two)\n\nb" in text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a <b>x</b> <!-- ", "a \\<b>x\\</b> \\<!-- "),
        ("![pic](http://example.invalid/?q=1)", "\\![pic](http://example.invalid/?q=1)"),
        ("`Vec<T>` and ``a ` <b>``", "`Vec<T>` and ``a ` <b>``"),
        ("``a <b> `", "``a \\<b> `"),
        ("\\<b> \\\\<b>", "\\<b> \\\\\\<b>"),
        ("<https://example.invalid/> 1 < 2", "<https://example.invalid/> 1 < 2"),
        ("```\n<b> ![x](y)\n```\n<b>", "```\n<b> ![x](y)\n```\n\\<b>"),
        ("```py\nx = 1", "```py\nx = 1\n```"),
        ("~~~~\n```\nx", "~~~~\n```\nx\n~~~~"),
        ("- a\n  ```\n  x", "- a\n  ```\n  x\n  ```"),
        ("a\x1b[31mb\rc\x07", "a\ufffd[31mb\nc\ufffd"),
        ("x" * 5000 + " `<b>`", "x" * 5000 + " `\\<b>`"),
    ],
)
def test_an_answer_stays_its_own(text: str, written: str) -> None:
    assert _answer(text) == written


LINES = st.sampled_from(
    ["```", "```py", "~~~", "~~~ `x`", "````", "", "word", "  word", "- item", "> quote", "<b>", "<!--",
     "<script>", "`", "a ``b", "**", "# x", "[a](b"]
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, max_size=10).map("\n".join))
def test_no_text_swallows_what_follows(qapp, text: str) -> None:
    document = QTextDocument()
    document.setMarkdown(_written(f"q\n{text}", text, text), QTextDocument.MarkdownDialectGitHub)
    headings, block = [], document.begin()
    while block.isValid():
        if block.blockFormat().headingLevel():
            headings.append(block.text())
        block = block.next()
    assert [name for name in headings if name in ("You", "Rondo")] == ["You", "Rondo"]
