"""verl's data loader over numbered questions: a row is a number, and every process makes the question from it.

`data.train_files` is the run's plan; nothing is written to disk or sent around but the numbers.
    data.custom_cls.path=pkg://terrella.engines.verl.task_rows data.custom_cls.name=TaskRows
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from terrella.engines.verl.plan import Plan


class TaskRows(Dataset[dict[str, Any]]):
    """As many rows as the run asks questions."""

    def __init__(self, data_files: str, **_: Any) -> None:
        """`data_files` is where the plan lies; verl's tokenizer and data options are not needed."""
        settings = Plan.read(data_files).stage["rlvr"]
        self.count: int = settings["steps"] // settings["updates"] * settings["groups"]

    def __len__(self) -> int:
        """Questions of the whole run."""
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The number, and the field by which verl counts rows."""
        return {"index": index, "raw_prompt": [{"role": "user", "content": str(index)}]}
