"""Bars of transformers do not break into ours, and are back afterwards."""

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from transformers.utils import logging

from terrella.models.presets import load_model
from terrella.models.quiet import without_bars


def test_saving_and_loading_a_folder_shows_no_bars(tmp_path, capfd):
    logging.enable_progress_bar()
    model, tokenizer = load_model("tiny-0.3m", vocabulary=("Up", "Down"))
    with without_bars():
        model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    load_model(tmp_path / "model")
    assert "%" not in capfd.readouterr().err
    assert logging.is_progress_bar_enabled()  # downloads keep theirs
    model.save_pretrained(tmp_path / "loud")
    assert "%" in capfd.readouterr().err
