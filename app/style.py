# SPDX-License-Identifier: MIT OR Apache-2.0
"""The style sheet, with the colours of the palette table as `$token`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template


def style_sheet(colors: Mapping[str, str], base_pt: float, *, icons: Path, check: str) -> str:
    """The window's style sheet for a palette and a base font size in points.

    `icons`: the folder of the arrows; `check`: the file there that is the tick of a checked box.
    """
    return Template(_SHEET).substitute(
        colors,
        icons=icons.as_posix(),
        check=check,
        small_pt=f"{base_pt * 0.9:.1f}",
        title_pt=f"{base_pt * 1.15:.1f}",
        headline_pt=f"{base_pt * 1.5:.1f}",
    )


_SHEET = """
QToolTip { background: $raised; color: $text; border: 1px solid $edge; padding: 4px; }
QMenuBar { background: $window; border-bottom: 1px solid $line; padding: 1px 4px; }
QMenuBar::item { padding: 4px 9px; background: transparent; }
QMenuBar::item:selected { background: $hover; }
QMenu { background: $raised; border: 1px solid $edge; padding: 4px 0; }
QMenu::item { padding: 5px 28px 5px 26px; }
QMenu::item:selected { background: $hover; }
QMenu::item:disabled { color: $edge; }
QMenu::separator { height: 1px; background: $line; margin: 4px 0; }
QSplitter::handle { background: $line; }
QSplitter::handle:horizontal { width: 1px; }
QSplitter::handle:vertical { background: transparent; }
QSplitter::handle:vertical:hover { background: $line; }
QScrollArea, QScrollArea > QWidget > QWidget#scrollBody { background: transparent; border: none; }
QScrollBar:vertical { background: transparent; width: 10px; margin: 0; }
QScrollBar::handle:vertical { background: $line; min-height: 28px; border-radius: 4px; margin: 1px 2px; }
QScrollBar::handle:vertical:hover { background: $edge; }
QScrollBar::handle:vertical:disabled { background: transparent; }
QScrollBar:horizontal { background: transparent; height: 10px; margin: 0; }
QScrollBar::handle:horizontal { background: $line; min-width: 28px; border-radius: 4px; margin: 2px 1px; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
QAbstractScrollArea::corner { background: transparent; border: none; }
QPushButton { background: $raised; color: $text; border: 1px solid $line;
  border-radius: 4px; padding: 5px 12px; }
QPushButton:hover { background: $hover; }
QPushButton:pressed { background: $line; }
QPushButton:focus { border: 1px solid $accent; }
QPushButton:disabled { color: $edge; background: $panel; }
QPushButton#primary { background: $accent; color: $on_accent; border: 1px solid $accent; }
QPushButton#primary:focus { border: 2px solid $text; padding: 4px 11px; }
QPushButton#primary:disabled { background: $panel; color: $edge; border: 1px solid $line; }
QPushButton#example { text-align: left; padding: 9px 14px; }
QToolButton { background: transparent; border: 1px solid transparent; border-radius: 4px; padding: 3px 6px;
  color: $dim; }
QToolButton:hover { background: $hover; color: $text; }
QToolButton:focus { border: 1px solid $accent; }
QToolButton:checked { color: $text; }
QToolButton#fold { padding-left: 0; }
QToolButton#rail { padding: 7px 2px 5px 2px; border-radius: 0; border: none;
  border-left: 2px solid transparent; font-size: ${small_pt}pt; }
QToolButton#rail:checked { border-left: 2px solid $accent; background: $panel; }
QToolButton#rail:focus { background: $hover; }
QPlainTextEdit, QLineEdit, QAbstractSpinBox, QComboBox { background: $raised; color: $text;
  border: 1px solid $line; border-radius: 4px; padding: 4px 6px; selection-background-color: $selection;
  selection-color: $text; }
QPlainTextEdit:focus, QLineEdit:focus, QAbstractSpinBox:focus, QComboBox:focus { border: 1px solid $accent; }
QLineEdit:disabled, QAbstractSpinBox:disabled, QComboBox:disabled { background: $panel; color: $edge; }
QAbstractSpinBox QLineEdit { border: none; padding: 0; background: transparent; }
QAbstractSpinBox::up-button, QAbstractSpinBox::down-button { subcontrol-origin: border; width: 19px;
  border: none; border-left: 1px solid $line; background: transparent; margin: 1px 1px 1px 0; }
QAbstractSpinBox::up-button { subcontrol-position: top right; border-top-right-radius: 3px; }
QAbstractSpinBox::down-button { subcontrol-position: bottom right; border-bottom-right-radius: 3px; }
QAbstractSpinBox::up-button:hover, QAbstractSpinBox::down-button:hover { background: $hover; }
QAbstractSpinBox::up-arrow { image: url("$icons/step-up.svg"); width: 9px; height: 9px; }
QAbstractSpinBox::down-arrow { image: url("$icons/step-down.svg"); width: 9px; height: 9px; }
QAbstractSpinBox::up-arrow:off, QAbstractSpinBox::up-arrow:disabled, QAbstractSpinBox::down-arrow:off,
QAbstractSpinBox::down-arrow:disabled { image: none; }
QComboBox { padding-left: 8px; }
QComboBox::drop-down { subcontrol-origin: border; subcontrol-position: center right; width: 22px;
  border: none; }
QComboBox::down-arrow { image: url("$icons/step-down.svg"); width: 10px; height: 10px; }
QComboBox QAbstractItemView { background: $raised; border: 1px solid $edge; border-radius: 0; padding: 2px;
  selection-background-color: $hover; selection-color: $text; }
QListView, QTableView { background: $panel; border: 1px solid $line; border-radius: 4px; outline: none; }
QListView::item { padding: 5px 8px; }
QListView::item:selected, QTableView::item:selected { background: $selection; color: $text; }
QListView:focus, QTableView:focus { border: 1px solid $accent; }
QHeaderView { background: $panel; border: none; }
QHeaderView::section { background: $panel; color: $dim; border: none;
  border-bottom: 1px solid $line; padding: 6px 13px; }
QHeaderView::up-arrow, QHeaderView::down-arrow { image: none; width: 0; height: 0; }
QTableView::item { padding: 0 10px; border: none; }
QTableView { gridline-color: $line; }
QTabWidget::pane { border: none; border-top: 1px solid $line; }
QTabBar::tab { background: transparent; color: $dim; padding: 6px 12px; border: none;
  border-bottom: 2px solid transparent; }
QTabBar::tab:selected { color: $text; border-bottom: 2px solid $accent; }
QTabBar::tab:focus { color: $accent; }
QProgressBar { background: $line; border: none; border-radius: 1px; max-height: 3px; min-height: 3px; }
QProgressBar::chunk { background: $accent; border-radius: 1px; }
QCheckBox { spacing: 7px; padding: 2px; }
QCheckBox:disabled { color: $edge; }
QCheckBox:focus { color: $accent; }
QCheckBox::indicator { width: 13px; height: 13px; border: 1px solid $edge; border-radius: 3px;
  background: $raised; }
QCheckBox::indicator:disabled { border: 1px solid $line; background: $panel; }
QCheckBox::indicator:checked { background: $accent; border: 1px solid $accent;
  image: url("$icons/$check"); }
QCheckBox::indicator:checked:disabled { background: $edge; border: 1px solid $edge; }
QCheckBox::indicator:focus { border: 1px solid $accent; }
QStatusBar { background: $window; border-top: 1px solid $line; }
QStatusBar::item { border: none; }
QLabel[role="dim"] { color: $dim; }
QLabel[role="small"] { color: $dim; font-size: ${small_pt}pt; }
QLabel[role="title"] { font-size: ${title_pt}pt; font-weight: 600; }
QLabel[role="headline"] { font-size: ${headline_pt}pt; font-weight: 600; }
QLabel[role="badge"] { color: $accent; border: 1px solid $accent; border-radius: 3px; padding: 0 6px;
  font-size: ${small_pt}pt; }
QLabel[role="warn"] { color: $warn; }
QLabel[role="bad"] { color: $bad; }
QLabel[role="ok"] { color: $ok; }
QWidget#rail, QWidget#header { background: $window; }
QWidget#header { border-bottom: 1px solid $line; }
QWidget#page, QWidget#scrollBody { background: $panel; }
QWidget#live { background: $window; }
QFrame#card { background: $raised; border: 1px solid $line; border-radius: 5px; }
QFrame#userCard { background: $raised; border: 1px solid $line; border-radius: 5px; }
QFrame#errorCard { background: $raised; border: 1px solid $line;
  border-left: 3px solid $bad; border-radius: 3px; }
QFrame#thinking { border: none; border-left: 2px solid $line; }
QFrame#rule { background: $line; border: none; max-height: 1px; min-height: 1px; }
QFrame#chip { background: $code; border: 1px solid $line; border-radius: 4px; }
QFrame#popover { background: $raised; border: 1px solid $edge; border-radius: 5px; }
QTextBrowser { background: transparent; border: none; color: $text;
  selection-background-color: $selection; selection-color: $text; }
"""
