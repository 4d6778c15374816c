# SPDX-License-Identifier: MIT OR Apache-2.0
"""The card of the loaded model: everything the engine says about it, in words and units."""

from __future__ import annotations

from PySide6.QtWidgets import QFormLayout, QFrame, QVBoxLayout, QWidget

from app.format import byte_size, duration, grouped, parameters, significant
from app.labels import text_label
from engine.api import ModelCard


def card_rows(card: ModelCard) -> list[tuple[str, str]]:
    """(label, text) in the order they are shown."""
    thinking = "no switch in the chat template"
    if card.thinks:
        thinking = (
            f"switch in the chat template, {'on' if card.thinks_by_default else 'off'} by default"
        )
    roof = "not available: no read rate of this machine was measured"
    if card.roof_gbps is not None:
        roof = f"{significant(card.roof_gbps)} GB/s from {card.roof_place}, measured here"
    return [
        ("Folder", card.path),
        ("Weights", f"{card.weight_format}, {byte_size(card.weight_bytes)}"),
        ("Parameters", ", ".join(filter(None, (parameters(card.parameters), card.experts)))),
        ("Layers", grouped(card.layers)),
        ("Vocabulary", f"{grouped(card.vocab_size)} tokens"),
        (
            "Context",
            f"{grouped(card.context_tokens)} tokens, {byte_size(card.state_bytes)} of state",
        ),
        ("Runs on", card.device),
        ("Operations", f"{card.backend} implementation"),
        ("Speculation", card.speculation),
        ("Thinking", thinking),
        ("Read roof", roof),
        ("Loaded in", duration(card.load_s)),
    ]


class CardView(QFrame):
    """The rows of a card, its notices under them."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("card")
        self.setAccessibleName("The loaded model")
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(16, 12, 16, 14)
        self._column.setSpacing(8)
        self.title = text_label("No model is loaded", "title", wrap=False)
        self._column.addWidget(self.title)
        self._rows: QWidget | None = None
        self.texts: dict[str, str] = {}

    def show_card(self, card: ModelCard) -> None:
        self.title.setText(card.name + (" · demo model" if card.is_demo else ""))
        if self._rows is not None:
            self._column.removeWidget(self._rows)
            self._rows.hide()
            self._rows.deleteLater()
        self._rows = QWidget()
        form = QFormLayout(self._rows)
        form.setContentsMargins(0, 0, 0, 0)
        form.setHorizontalSpacing(22)
        form.setVerticalSpacing(5)
        self.texts = dict(card_rows(card))
        for name, text in self.texts.items():
            form.addRow(text_label(name, "dim", wrap=False), text_label(text))
        for notice in card.notices:
            form.addRow(text_label("◆ Note", "warn", wrap=False), text_label(notice))
        self._column.addWidget(self._rows)
