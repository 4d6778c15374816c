# SPDX-License-Identifier: MIT OR Apache-2.0
"""How answers are drawn: a button that says it in one line, and the popover that changes it."""

from __future__ import annotations

from PySide6.QtCore import QLocale, QPoint, QSize, Qt, Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QDoubleSpinBox,
    QFormLayout,
    QFrame,
    QLabel,
    QPushButton,
    QSizePolicy,
    QSpinBox,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.icons import icon
from app.settings import Sampling
from app.theme import Theme


class SamplingButton(QToolButton):
    """Shows the sampling in force and opens its popover. Signal: changed(Sampling)."""

    changed = Signal(object)

    def __init__(self, theme: Theme, sampling: Sampling, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._texts = [""]
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.setIconSize(QSize(14, 14))
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Sampling")
        self.popover = SamplingPopover(sampling, self)
        self.value = self.popover.sampling()  # within what its controls take
        self.popover.changed.connect(self._take)
        self.clicked.connect(self._open)
        self.restyle()
        self._say()

    def restyle(self) -> None:
        self.setIcon(icon("sliders", self._theme.color("dim")))

    @Slot()
    def _open(self) -> None:
        self.popover.adjustSize()
        above = self.mapToGlobal(QPoint(0, -self.popover.height() - 6))
        self.popover.move(above)
        self.popover.show()
        self.popover.temperature.setFocus()

    @Slot(object)
    def _take(self, sampling: Sampling) -> None:
        self.value = sampling
        self._say()
        self.changed.emit(sampling)

    def sizeHint(self) -> QSize:
        return self._size_for(0)

    def minimumSizeHint(self) -> QSize:
        return self._size_for(-1)

    def _size_for(self, at: int) -> QSize:
        """The size with one of the texts, longest first, whichever is shown."""
        wide = self.fontMetrics().horizontalAdvance
        hint = super().sizeHint()
        return hint + QSize(wide(self._texts[at]) - wide(self.text()), 0)

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._fit()

    def _say(self) -> None:
        self._texts = [f" {text}" for text in self.value.summaries()]
        self.setToolTip(f"Sampling: {self.value.summary()}")
        self.updateGeometry()
        self._fit()

    def _fit(self) -> None:
        room = self.width() if self.isVisible() else self.sizeHint().width()
        fitting = [n for n in range(len(self._texts)) if self._size_for(n).width() <= room]
        self.setText(self._texts[fitting[0] if fitting else -1])

    def showEvent(self, event) -> None:
        super().showEvent(event)
        self._fit()


class SamplingPopover(QFrame):
    """The controls. Signal: changed(Sampling)."""

    changed = Signal(object)

    def __init__(self, sampling: Sampling, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup | Qt.WindowType.FramelessWindowHint)
        self.setObjectName("popover")
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 12, 14, 12)
        column.setSpacing(8)
        form = QFormLayout()
        form.setHorizontalSpacing(18)
        form.setVerticalSpacing(6)
        self.temperature = _real(0.0, 2.0, 0.05, "0 is greedy: always the likeliest token")
        self.top_p = _real(0.01, 1.0, 0.05, "Keep the likeliest tokens up to this share; 1 is off")
        self.top_k = _whole(0, 10_000, "Keep this many likeliest tokens; 0 is off")
        self.min_p = _real(
            0.0, 1.0, 0.01, "Drop tokens below this share of the likeliest; 0 is off"
        )
        self.seed = _whole(-1, 2**31 - 1, "The same seed draws the same answer")
        self.seed.setSpecialValueText("random")
        self.max_tokens = _whole(1, 131_072, "The answer stops here at the latest")
        for label, control in (
            ("Temperature", self.temperature),
            ("top_p", self.top_p),
            ("top_k", self.top_k),
            ("min_p", self.min_p),
            ("Seed", self.seed),
            ("Token limit", self.max_tokens),
        ):
            control.setAccessibleName(label)
            form.addRow(QLabel(label), control)
        column.addLayout(form)
        self.speculate = QCheckBox("Speculation (draft and verify)")
        self.speculate.setToolTip("Changes the speed, not the answer")
        self.truncate = QCheckBox("Drop the oldest part of a prompt that does not fit")
        column.addWidget(self.speculate)
        column.addWidget(self.truncate)
        self.reset = QPushButton("Reset to defaults")
        self.reset.clicked.connect(self._reset)
        column.addWidget(self.reset)
        self._fill(sampling)
        for control in (self.temperature, self.top_p, self.top_k, self.min_p):
            control.valueChanged.connect(self._emit)
        for control in (self.seed, self.max_tokens):
            control.valueChanged.connect(self._emit)
        for box in (self.speculate, self.truncate):
            box.toggled.connect(self._emit)

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=round(self.temperature.value(), 4),
            top_p=round(self.top_p.value(), 4),
            top_k=self.top_k.value(),
            min_p=round(self.min_p.value(), 4),
            seed=None if self.seed.value() < 0 else self.seed.value(),
            max_tokens=self.max_tokens.value(),
            speculate=self.speculate.isChecked(),
            truncate=self.truncate.isChecked(),
        )

    def _fill(self, sampling: Sampling) -> None:
        _set(self.temperature, sampling.temperature)
        _set(self.top_p, sampling.top_p)
        _set(self.top_k, sampling.top_k)
        _set(self.min_p, sampling.min_p)
        _set(self.seed, -1 if sampling.seed is None else sampling.seed)
        _set(self.max_tokens, sampling.max_tokens)
        self.speculate.setChecked(sampling.speculate)
        self.truncate.setChecked(sampling.truncate)

    @Slot()
    def _reset(self) -> None:
        self._fill(Sampling())

    @Slot()
    def _emit(self) -> None:
        self.changed.emit(self.sampling())


class _Real(QDoubleSpinBox):
    """Shows a decimal point, as all the window does in any locale, and takes a comma for one."""

    def __init__(self) -> None:
        super().__init__()
        self.setLocale(QLocale.c())

    def validate(self, text: str, position: int) -> object:
        return super().validate(text.replace(",", "."), position)


def _set(box: QSpinBox | QDoubleSpinBox, value: float) -> None:
    """Show the nearest value that the box takes; stored settings may hold any, and one that is no number."""
    box.setValue(min(box.maximum(), max(box.minimum(), value)))


def _real(low: float, high: float, step: float, tip: str) -> QDoubleSpinBox:
    box = _Real()
    box.setRange(low, high)
    box.setSingleStep(step)
    box.setDecimals(2)
    return _shape(box, tip)


def _whole(low: int, high: int, tip: str) -> QSpinBox:
    box = QSpinBox()
    box.setRange(low, high)
    return _shape(box, tip)


def _shape(box, tip: str):
    box.setToolTip(f"{tip}.")
    box.setAlignment(Qt.AlignmentFlag.AlignRight)
    box.setMinimumWidth(120)
    return box
