# SPDX-License-Identifier: MIT OR Apache-2.0
"""Questions and answers in the window: send, stop, edit, ask again, and what does not fit."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from console_scripts import FAST, LONG
from PySide6.QtCore import QMimeData, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QMessageBox

from app.chat.composer import PASTE_LIMIT
from app.chat.readout import NBSP
from engine.api import Message
from engine.fake_script import SCRIPTS, THOUGHT, Script


def test_a_question_is_answered(console) -> None:
    one = console(FAST)
    one.ask("hello")
    assert one.engine.requests[-1].messages == (Message("user", "hello"),)
    assert one.answer.body.toPlainText() == "A short answer."
    assert one.answer.figures.text().endswith("stopped: end of answer")
    assert one.answer.strip.count == one.engine.ring.count > 0
    assert one.chat.composer.text() == ""
    one.ask("and again")
    assert [m.role for m in one.engine.requests[-1].messages] == ["user", "assistant", "user"]


def test_stop_ends_the_answer_and_keeps_its_text(console) -> None:
    one = console(LONG)
    one.ask("go", wait=False)
    one.wait(lambda: bool(one.chat.transcript.turns[-1].text))
    begin = time.monotonic()
    one.window.actions_by_name["stop"].trigger()
    one.wait_idle()
    assert time.monotonic() - begin < 1.0
    assert "stopped: by you" in one.answer.figures.text()
    assert one.answer.body.toPlainText().strip()


def test_stop_works_while_the_prompt_is_read(console) -> None:
    one = console("slow-prefill")
    one.ask("word " * 400, wait=False)
    one.wait(lambda: "reading the prompt" in one.answer.figures.text())
    assert "%" in one.answer.figures.text()
    one.window.stop()
    one.wait_idle()
    assert "by you" in one.answer.figures.text()
    assert one.engine.ring.count == 0


def test_regenerate_asks_the_same_question(console) -> None:
    one = console(FAST)
    one.ask("hello")
    one.window.regenerate()
    one.wait_idle()
    first, second = one.engine.requests
    assert second.messages == first.messages
    assert len(one.chat.view.messages) == len(one.chat.transcript.turns) == 2


def test_edit_and_send_again_drops_what_came_after(console) -> None:
    one = console(FAST)
    one.ask("first")
    one.ask("second")
    one.chat.view.messages[0].edit_button.click()
    assert one.chat.composer.text() == "first"
    assert not one.chat.composer.editing.isHidden()
    one.chat.composer.set_text("better")
    one.chat.send()
    one.wait_idle()
    assert [t.text for t in one.chat.transcript.turns if t.role == "user"] == ["better"]
    assert len(one.chat.view.messages) == 2
    assert one.chat.composer.editing.isHidden()


def test_an_edit_can_be_given_up(console) -> None:
    one = console(FAST)
    one.ask("first")
    one.chat.view.messages[0].edit_button.click()
    one.chat.composer.editing.close_button.click()
    assert one.chat.composer.text() == ""
    assert len(one.chat.transcript.turns) == 2


def test_new_chat_while_writing(console) -> None:
    one = console(LONG)
    one.ask("go", wait=False)
    one.wait(lambda: one.engine.ring.count > 3)
    one.window.new_chat()
    assert one.chat.view.messages == []
    one.wait_idle()
    assert one.chat.transcript.turns == []
    one.ask("fresh", wait=False)
    assert one.engine.requests[-1].messages == (Message("user", "fresh"),)


def test_copy_buttons(console) -> None:
    one = console(FAST)
    one.ask("hello")
    one.answer.copy_button.click()
    assert QGuiApplication.clipboard().text() == "A short **answer**.\n"
    one.chat.view.messages[0].copy_button.click()
    assert QGuiApplication.clipboard().text() == "hello"


def test_thinking_folds_once_the_answer_starts(console) -> None:
    one = console(replace(SCRIPTS["thinking"], round_ms=5.0))
    assert one.chat.composer.thinking.isVisibleTo(one.chat.composer)
    one.ask("why", wait=False)
    one.wait(lambda: bool(one.answer.thinking.body.source))
    assert one.answer.thinking.is_open
    one.wait_idle()
    assert not one.answer.thinking.is_open
    assert one.chat.transcript.turns[-1].reasoning == THOUGHT
    assert "memory traffic" not in one.answer.body.toPlainText()
    one.answer.thinking.button.click()
    assert one.answer.thinking.is_open
    one.chat.composer.thinking.setChecked(False)
    one.ask("again")
    assert one.engine.requests[-1].thinking is False
    assert one.answer.thinking.isHidden()


def test_a_model_without_thinking_has_no_switch(console) -> None:
    one = console(FAST)
    assert one.chat.composer.thinking.isHidden()
    one.ask("hello")
    assert one.engine.requests[-1].thinking is None


def test_sampling_reaches_the_engine_and_is_remembered(console) -> None:
    one = console(FAST)
    popover = one.chat.composer.sampling.popover
    popover.temperature.setValue(0.7)
    popover.seed.setValue(11)
    popover.max_tokens.setValue(3)
    popover.speculate.setChecked(False)
    one.ask("hello")
    asked = one.engine.requests[-1]
    assert (asked.temperature, asked.seed, asked.max_tokens, asked.speculate) == (0.7, 11, 3, False)
    assert "token limit reached" in one.answer.figures.text()
    assert f"no{NBSP}speculation" in one.answer.figures.text()
    assert one.settings.sampling.seed == 11
    assert "T 0.70" in one.chat.composer.sampling.text()


def test_an_error_shows_its_card_and_keeps_the_text(console) -> None:
    one = console("error")
    one.ask("hello")
    card = one.answer.error_card
    assert card.report.title == "The model produced invalid numbers"
    assert one.answer.body.toPlainText().strip()
    card.copy_button.click()
    report = QGuiApplication.clipboard().text()
    assert "Layer 5 (gated_delta) produced a NaN." in report
    assert "PySide6" in report
    assert "hello" not in report, "the conversation is not part of a report"
    one.answer.retry_button.click()
    one.wait_idle()
    assert len(one.engine.requests) == 2


def test_a_prompt_that_does_not_fit_is_refused_with_its_numbers(console) -> None:
    one = console(FAST)
    one.ask("x" * 40_000)
    assert "10\u202f008 tokens; the context holds 8\u202f192" in one.answer.error_card.report.cause
    assert one.answer.figures.text().startswith("refused")
    one.ask("short")
    assert one.engine.requests[-1].messages == (Message("user", "short"),)
    assert one.answer.body.toPlainText() == "A short answer."


def test_examples_of_the_demo_model_are_asked_by_a_click(console) -> None:
    one = console(Script(demo=True, answer="Because.", round_ms=3.0))
    one.wait(lambda: one.chat.empty.examples[0].isEnabled())
    one.chat.empty.examples[0].click()
    one.wait_idle()
    assert one.engine.requests[-1].messages[0].content == one.chat.empty.examples[0].text()


def test_a_megabyte_can_be_pasted_and_sent(console) -> None:
    one = console(FAST)
    data = QMimeData()
    data.setText("y" * 1_000_000)
    begin = time.process_time()
    one.chat.composer.field.insertFromMimeData(data)
    assert time.process_time() - begin < 0.5
    assert "1 000 000 characters" in one.chat.composer.attachment.text().replace("\u202f", " ")
    one.chat.composer.field.setPlainText("Sum this up:")
    begin = time.process_time()
    one.chat.send()
    assert time.process_time() - begin < 1.5
    sent = one.engine.requests[-1].messages[0].content
    assert sent == "Sum this up:\n\n" + "y" * 1_000_000
    assert len(one.chat.view.messages[0].body.toPlainText()) < 3000
    assert one.chat.composer.attachment.isHidden()


def test_a_paste_beyond_every_limit_says_so(console) -> None:
    one = console(FAST)
    one.chat.composer.attach("z" * 4_000_001)
    assert one.chat.composer.attachment.text().startswith("Not added")
    assert one.chat.composer.text() == ""
    assert len("z" * (PASTE_LIMIT + 1)) > PASTE_LIMIT


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "👩‍👩‍👧 🌊", "مرحبا (x) 1"])
def test_odd_questions_are_sent_clean(console, text: str) -> None:
    one = console(FAST)
    one.ask(text)
    one.engine.requests[-1].messages[0].content.encode("utf-8")
    assert one.answer.body.toPlainText() == "A short answer."


def test_links_ask_first_and_files_are_never_opened(console, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        "app.chat.page.QDesktopServices.openUrl", lambda url: opened.append(url.toString())
    )
    one = console(FAST)
    one.chat.confirm_link("https://example.invalid/a?b")
    box = one.chat._link_box
    assert box.informativeText() == "https://example.invalid/a?b"
    assert opened == []
    next(b for b in box.buttons() if b.text() == "Open").click()
    assert opened == ["https://example.invalid/a?b"]
    one.chat.confirm_link("file:///etc/passwd")
    box = one.chat._link_box
    assert [box.buttonRole(b) for b in box.buttons()] == [QMessageBox.ButtonRole.RejectRole]
    box.close()
    assert opened == ["https://example.invalid/a?b"]


def test_scrolling_away_stops_following(console) -> None:
    one = console(LONG)
    one.ask("go", wait=False)
    bar = one.chat.view.verticalScrollBar()
    one.wait(lambda: bar.maximum() > 200)
    assert bar.value() == bar.maximum()
    bar.setValue(20)
    high = bar.maximum()
    one.wait(lambda: bar.maximum() > high + 60)
    assert bar.value() == 20
    one.chat.view.follow()
    assert one.chat.view.is_following


def test_a_prompt_that_does_not_fit_is_cut_on_request(console) -> None:
    one = console(FAST)
    one.ask("x" * 40_000)
    one.answer.error_card.remedy_button.click()
    one.wait_idle()
    refused, cut = one.engine.requests
    assert (refused.truncate, cut.truncate) == (False, True)
    assert refused.messages == cut.messages
    assert one.answer.error_card is None
    assert not one.chat.composer.sampling.value.truncate, "asked for this prompt alone"


def test_another_error_offers_no_cut(console) -> None:
    one = console("error")
    one.ask("hello")
    assert one.answer.error_card.remedy_button is None


def test_an_edit_gives_the_draft_back(console) -> None:
    one = console(FAST)
    one.ask("first")
    one.chat.composer.set_text("half a thought")
    one.chat.view.messages[0].edit_button.click()
    one.chat.composer.editing.close_button.click()
    assert one.chat.composer.text() == "half a thought"


def test_an_edit_of_a_message_that_goes_becomes_a_new_one(console) -> None:
    one = console(FAST)
    one.ask("first")
    one.ask("second")
    one.chat.view.messages[2].edit_button.click()
    one.chat.view.messages[1].retry_button.click()
    one.wait_idle()
    assert one.chat.composer.editing.isHidden()
    assert one.chat.composer.text() == "second"
    one.chat.send()
    one.wait_idle()
    assert [t.text for t in one.chat.transcript.turns if t.role == "user"] == ["first", "second"]


def test_an_answer_that_was_refused_leaves_no_gap_above_its_reason(console) -> None:
    one = console(FAST)
    one.ask("x" * 40_000)
    answer = one.answer
    assert answer.error_card is not None
    assert not answer.body.isVisible()
    assert not answer.strip.isVisible()
    assert answer.figures.isVisible()
    one = console("error")
    one.ask("hello")
    assert one.answer.error_card is not None
    assert one.answer.body.isVisible()
    assert one.answer.strip.isVisible()


def test_page_keys_turn_the_conversation_over_from_the_message_field(console, qtbot) -> None:
    one = console(Script(repeat=6, round_ms=0.2))
    one.ask("go")
    bar, field = one.chat.view.verticalScrollBar(), one.chat.composer.field
    one.window.resize(900, 600)
    one.wait(lambda: bar.value() == bar.maximum() > bar.pageStep())
    qtbot.keyClick(field, Qt.Key.Key_PageUp)
    assert bar.value() == bar.maximum() - bar.pageStep()
    assert not one.chat.view.is_following
    qtbot.keyClick(field, Qt.Key.Key_PageDown)
    assert bar.value() == bar.maximum()
    assert one.chat.view.is_following
    field.setPlainText("line\n" * 40)
    qtbot.keyClick(field, Qt.Key.Key_PageUp)
    qtbot.keyClick(field, Qt.Key.Key_PageDown)
    assert bar.value() == bar.maximum(), "a text longer than the field is turned over itself"
