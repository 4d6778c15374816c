# SPDX-License-Identifier: MIT OR Apache-2.0
"""The knobs page: every QWEN38_* switch, its value and its source; change, reset, save, mark as side B."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QFocusEvent, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QComboBox,
    QFileDialog,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QSplitter,
    QStackedWidget,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from app.bridge import Bridge
from app.errors import ErrorPlace
from app.knobs.candidate import Candidate
from app.knobs.detail import KnobDetail
from app.knobs.model import AVAILABLE_ROLE, COLUMNS, HEADING_ROLE, KnobFilter, KnobModel
from app.labels import name_choice, text_label, title_row
from app.theme import Theme
from engine.api import ErrorReport, KnobRow

REFRESH_MS = 1000
_ALL = "All groups"
_WIDE_CHARS = (25, 14, 9, 12, 15, 20)
_DETAIL_PX = 226
_NOTHING = "No switch fits. Clear the search or take the filters off."
_COMPARING = "An A/B is being timed; the switches wait for its end. Esc stops it."


class KnobsPage(QWidget):
    """Polls the switches once a second while it is in view. Signals: compare_wanted."""

    compare_wanted = Signal()

    def __init__(
        self, bridge: Bridge, theme: Theme, candidate: Candidate, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._bridge, self._theme, self._candidate = bridge, theme, candidate
        self._dialog: QFileDialog | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(18, 14, 18, 14)
        column.setSpacing(10)
        column.addLayout(self._make_header())
        self.notice = text_label()
        self.notice.hide()
        column.addWidget(self.notice)
        self.notice_comparing = QLabel(_COMPARING)
        self.notice_comparing.setProperty("role", "warn")
        self.notice_comparing.setWordWrap(True)
        self.notice_comparing.hide()
        column.addWidget(self.notice_comparing)
        column.addLayout(self._make_filters())
        self.errors = ErrorPlace(lambda: bridge.snapshot)
        column.addWidget(self.errors)
        self.model = KnobModel(candidate, self)
        self.filter = KnobFilter(self.model, self)
        self.view = self._make_view()
        self.detail = KnobDetail(candidate)
        self.detail.change_wanted.connect(self._change)
        self.detail.reload_wanted.connect(self._change_and_reload)
        self.nothing = QLabel(_NOTHING)
        self.nothing.setProperty("role", "dim")
        self.nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._places = QStackedWidget()
        self._places.addWidget(self.view)
        self._places.addWidget(self.nothing)
        column.addWidget(self._make_split(), 1)
        bridge.knobs_changed.connect(self._on_changed)
        bridge.busy_changed.connect(self._on_changed)
        bridge.knobs_refused.connect(self._on_refused)
        bridge.loaded.connect(self._on_changed)
        candidate.changed.connect(self._say_marks)
        theme.changed.connect(self.view.viewport().update)
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.refresh)
        self.entry = self.search
        self._say_marks()

    def _make_header(self) -> QHBoxLayout:
        row = title_row("Knobs")
        self.reset_button = QPushButton("Reset all")
        self.reset_button.setToolTip(
            "Back to the default of every switch that takes effect at once"
        )
        self.save_button = QPushButton("Save as profile…")
        self.compare_button = QPushButton("Compare")
        self.compare_button.setObjectName("primary")
        self.reset_button.clicked.connect(self.reset_all)
        self.save_button.clicked.connect(self.choose_profile)
        self.compare_button.clicked.connect(self.compare_wanted)
        for button in (self.reset_button, self.save_button, self.compare_button):
            row.addWidget(button)
        return row

    def _make_filters(self) -> QVBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(10)
        self.search = QLineEdit()
        self.search.setPlaceholderText("Find a switch by name, group or effect")
        self.search.setAccessibleName("Find a switch")
        self.search.setClearButtonEnabled(True)
        self.groups = QComboBox()
        name_choice(self.groups, "Group of switches")
        self.groups.addItem(_ALL)
        self.changed_only = QCheckBox("Changed only")
        self.usable_only = QCheckBox("Available only")
        self.search.textChanged.connect(self._refilter)
        self.search.returnPressed.connect(self._choose_first)
        self.groups.currentIndexChanged.connect(self._refilter)
        self.changed_only.toggled.connect(self._refilter)
        self.usable_only.toggled.connect(self._refilter)
        row.addWidget(self.search, 1)
        row.addWidget(self.groups)
        self.summary = QLabel()
        self.summary.setProperty("role", "dim")
        self.summary.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        below = QHBoxLayout()
        below.setSpacing(10)
        below.addWidget(self.summary, 1)
        below.addWidget(self.changed_only)
        below.addWidget(self.usable_only)
        both = QVBoxLayout()
        both.setSpacing(6)
        both.addLayout(row)
        both.addLayout(below)
        return both

    def _make_view(self) -> QTableView:
        view = _Table()
        view.setModel(self.filter)
        view.setItemDelegate(_Delegate(self._theme, view))
        view.setAccessibleName("Switches")
        view.setTabKeyNavigation(False)
        view.setShowGrid(False)
        view.setWordWrap(False)
        view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        view.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        view.verticalHeader().hide()
        view.verticalHeader().setDefaultSectionSize(view.fontMetrics().height() + 8)
        header = view.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setHighlightSections(False)
        header.setStretchLastSection(True)
        wide = view.fontMetrics().horizontalAdvance("0")
        for section, chars in enumerate(_WIDE_CHARS):
            header.resizeSection(section, wide * chars)
        view.selectionModel().currentRowChanged.connect(self._on_current)
        return view

    def _make_split(self) -> QSplitter:
        """The table over the chosen switch; what does not fit of the latter scrolls."""
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setWidget(self.detail)
        scroll.setMinimumHeight(_DETAIL_PX // 2)
        self._places.setMinimumHeight(_DETAIL_PX // 2)
        split = QSplitter(Qt.Orientation.Vertical)
        split.setChildrenCollapsible(False)
        split.setHandleWidth(9)
        split.addWidget(self._places)
        split.addWidget(scroll)
        split.setStretchFactor(0, 1)
        split.setStretchFactor(1, 0)
        split.setSizes([2 * _DETAIL_PX, _DETAIL_PX])
        return split

    def sizeHint(self) -> QSize:
        return QSize(820, 640)

    def showEvent(self, event) -> None:
        super().showEvent(event)
        self.refresh()
        self._timer.start(REFRESH_MS)

    def hideEvent(self, event) -> None:
        super().hideEvent(event)
        self._timer.stop()

    @Slot()
    def refresh(self) -> None:
        """Read the switches anew; not while an A/B puts those of its sides in effect."""
        comparing = self._bridge.is_comparing
        self.detail.lock(_COMPARING if comparing else "")
        self.notice_comparing.setVisible(comparing)
        if comparing and self.model.rows:
            self.reset_button.setEnabled(False)
            return
        rows = self._bridge.knobs()
        if rows != self.model.rows:
            kept = self._current()
            self.model.set_rows(rows)
            self._span_headings()
            if kept is not None and self._current() is None:
                self._choose(kept.name)
        if self.groups.count() == 1 and rows:
            self.groups.addItems(list(dict.fromkeys(row.group for row in rows)))
        usable = [row for row in rows if row.available]
        changed = [row for row in usable if row.value != row.default]
        self.summary.setText(f"{len(usable)} of {len(rows)} available, {len(changed)} changed")
        self.reset_button.setEnabled(any(row.flip != "reload" for row in changed))
        self.save_button.setEnabled(bool(rows))
        self.detail.show_row(self._current())

    def select(self, name: str) -> None:
        """Make a switch the current one; filters that hide it are taken off."""
        for widget in (self.changed_only, self.usable_only):
            widget.setChecked(False)
        self.search.clear()
        self.groups.setCurrentIndex(0)
        self._choose(name)

    def _choose(self, name: str) -> None:
        line = self.model.line_of(name)
        if line is not None:
            at = self.filter.mapFromSource(self.model.index(line, 0))
            if at.isValid():
                self.view.selectRow(at.row())
                self.view.scrollTo(at, QAbstractItemView.ScrollHint.PositionAtCenter)

    @Slot()
    def _choose_first(self) -> None:
        """Go from the search to the first switch that it found."""
        first = self.view.first()
        if first.isValid():
            self.view.setCurrentIndex(first)
            self.view.setFocus()

    def _current(self) -> KnobRow | None:
        index = self.filter.mapToSource(self.view.currentIndex())
        line = self.model.lines[index.row()] if index.isValid() else None
        return line if isinstance(line, KnobRow) else None

    def _span_headings(self) -> None:
        self.view.clearSpans()
        for row in range(self.filter.rowCount()):
            if self.filter.index(row, 0).data(HEADING_ROLE):
                self.view.setSpan(row, 0, 1, len(COLUMNS))
        self._places.setCurrentIndex(0 if self.filter.rowCount() or not self.model.rows else 1)

    @Slot(QModelIndex, QModelIndex)
    def _on_current(self, *_: object) -> None:
        self.detail.show_row(self._current())

    @Slot()
    def _refilter(self, *_: object) -> None:
        group = self.groups.currentText()
        self.filter.set_filter(
            self.search.text(),
            "" if group == _ALL else group,
            changed_only=self.changed_only.isChecked(),
            usable_only=self.usable_only.isChecked(),
        )
        self._span_headings()
        self.detail.show_row(self._current())

    @Slot()
    def _say_marks(self) -> None:
        count = len(self._candidate.values)
        self.compare_button.setText(f"Compare with B ({count})" if count else "Compare")
        self.compare_button.setToolTip("Open the compare page with the values marked as side B")

    # Changes.

    @Slot(str, str)
    def _change(self, name: str, value: str) -> None:
        self._drop_notices()
        self._bridge.set_knobs({name: value})

    @Slot(str, str)
    def _change_and_reload(self, name: str, value: str) -> None:
        self._drop_notices()
        card = self._bridge.model
        if card is None:
            self._bridge.set_knobs({name: value})
        else:
            self._bridge.load(card.path, knobs={name: value})

    @Slot()
    def reset_all(self) -> None:
        rows = [row for row in self.model.rows if row.available and row.value != row.default]
        live = {row.name: row.default for row in rows if row.flip != "reload"}
        self._drop_notices()
        if live:
            self._bridge.set_knobs(live)

    @Slot(object)
    def _on_changed(self, *_: object) -> None:
        if self.isVisible():
            self.refresh()

    @Slot(object, object)
    def _on_refused(self, _changes: object, report: ErrorReport) -> None:
        self.errors.show_report(report)
        self.refresh()

    # The profile.

    @Slot()
    def choose_profile(self) -> None:
        self._dialog = QFileDialog(self, "Save the switches as a profile", "rondo.env")
        self._dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        self._dialog.setNameFilters(["Profiles (*.env)", "All files (*)"])
        self._dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._dialog.fileSelected.connect(self.save_profile)
        self._dialog.open()

    @Slot(str)
    def save_profile(self, path: str) -> None:
        """Write what differs from the defaults as a profile file."""
        self._drop_notices()
        if self.errors.attempt(lambda: self._bridge.save_profile(path)):
            self.notice.setText(f"✓ Saved as {path}; use it with --profile.")
            self.notice.show()

    def _drop_notices(self) -> None:
        self.errors.clear()
        self.notice.hide()


class _Table(QTableView):
    """Its first line is a heading, which no key can choose: a key begins at the first switch."""

    def first(self) -> QModelIndex:
        """The first line that can be chosen; not valid where there is none."""
        model = self.model()
        lines = (model.index(row, 0) for row in range(model.rowCount()))
        return next((line for line in lines if line.flags()), QModelIndex())

    def focusInEvent(self, event: QFocusEvent) -> None:
        if not self.currentIndex().isValid() and event.reason() != Qt.FocusReason.MouseFocusReason:
            self.setCurrentIndex(self.first())
        super().focusInEvent(event)

    def moveCursor(
        self, action: QAbstractItemView.CursorAction, modifiers: Qt.KeyboardModifier
    ) -> QModelIndex:
        if not self.currentIndex().isValid():
            return self.first()
        return super().moveCursor(action, modifiers)


class _Delegate(QStyledItemDelegate):
    """Headings bold over a line; what is not available here in the dim colour."""

    def __init__(self, theme: Theme, parent=None) -> None:
        super().__init__(parent)
        self._theme = theme

    def initStyleOption(self, option: QStyleOptionViewItem, index: QModelIndex) -> None:
        super().initStyleOption(option, index)
        role = option.palette.ColorRole
        if index.data(HEADING_ROLE):
            option.font.setBold(True)
            option.state |= QStyle.StateFlag.State_Enabled
            option.palette.setColor(role.Text, self._theme.qcolor("text"))
        elif not index.data(AVAILABLE_ROLE):
            dim = self._theme.qcolor("dim")
            option.palette.setColor(role.Text, dim)
            option.palette.setColor(role.HighlightedText, dim)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex) -> None:
        super().paint(painter, option, index)
        if index.data(HEADING_ROLE):
            rect = option.rect
            painter.fillRect(
                rect.left(), rect.bottom(), rect.width(), 1, self._theme.qcolor("line")
            )
