"""A learner on verl's worker in this process: one rank, no Ray."""

from pathlib import Path
from typing import Any

from tests.support.verl_cpu.one_worker import KEYS, one_rank

from terrella.core.tokens import Head
from terrella.engines.configs import LearnerConfig, VerlConfig
from terrella.engines.verl.compose import compose
from terrella.engines.verl.learner import VerlLearner, worker_config
from terrella.engines.verl.learner_worker import LearnerWorker
from terrella.engines.verl.verl_keys import learner_keys


class OneWorker:
    """Stands in for a worker group: the answers of one worker, in a list."""

    world_size = 1

    def __init__(self, worker: LearnerWorker) -> None:
        self.worker = worker

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.worker, name)
        return lambda *arguments, **options: [method(*arguments, **options)]


def one_learner(folder: Path, head: Head, work: Path) -> VerlLearner:
    """A learner that starts from the model in a folder."""
    one_rank()
    config = LearnerConfig()
    keys = learner_keys(config, VerlConfig(devices=1), folder, head, seed=0)
    composed = compose(keys, KEYS)
    workers = OneWorker(LearnerWorker(worker_config(composed, head)))
    workers.load(str(folder))
    return VerlLearner(workers, config, head=head, folder=work, serve=None)
