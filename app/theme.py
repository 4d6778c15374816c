# SPDX-License-Identifier: MIT OR Apache-2.0
"""The two palettes in one table, and everything that is derived from it: QPalette, style sheet, fonts."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, Signal, Slot
from PySide6.QtGui import QColor, QFont, QFontDatabase, QPalette
from PySide6.QtWidgets import QApplication, QWidget

from app.icons import ICON_DIR
from app.style import style_sheet

CHOICES = ("system", "light", "dark")

# token: (light, dark)
TOKENS: dict[str, tuple[str, str]] = {
    "window": ("#eef0f1", "#121517"),
    "panel": ("#f8f9f9", "#181c1f"),
    "raised": ("#ffffff", "#1f2427"),
    "hover": ("#e3e7e9", "#282e32"),
    "line": ("#d3d9dc", "#2b3236"),
    "edge": ("#7f8b92", "#67737a"),
    "text": ("#171c1f", "#e3e8ea"),
    "dim": ("#566168", "#98a4ab"),
    "accent": ("#0a6a72", "#5ac4c9"),
    "on_accent": ("#ffffff", "#0c1416"),
    "selection": ("#c4e3e5", "#1f4a4f"),
    "code": ("#e9edee", "#22282c"),
    "ok": ("#1d6b3c", "#74c690"),
    "warn": ("#7d5200", "#e0b054"),
    "bad": ("#a3261f", "#f0897f"),
    "drafter_none": ("#75828a", "#7d8990"),
    "drafter_mtp": ("#0a7f88", "#5ac4c9"),
    "drafter_lookup": ("#8a5a00", "#e0b054"),
    "drafter_block": ("#6a4fb0", "#ab97e6"),
    "part_draft": ("#8a5a00", "#d9a94e"),
    "part_verify": ("#0a7f88", "#4fb3b8"),
    "part_sample": ("#6a4fb0", "#ab97e6"),
    "part_commit": ("#2c7a4b", "#6fbf8a"),
    "part_other": ("#8b969c", "#5d686e"),
}

# Text on ground; every pair has to reach a contrast of 4.5:1 in both palettes.
TEXT_PAIRS: tuple[tuple[str, str], ...] = (
    *((ink, ground) for ink in ("text", "dim") for ground in ("window", "panel", "raised", "hover")),
    *((ink, ground) for ink in ("accent", "ok", "warn", "bad") for ground in ("window", "panel", "raised")),
    ("text", "code"),
    ("text", "selection"),
    ("on_accent", "accent"),
)  # fmt: skip

DRAFTER_TOKENS = ("drafter_none", "drafter_mtp", "drafter_lookup", "drafter_block")


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two sRGB colours (WCAG 2.1: (L1 + 0.05) / (L2 + 0.05))."""

    def luminance(name: str) -> float:
        channels = (int(name[i : i + 2], 16) / 255 for i in (1, 3, 5))
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class Theme(QObject):
    """The palette in force. `choice` is system, light or dark; `changed` tells views to restyle.

    Attributes:
        dark: whether the dark palette is in force.
    """

    changed = Signal()
    _sheet_changed = Signal(str)

    def __init__(self, app: QApplication, choice: str = "system") -> None:
        super().__init__(app)
        self._app = app
        self._hints = app.styleHints()
        self.dark = False
        self.choice = choice if choice in CHOICES else "system"
        app.setStyle("Fusion")
        app.setFont(_with_tabular_digits(app.font()))
        self._hints.colorSchemeChanged.connect(self._on_scheme)
        self._apply()

    def set_choice(self, choice: str) -> None:
        """Follow the system or override it."""
        if choice not in CHOICES:
            raise ValueError(f"unknown theme {choice!r}; one of {', '.join(CHOICES)}")
        self.choice = choice
        self._apply()

    def dress(self, window: QWidget) -> None:
        """Give a window and all that it opens the style sheet, now and at every switch.

        The application's own would make Qt restyle each widget again for every widget that it lies in.
        """
        window.setStyleSheet(self._sheet)
        self._sheet_changed.connect(window.setStyleSheet)

    def color(self, token: str) -> str:
        """Hex colour of a token in the palette in force."""
        return TOKENS[token][self.dark]

    def qcolor(self, token: str) -> QColor:
        return QColor(self.color(token))

    def ui_font(self, scale: float = 1.0, *, bold: bool = False) -> QFont:
        """The interface font, `scale` times its base size, with tabular digits."""
        font = QFont(self._app.font())
        font.setPointSizeF(font.pointSizeF() * scale)
        font.setBold(bold)
        return font

    def mono_font(self, scale: float = 1.0) -> QFont:
        font = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
        font.setStyleHint(QFont.StyleHint.Monospace)
        font.setPointSizeF(self._app.font().pointSizeF() * scale)
        return font

    @Slot()
    def _on_scheme(self) -> None:
        if self.choice == "system":
            self._apply()

    def _apply(self) -> None:
        scheme = self._hints.colorScheme()
        # The offscreen platform and some window systems report no scheme; the light palette is the default.
        self.dark = self.choice == "dark" or (
            self.choice == "system" and scheme == Qt.ColorScheme.Dark
        )
        colors = {token: self.color(token) for token in TOKENS}
        self._app.setPalette(self._palette())
        check = "check-dark.svg" if self.dark else "check-light.svg"
        points = self._app.font().pointSizeF()
        self._sheet = style_sheet(colors, points, icons=ICON_DIR, check=check)
        self._sheet_changed.emit(self._sheet)
        self.changed.emit()

    def _palette(self) -> QPalette:
        role = QPalette.ColorRole
        table = {
            role.Window: "window",
            role.WindowText: "text",
            role.Base: "raised",
            role.AlternateBase: "panel",
            role.Text: "text",
            role.Button: "panel",
            role.ButtonText: "text",
            role.BrightText: "bad",
            role.ToolTipBase: "raised",
            role.ToolTipText: "text",
            role.PlaceholderText: "dim",
            role.Highlight: "selection",
            role.HighlightedText: "text",
            role.Link: "accent",
            role.LinkVisited: "accent",
            role.Accent: "accent",
            role.Light: "hover",
            role.Midlight: "line",
            role.Mid: "line",
            role.Dark: "edge",
            role.Shadow: "window",
        }
        palette = QPalette()
        for name, token in table.items():
            palette.setColor(name, self.qcolor(token))
        for name in (role.WindowText, role.Text, role.ButtonText):
            palette.setColor(QPalette.ColorGroup.Disabled, name, self.qcolor("edge"))
        return palette


def _with_tabular_digits(base: QFont) -> QFont:
    font = QFont(base)
    font.setFeature(QFont.Tag("tnum"), 1)
    if font.pointSizeF() <= 0:
        font.setPointSizeF(10.0)
    font.setPointSizeF(max(font.pointSizeF(), 9.5))
    return font
