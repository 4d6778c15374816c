# SPDX-License-Identifier: MIT OR Apache-2.0
"""The keyboard: every key of the table works, the list and the palette derive from it, controls have names."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QComboBox,
    QDialog,
    QLabel,
    QWidget,
)

from app.actions import ACTIONS
from app.finder import KeysDialog
from app.window import PAGES
from engine.fake_script import Script

FAST = Script(answer="ok", round_ms=3.0)
CTRL = Qt.KeyboardModifier.ControlModifier


def test_keys_are_unique_and_handlers_exist(console) -> None:
    one = console(FAST, load=False)
    keys = [key for spec in ACTIONS for key in spec.keys]
    assert len(keys) == len(set(keys))
    assert all(callable(getattr(one.window, spec.handler)) for spec in ACTIONS)
    assert set(one.window.actions_by_name) == {spec.name for spec in ACTIONS}


def test_ctrl_enter_sends_and_esc_stops(console, qtbot) -> None:
    one = console(Script(repeat=20, round_ms=6.0))
    one.window.activateWindow()
    field = one.chat.composer.field
    field.setFocus()
    qtbot.keyClicks(field, "hello")
    qtbot.keyClick(field, Qt.Key.Key_Return)
    assert one.engine.requests == [], "Enter alone begins a line"
    qtbot.keyClick(field, Qt.Key.Key_Return, CTRL)
    one.wait(lambda: one.engine.ring.count > 2)
    assert one.engine.requests[-1].messages[0].content == "hello\n"
    qtbot.keyClick(field, Qt.Key.Key_Escape)
    one.wait_idle()
    assert "by you" in one.answer.figures.text()


def test_esc_gives_an_edit_up(console, qtbot) -> None:
    one = console(FAST)
    one.ask("first")
    one.chat.view.messages[0].edit_button.click()
    field = one.chat.composer.field
    assert field.toPlainText() == "first"
    qtbot.keyClick(field, Qt.Key.Key_Escape)
    assert not one.chat.composer.editing.isVisible()
    assert field.toPlainText() == ""
    one.ask("second")
    assert [turn.text for turn in one.chat.transcript.turns if turn.role == "user"] == [
        "first",
        "second",
    ]


@pytest.mark.parametrize(
    ("key", "page"),
    [
        (Qt.Key.Key_1, "chat"),
        (Qt.Key.Key_2, "live"),
        (Qt.Key.Key_3, "kernels"),
        (Qt.Key.Key_4, "knobs"),
        (Qt.Key.Key_5, "compare"),
        (Qt.Key.Key_6, "runs"),
        (Qt.Key.Key_7, "model"),
    ],
)
def test_views(console, qtbot, key, page) -> None:
    one = console(FAST, load=False)
    qtbot.keyClick(one.window, Qt.Key.Key_3, CTRL)
    qtbot.keyClick(one.window, key, CTRL)
    assert one.window.page == page
    assert [n for n, b in one.window.rail_buttons.items() if b.isChecked()] == [page]


def test_ctrl_n_and_ctrl_l(console, qtbot) -> None:
    one = console(FAST)
    one.ask("hello")
    qtbot.keyClick(one.window, Qt.Key.Key_N, CTRL)
    assert one.chat.transcript.turns == []
    one.window.show_model()
    qtbot.keyClick(one.window, Qt.Key.Key_L, CTRL)
    assert one.window.page == "chat"
    assert one.window.focusWidget() is one.chat.composer.field


def test_ctrl_o_asks_for_a_folder(console, qtbot) -> None:
    one = console(FAST)
    qtbot.keyClick(one.window, Qt.Key.Key_O, CTRL)
    dialog = one.window.model_page._dialog
    assert dialog.isVisible()
    dialog.fileSelected.emit("models/chosen")
    dialog.close()
    one.wait(lambda: one.bridge.model.path == "models/chosen")


def test_f1_lists_every_key(console, qtbot) -> None:
    one = console(FAST, load=False)
    qtbot.keyClick(one.window, Qt.Key.Key_F1)
    dialog = one.window.findChild(KeysDialog)
    said = {label.text() for label in dialog.findChildren(QLabel)}
    assert {spec.text for spec in ACTIONS if spec.keys} <= said
    assert {"Message field", "New line", "Shift+Return", "PgUp", "PgDown"} <= said
    dialog.accept()


def test_the_palette_filters_and_runs(console, qtbot) -> None:
    one = console(FAST, load=False)
    qtbot.keyClick(one.window, Qt.Key.Key_K, CTRL)
    palette = one.window.palette_popup
    assert palette.isVisible()
    qtbot.keyClicks(palette.filter, "theme dark")
    assert palette.list.count() == 1
    qtbot.keyClick(palette.filter, Qt.Key.Key_Return)
    assert not palette.isVisible()
    assert one.theme.dark
    assert one.settings.theme == "dark"
    one.window.show_palette()
    qtbot.keyClicks(palette.filter, "view")
    qtbot.keyClick(palette.filter, Qt.Key.Key_Down)
    assert palette.list.currentRow() == 1
    qtbot.keyClick(palette.filter, Qt.Key.Key_Escape)


def test_every_control_has_a_name(console) -> None:
    one = console(FAST)
    one.ask("hello")
    for control in one.window.findChildren(QAbstractButton):
        inner = (
            isinstance(control.parent(), QAbstractSpinBox) or "Extension" in control.objectName()
        )
        if not inner and not control.objectName().startswith("qt_") and control.isVisible():
            assert control.text() or control.accessibleName(), control


def test_tab_leaves_the_message_field(console, qtbot) -> None:
    one = console(FAST)
    field = one.chat.composer.field
    field.setFocus()
    field.setPlainText("x")
    qtbot.keyClick(field, Qt.Key.Key_Tab)
    assert one.window.focusWidget() is not field
    assert field.toPlainText() == "x"


@pytest.mark.parametrize("key", [Qt.Key.Key_Tab, Qt.Key.Key_Backtab])
@pytest.mark.parametrize("page", ["kernels", "knobs"])
def test_tab_leaves_a_table(console, qtbot, page, key) -> None:
    one = console(Script(answer="ok", round_ms=3.0, demo=True))
    one.ask("hello")
    getattr(one.window, f"show_{page}")()
    view = getattr(one.window, page).view
    one.wait(lambda: view.model().rowCount() > 2)
    view.setFocus()
    view.setCurrentIndex(view.model().index(1, 0))
    qtbot.keyClick(view, key)
    assert one.window.focusWidget() is not view
    assert view.currentIndex().row() == 1


@pytest.mark.parametrize("key", [Qt.Key.Key_Tab, Qt.Key.Key_Backtab])
def test_tab_reaches_every_control(console, qtbot, key) -> None:
    one = console(Script(answer="ok", round_ms=3.0, demo=True))
    kinds = QAbstractButton | QComboBox | QAbstractSpinBox | QAbstractItemView
    for page in PAGES:
        getattr(one.window, f"show_{page}")()
        wanted = {
            widget
            for widget in one.window.findChildren(QWidget)
            if isinstance(widget, kinds) and widget.isVisible() and widget.isEnabled()
            and widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        }  # fmt: skip
        for _ in range(len(wanted) + 20):
            held = one.window.focusWidget()
            wanted.discard(held)
            qtbot.keyClick(held, key)
        assert not [widget.accessibleName() or str(widget) for widget in wanted], page


def test_about(console) -> None:
    one = console(FAST, load=False)
    one.window.show_about()
    dialogs = one.window.findChildren(QDialog)
    assert any(
        "switch interval" in label.text() for d in dialogs for label in d.findChildren(QLabel)
    )
    for dialog in dialogs:
        dialog.close()
