# SPDX-License-Identifier: MIT OR Apache-2.0
"""The console's own line icons, drawn in the colour of the palette in force."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from PySide6.QtCore import QByteArray, QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

ICON_DIR = Path(__file__).resolve().parents[1] / "assets" / "icons"
_SIZES_PX = (16, 20, 24, 32, 48, 64)


@lru_cache(maxsize=128)  # every message has four of them
def icon(name: str, color: str, disabled: str | None = None) -> QIcon:
    """Icon `name` in one colour (and in `disabled` where the control is off)."""
    source = (ICON_DIR / f"{name}.svg").read_text(encoding="utf-8")
    result = QIcon()
    for ink, mode in ((color, QIcon.Mode.Normal), (disabled, QIcon.Mode.Disabled)):
        if ink is None:
            continue
        renderer = QSvgRenderer(QByteArray(source.replace("currentColor", ink).encode()))
        for size_px in _SIZES_PX:
            result.addPixmap(_render(renderer, size_px), mode)
    return result


def app_icon() -> QIcon:
    """The product's mark, in its own colours."""
    renderer = QSvgRenderer(str(ICON_DIR / "rondo.svg"))
    result = QIcon()
    for size_px in (16, 32, 64, 128, 256):
        result.addPixmap(_render(renderer, size_px))
    return result


def _render(renderer: QSvgRenderer, size_px: int) -> QPixmap:
    pixmap = QPixmap(QSize(size_px, size_px))
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    renderer.render(painter, QRectF(0, 0, size_px, size_px))
    painter.end()
    return pixmap
