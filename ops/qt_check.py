# SPDX-License-Identifier: MIT OR Apache-2.0
"""Says what keeps Qt from opening a window here: `qt_check.py offscreen|screen|display`.

offscreen: its libraries load and a font is there. screen: the X11 plugin's libraries load, too. display: the
display that the environment names can be opened. Prints one line and exits with 1 when something is missing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def check(level: str) -> str:
    """The first problem at a level; empty when there is none."""
    if level != "display":
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
    try:
        from PySide6.QtCore import QLibraryInfo
        from PySide6.QtGui import QFontDatabase, QGuiApplication
        from PySide6.QtWidgets import QApplication  # noqa: F401 - its library is what is tried
    except ImportError as error:
        return str(error)
    if level == "screen":
        plugins = Path(QLibraryInfo.path(QLibraryInfo.LibraryPath.PluginsPath))
        try:
            ctypes.CDLL(str(plugins / "platforms" / "libqxcb.so"))
        except OSError as error:
            return str(error)
    application = QGuiApplication([])
    families = QFontDatabase.families()
    application.quit()
    return "" if families else "no font is installed"


def main() -> int:
    """Print the problem, if any."""
    problem = check(sys.argv[1])
    if problem:
        print(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
