# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every action of the window in one table, from which menus, shortcuts, palette and key list derive."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu

MENUS = ("File", "Chat", "Measure", "View", "Help")


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """`handler` names a method of the window; `group` separates menu sections."""

    name: str
    text: str
    menu: str
    group: int
    handler: str
    keys: tuple[str, ...] = ()
    checkable: bool = False


ACTIONS: tuple[ActionSpec, ...] = (
    ActionSpec("new_chat", "New chat", "File", 0, "new_chat", ("Ctrl+N",)),
    ActionSpec("open_conversation", "Open a conversation…", "File", 0, "open_conversation", ("Ctrl+Shift+O",)),
    ActionSpec("save_conversation", "Save the conversation…", "File", 0, "save_conversation", ("Ctrl+S",)),
    ActionSpec("open_model", "Open a model folder…", "File", 1, "open_model", ("Ctrl+O",)),
    ActionSpec("open_demo", "Open the demo model", "File", 1, "open_demo"),
    ActionSpec("reload", "Reload the model", "File", 1, "reload_model", ("Ctrl+R",)),
    ActionSpec("quit", "Quit", "File", 2, "close", ("Ctrl+Q",)),
    ActionSpec("send", "Send", "Chat", 0, "send", ("Ctrl+Return", "Ctrl+Enter")),
    ActionSpec("stop", "Stop", "Chat", 0, "stop", ("Esc",)),
    ActionSpec("regenerate", "Write the last answer again", "Chat", 1, "regenerate", ("Ctrl+Shift+R",)),
    ActionSpec("copy_answer", "Copy the last answer", "Chat", 1, "copy_answer", ("Ctrl+Shift+C",)),
    ActionSpec("focus", "Go to the message field", "Chat", 2, "focus_composer", ("Ctrl+L",)),
    ActionSpec("start_compare", "Start the A/B", "Measure", 0, "start_compare", ("Ctrl+Shift+B",)),
    ActionSpec("noise", "Measure the noise of this machine (A against A)", "Measure", 0, "measure_noise"),
    ActionSpec("use_b", "Use side B of the last A/B from now on", "Measure", 0, "use_candidate"),
    ActionSpec("export", "Export the report or runs as CSV…", "Measure", 1, "export", ("Ctrl+E",)),
    ActionSpec("find_knob", "Find a switch", "Measure", 2, "find_knob", ("Ctrl+F",)),
    ActionSpec("reset_knobs", "Reset the switches", "Measure", 2, "reset_knobs"),
    ActionSpec("save_profile", "Save the switches as a profile…", "Measure", 2, "save_profile"),
    ActionSpec("view_chat", "Chat", "View", 0, "show_chat", ("Ctrl+1",)),
    ActionSpec("view_live", "Live", "View", 0, "show_live", ("Ctrl+2",)),
    ActionSpec("view_kernels", "Kernels", "View", 0, "show_kernels", ("Ctrl+3",)),
    ActionSpec("view_knobs", "Knobs", "View", 0, "show_knobs", ("Ctrl+4",)),
    ActionSpec("view_compare", "Compare", "View", 0, "show_compare", ("Ctrl+5", "Ctrl+B")),
    ActionSpec("view_runs", "Runs", "View", 0, "show_runs", ("Ctrl+6",)),
    ActionSpec("view_model", "Model", "View", 0, "show_model", ("Ctrl+7",)),
    ActionSpec("panel", "Live panel beside the page", "View", 1, "toggle_panel", ("Ctrl+J",), True),
    ActionSpec("theme_system", "Theme: as the system", "View", 2, "theme_system", (), True),
    ActionSpec("theme_light", "Theme: light", "View", 2, "theme_light", (), True),
    ActionSpec("theme_dark", "Theme: dark", "View", 2, "theme_dark", (), True),
    ActionSpec("palette", "Find an action…", "Help", 0, "show_palette", ("Ctrl+K",)),
    ActionSpec("keys", "Keys", "Help", 0, "show_keys", ("F1",)),
    ActionSpec("about", "About Rondo", "Help", 1, "show_about"),
)  # fmt: skip

# What the message field makes of keys that no action has; told in the list of keys alone.
FIELD_KEYS: tuple[tuple[str, str], ...] = (
    ("New line", "Shift+Return"),
    ("Turn the conversation back by a page", "PgUp"),
    ("Turn the conversation on by a page", "PgDown"),
)


def key_text(spec: ActionSpec) -> str:
    """The first shortcut as the platform writes it, empty when there is none."""
    return native_text(spec.keys[0]) if spec.keys else ""


def native_text(key: str) -> str:
    """A shortcut as the platform writes it."""
    return QKeySequence(key).toString(QKeySequence.SequenceFormat.NativeText)


def allow(action: QAction, why_not: str) -> None:
    """Enable an action, or say in its tool tip why it has no effect."""
    action.setEnabled(not why_not)
    action.setToolTip(why_not)


def install(window: QMainWindow) -> dict[str, QAction]:
    """Make the actions of the table on `window` and its menu bar; returns them by name."""
    actions: dict[str, QAction] = {}
    for title in MENUS:
        menu: QMenu = window.menuBar().addMenu(title)
        menu.setToolTipsVisible(True)  # why an action cannot be taken now
        group = 0
        for spec in (spec for spec in ACTIONS if spec.menu == title):
            if spec.group != group:
                menu.addSeparator()
                group = spec.group
            action = QAction(spec.text, window)
            action.setCheckable(spec.checkable)
            action.setShortcuts([QKeySequence(key) for key in spec.keys])
            action.triggered.connect(getattr(window, spec.handler))
            menu.addAction(action)
            actions[spec.name] = action
    return actions
