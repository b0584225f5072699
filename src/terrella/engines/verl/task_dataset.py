"""verl's dataset: task indices. Every process makes the tasks from them.

`data.train_files` is the run's spec file; only indices are sent between processes.
    data.custom_cls.path=pkg://terrella.engines.verl.task_dataset data.custom_cls.name=TaskDataset
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from terrella.engines.verl.rollout_spec import RolloutSpec


class TaskDataset(Dataset[dict[str, Any]]):
    """The indices of all tasks of a run."""

    def __init__(self, data_files: str, **_: Any) -> None:
        """`data_files` is the spec file; verl's tokenizer and data options are not needed."""
        settings = RolloutSpec.read(data_files).settings
        self.count = settings.batches * settings.groups

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The index, and the field by which verl counts rows."""
        return {"index": index, "raw_prompt": [{"role": "user", "content": str(index)}]}
