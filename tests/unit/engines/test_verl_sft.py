"""Rows on their way to verl's SFT trainer: the same ids, and only targets count."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.core.errors import ConfigError
from terrella.engines.trl.packs import TrainingRow
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.engines.verl.sft import SftRows, fit_rows, write_rows

ROWS = [
    TrainingRow(prompt_ids=(1, 2), completion_ids=(3, 4, 5), mask=(True, False, True)),
    TrainingRow(prompt_ids=(6,), completion_ids=(7,), mask=(True,)),
]


def test_rows_are_read_as_they_were_written(tmp_path):
    write_rows(ROWS, tmp_path / "rows.parquet")
    read = SftRows(tmp_path / "rows.parquet", tokenizer=None, config=None)
    assert len(read) == 2
    assert read[0]["input_ids"].tolist() == [1, 2, 3, 4, 5] and read[0]["loss_mask"].tolist() == [0, 0, 1, 0, 1]
    assert read[1]["position_ids"].tolist() == [0, 1]


def test_too_few_rows_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="2 rows do not fill"):
        fit_rows(ROWS, None, SftSettings.Config(batch_rows=4), tmp_path, tmp_path)
