# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one window: rail, pages, live panel and status bar, and the handlers of the action table."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QSize, Qt, QUrl, Slot
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QMainWindow,
    QSplitter,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app import actions
from app.bridge import Bridge
from app.chat.page import ChatPage
from app.compare.page import ComparePage
from app.finder import AboutDialog, KeysDialog, Palette, product_version
from app.icons import app_icon, icon
from app.knobs.candidate import Candidate
from app.knobs.page import KnobsPage
from app.live.kernels import KernelsPage
from app.live.panel import LivePanel
from app.load.page import ModelPage
from app.runs.page import RunsPage
from app.settings import Settings
from app.status import StatusBar
from app.theme import Theme
from engine.api import ModelCard

PAGES = ("chat", "live", "kernels", "knobs", "compare", "runs", "model")
CLOSE_TIMEOUT_S = 10.0
_RAIL_PX = 66


class Window(QMainWindow):
    """Assembles the pages; what they do is theirs."""

    def __init__(self, bridge: Bridge, theme: Theme, settings: Settings) -> None:
        super().__init__()
        self.bridge, self.theme, self.settings = bridge, theme, settings
        self.page = "chat"
        self.ended_in_time = True
        self._panel_wanted = True
        self.setWindowIcon(app_icon())
        self.setAcceptDrops(True)
        self.setMinimumSize(900, 600)
        self.resize(1320, 860)
        self.chat = ChatPage(bridge, theme, settings)
        self.kernels = KernelsPage(bridge)
        self.candidate = Candidate(self)
        self.knobs = KnobsPage(bridge, theme, self.candidate)
        self.compare = ComparePage(bridge, theme, self.candidate)
        self.runs = RunsPage(bridge, theme)
        self.model_page = ModelPage(bridge, settings)
        self.live = LivePanel(bridge, theme)
        self.chat.entry = self.chat.composer.field
        self._pages = QStackedWidget()
        self._pages.setMinimumWidth(495)
        # "live" is the panel on the right, grown over the whole width.
        self._page_widgets = {
            "chat": self.chat,
            "kernels": self.kernels,
            "knobs": self.knobs,
            "compare": self.compare,
            "runs": self.runs,
            "model": self.model_page,
        }
        for page in self._page_widgets.values():
            self._pages.addWidget(page)
        self.splitter = QSplitter(Qt.Orientation.Horizontal)
        self.splitter.setChildrenCollapsible(False)
        self.splitter.setHandleWidth(1)
        self.splitter.addWidget(self._pages)
        self.splitter.addWidget(self.live)
        self.splitter.setStretchFactor(0, 1)
        self.splitter.setStretchFactor(1, 0)
        self.splitter.setSizes([850, 400])
        body = QWidget()
        row = QHBoxLayout(body)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        row.addWidget(self._make_rail())
        row.addWidget(self.splitter, 1)
        self.setCentralWidget(body)
        self.setStatusBar(StatusBar(bridge, theme))
        self.actions_by_name = actions.install(self)
        self.palette_popup = Palette(self.actions_by_name, self)
        self._restore()
        self.chat.empty.demo_wanted.connect(self.open_demo)
        self.chat.empty.folder_wanted.connect(self.open_model)
        self.model_page.attention_wanted.connect(self.show_model)
        self.knobs.compare_wanted.connect(self.show_compare)
        self.compare.knobs_wanted.connect(self.show_knobs)
        self.runs.rerun_wanted.connect(self._rerun)
        bridge.loaded.connect(self._on_loaded)
        bridge.busy_changed.connect(self._refresh_actions)
        self.chat.changed.connect(self._refresh_actions)
        theme.dress(self)
        theme.changed.connect(self._restyle)
        self._say_title(None)
        self._show_page("chat")
        self._refresh_actions()
        self._restyle()
        self.chat.composer.field.setFocus()

    def _make_rail(self) -> QWidget:
        rail = QWidget()
        rail.setObjectName("rail")
        rail.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        rail.setFixedWidth(_RAIL_PX)
        column = QVBoxLayout(rail)
        column.setContentsMargins(0, 6, 0, 8)
        column.setSpacing(2)
        self.rail_buttons: dict[str, QToolButton] = {}
        for number, page in enumerate(PAGES, 1):
            button = QToolButton()
            button.setObjectName("rail")
            button.setText(page.capitalize())
            button.setCheckable(True)
            button.setToolTip(f"{page.capitalize()} (Ctrl+{number})")
            button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
            button.setIconSize(QSize(20, 20))
            button.setFixedSize(_RAIL_PX, 54)
            button.clicked.connect(getattr(self, f"show_{page}"))
            column.addWidget(button)
            self.rail_buttons[page] = button
        column.addStretch(1)
        self.theme_button = QToolButton()
        self.theme_button.setToolTip("Light or dark")
        self.theme_button.setAccessibleName("Switch between the light and the dark theme")
        self.theme_button.setIconSize(QSize(18, 18))
        self.theme_button.clicked.connect(self.toggle_theme)
        column.addWidget(self.theme_button, 0, Qt.AlignmentFlag.AlignHCenter)
        return rail

    # Pages.

    def _show_page(self, page: str) -> None:
        held = self.focusWidget()
        self.page = page
        self._pages.setVisible(page != "live")
        if page != "live":
            self._pages.setCurrentWidget(self._page_widgets[page])
        self.live.setVisible(page == "live" or self._panel_wanted)
        for name, button in self.rail_buttons.items():
            button.setChecked(name == page)
        self.actions_by_name["panel"].setChecked(self._panel_wanted)
        self.actions_by_name["panel"].setEnabled(page != "live")
        # The keyboard follows the eye, unless it walks along the rail or is on the page already.
        shown = self._page_widgets.get(page, self.live)
        if held not in self.rail_buttons.values() and not (held and shown.isAncestorOf(held)):
            # Not by a focus proxy: Tab would pass over all that stands before it on the page.
            getattr(shown, "entry", shown).setFocus()

    @Slot()
    def show_chat(self) -> None:
        self._show_page("chat")

    @Slot()
    def show_live(self) -> None:
        self._show_page("live")

    @Slot()
    def show_kernels(self) -> None:
        self._show_page("kernels")

    @Slot()
    def show_knobs(self) -> None:
        self._show_page("knobs")

    @Slot()
    def show_compare(self) -> None:
        self._show_page("compare")

    @Slot()
    def show_runs(self) -> None:
        self._show_page("runs")

    @Slot()
    def show_model(self) -> None:
        self._show_page("model")

    @Slot()
    def toggle_panel(self) -> None:
        self._panel_wanted = not self._panel_wanted
        self._show_page(self.page)

    # Handlers of the table.

    @Slot(str)
    def _rerun(self, run_id: str) -> None:
        self.show_compare()
        self.compare.rerun(run_id)

    @Slot()
    def start_compare(self) -> None:
        self.show_compare()
        self.compare.start()

    @Slot()
    def measure_noise(self) -> None:
        self.show_compare()
        self.compare.measure_noise()

    @Slot()
    def use_candidate(self) -> None:
        self.show_compare()
        self.compare.use_candidate()

    @Slot()
    def export(self) -> None:
        """The report of the compare page where that is in view, the selected runs otherwise."""
        if self.page == "compare" and self.compare.view.report is not None:
            self.compare.choose_folder()
        else:
            self.show_runs()
            self.runs.choose_folder()

    @Slot()
    def find_knob(self) -> None:
        self.show_knobs()
        self.knobs.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.knobs.search.selectAll()

    @Slot()
    def save_profile(self) -> None:
        self.show_knobs()
        self.knobs.choose_profile()

    @Slot()
    def reset_knobs(self) -> None:
        self.show_knobs()
        self.knobs.reset_all()

    @Slot()
    def new_chat(self) -> None:
        self.show_chat()
        self.chat.new_chat()

    @Slot()
    def save_conversation(self) -> None:
        self.show_chat()
        self.chat.files.choose_target()

    @Slot()
    def open_conversation(self) -> None:
        self.show_chat()
        self.chat.files.choose()

    @Slot()
    def open_model(self) -> None:
        self.model_page.choose()

    @Slot()
    def open_demo(self) -> None:
        self.bridge.load_demo()

    @Slot()
    def reload_model(self) -> None:
        self.model_page.reload()

    @Slot()
    def send(self) -> None:
        self.show_chat()
        self.chat.send()

    @Slot()
    def stop(self) -> None:
        self.bridge.cancel()

    @Slot()
    def regenerate(self) -> None:
        self.show_chat()
        self.chat.regenerate()

    @Slot()
    def copy_answer(self) -> None:
        self.chat.copy_last_answer()

    @Slot()
    def focus_composer(self) -> None:
        self.show_chat()
        self.chat.composer.field.setFocus(Qt.FocusReason.ShortcutFocusReason)

    @Slot()
    def show_palette(self) -> None:
        self.palette_popup.open()

    @Slot()
    def show_keys(self) -> None:
        KeysDialog(self).open()

    @Slot()
    def show_about(self) -> None:
        AboutDialog(product_version(), self).open()

    @Slot()
    def theme_system(self) -> None:
        self._set_theme("system")

    @Slot()
    def theme_light(self) -> None:
        self._set_theme("light")

    @Slot()
    def theme_dark(self) -> None:
        self._set_theme("dark")

    @Slot()
    def toggle_theme(self) -> None:
        self._set_theme("light" if self.theme.dark else "dark")

    def _set_theme(self, choice: str) -> None:
        self.theme.set_choice(choice)
        self.settings.theme = choice

    # State.

    @Slot(object)
    def _on_loaded(self, card: ModelCard) -> None:
        self._say_title(card)
        self._refresh_actions()
        if self.page == "model" and self.model_page.error_card is None:
            self.show_chat()
            self.chat.composer.field.setFocus()

    def _say_title(self, card: ModelCard | None) -> None:
        if card is None:
            self.setWindowTitle("Rondo")
            return
        name = "demo model" if card.is_demo else card.name
        self.setWindowTitle(f"Rondo · {name} · {card.weight_format} · {card.device}")

    @Slot()
    def _refresh_actions(self, *_: object) -> None:
        busy, loaded = self.bridge.is_busy, self.bridge.model is not None
        self.actions_by_name["stop"].setEnabled(busy)
        for name in ("send", "regenerate"):
            self.actions_by_name[name].setEnabled(loaded and not busy)
        self.actions_by_name["reload"].setEnabled(loaded and not self.bridge.loading_path)
        files = self.chat.files
        actions.allow(self.actions_by_name["save_conversation"], files.why_not_save())
        actions.allow(self.actions_by_name["open_conversation"], files.why_not_open())

    @Slot()
    def _restyle(self) -> None:
        theme = self.theme
        for page, button in self.rail_buttons.items():
            button.setIcon(icon(page, theme.color("text")))
        self.theme_button.setIcon(icon("theme", theme.color("dim")))
        for choice in ("system", "light", "dark"):
            self.actions_by_name[f"theme_{choice}"].setChecked(theme.choice == choice)

    def _restore(self) -> None:
        self.restoreGeometry(self.settings.layout("window"))
        self.splitter.restoreState(self.settings.layout("splitter"))

    # Qt.

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if _folder(event.mimeData().urls()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        folder = _folder(event.mimeData().urls())
        if folder:
            event.acceptProposedAction()
            self.model_page.open(folder)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Save the layout, stop what runs, end the engine thread."""
        self.settings.set_layout("window", self.saveGeometry())
        if self.page != "live" and self._panel_wanted:
            self.settings.set_layout("splitter", self.splitter.saveState())
        self.settings.sync()
        self.hide()  # what runs may need a moment to stop
        self.ended_in_time = self.bridge.close(CLOSE_TIMEOUT_S)
        event.accept()


def _folder(urls: list[QUrl]) -> str:
    """The first local folder among dropped addresses."""
    for url in urls:
        path = url.toLocalFile()
        if path and Path(path).is_dir():
            return path
    return ""
