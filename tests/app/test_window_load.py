# SPDX-License-Identifier: MIT OR Apache-2.0
"""Opening a model in the window: progress, failure, its card, the folders opened before."""

from __future__ import annotations

import time
from dataclasses import replace

from console_scripts import FAST
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent

from engine.fake_script import SCRIPTS, Script


def test_a_failed_load_keeps_the_model(console) -> None:
    one = console(replace(SCRIPTS["load-failure"], fail_loads_after=1))
    one.load("models/broken")
    page = one.window.model_page
    assert one.window.page == "model"
    assert page.error_card.report.title == "This folder cannot be opened"
    assert one.bridge.model.path == "models/first"
    one.window.show_chat()
    one.ask("still there?", wait=False)
    one.wait(lambda: one.engine.ring.count > 0)
    page.error_card.close_button.click()
    assert page.error_card is None


def test_load_progress_and_cancel(console) -> None:
    one = console(replace(SCRIPTS["slow-load"], load_s=30.0), load=False)
    one.window.model_page.open("models/large")
    page = one.window.model_page
    one.wait(lambda: one.bridge.load_rate_bps is not None and page.bar.value() > 0)
    assert " of 17.20 GB" in page.loading_detail.text()
    assert "GB/s" in page.loading_detail.text()
    assert not page.loading.isHidden()
    page.cancel_button.click()
    one.wait_idle()
    assert page.loading.isHidden()
    assert page.error_card is None
    assert page.notice.text() == (
        "◌  Opening models/large was cancelled. No model is loaded. Open it again to go on."
    )
    assert page.notice.isVisible()
    assert one.bridge.snapshot.state == "empty"
    page.open("models/large")
    assert page.notice.isHidden()
    one.wait(lambda: one.bridge.snapshot.state == "loading")
    one.window.stop()
    one.wait_idle()
    assert page.notice.isVisible()


def test_a_cancelled_load_tells_what_stays_loaded_and_leaves_the_page(console) -> None:
    one = console(FAST)
    one.engine.script = replace(FAST, load_s=30.0)
    one.window.show_chat()
    one.bridge.load("models/second")
    one.wait(lambda: one.bridge.snapshot.state == "loading")
    one.window.stop()
    one.wait_idle()
    assert one.window.page == "chat"
    assert "was cancelled. Scripted engine is still loaded." in one.window.model_page.notice.text()
    assert one.bridge.model.path == "models/first"


def test_a_load_that_takes_the_place_of_another(console) -> None:
    one = console(replace(SCRIPTS["slow-load"], load_s=1.0), load=False)
    one.bridge.load("models/one")
    one.wait(lambda: one.bridge.snapshot.state == "loading")
    one.window.model_page.open("models/two")
    one.wait(lambda: one.bridge.model is not None)
    assert one.bridge.model.path == "models/two"
    assert one.window.model_page.error_card is None
    one.wait_idle()


def test_the_card_says_everything(console) -> None:
    one = console(Script(demo=True))
    texts = one.window.model_page.card.texts
    assert texts["Folder"] == "models/first"
    assert texts["Speculation"] == "MTP, depth 3"
    assert texts["Read roof"] == "41.0 GB/s from memory, measured here"
    now = one.bridge.snapshot
    one.bridge.snapshot = replace(now, model=replace(now.model, speculation="lookup"))
    one.bridge.knobs_changed.emit((("QWEN38_LOOKUP", "1"),))
    assert one.window.model_page.card.texts["Speculation"] == "lookup"
    assert one.window.windowTitle().startswith("Rondo · demo model · BF16")
    assert one.chat.demo_badge.isVisibleTo(one.chat)


def test_recent_folders(console) -> None:
    one = console(FAST)
    one.load("models/second")
    assert one.settings.recent_models == ["models/second", "models/first"]
    page = one.window.model_page
    page.recent.itemActivated.emit(page.recent.item(1))
    one.wait(lambda: one.bridge.model.path == "models/first")


def test_a_dropped_folder_is_opened(console, tmp_path) -> None:
    one = console(FAST)
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(tmp_path))])
    copy, left, none = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton, Qt.KeyboardModifier(0)
    one.window.dropEvent(QDropEvent(QPointF(QPoint(5, 5)), copy, data, left, none))
    one.wait(lambda: one.bridge.model.path == str(tmp_path))
    assert one.bridge.snapshot.state == "ready"


def test_closing_during_a_load_ends_in_time(console) -> None:
    one = console(replace(SCRIPTS["slow-load"], load_s=30.0), load=False)
    one.bridge.load("models/large")
    one.wait(lambda: one.bridge.snapshot.state == "loading")
    engine, begin = one.engine, time.monotonic()
    one.window.close()
    assert time.monotonic() - begin < 2.0
    assert engine.snapshot().state == "closed"


def test_closing_before_the_engine_started(console, qtbot, theme, settings) -> None:
    from app.bridge import Bridge
    from app.window import Window

    window = Window(Bridge(lambda: None), theme, settings)
    window.show()
    assert window.close()
    window.deleteLater()


def test_the_same_folder_twice_is_one_load_to_the_operator(console) -> None:
    one = console(replace(SCRIPTS["slow-load"], load_s=0.6), load=False)
    one.bridge.load("models/one")
    one.wait(lambda: one.bridge.snapshot.state == "loading")
    one.bridge.load("models/one")
    one.wait(lambda: one.bridge.model is not None)
    one.wait_idle()
    assert one.window.model_page.error_card is None
    assert one.window.model_page.loading.isHidden()


def test_the_figures_of_another_model_are_not_kept(console) -> None:
    one = console(FAST)
    one.ask("hello")
    one.wait(lambda: one.window.live.decode.value != "—")
    one.load("models/second")
    one.wait(lambda: one.window.live.decode.value == "—")
    assert one.window.live.read.note == "roof 41.0"
