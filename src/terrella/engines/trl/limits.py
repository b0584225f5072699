"""What TRL cannot train, refused by name before anything starts. Nothing here imports torch.

check_run(EngineConfig(), rlvr=RlvrConfig(groups=3))  # ConfigError with two processes
"""

from __future__ import annotations

from terrella.core.errors import ConfigError
from terrella.core.run_folder import machine_count, processes
from terrella.engines.configs import EngineConfig, LearnerConfig, MemoryConfig, RlvrConfig
from terrella.engines.ranks import check_one_machine
from terrella.engines.training_parts import training_parts
from terrella.engines.vllm.placement import check_placement


def check_run(
    config: EngineConfig, *, rlvr: RlvrConfig | None = None, ranks: int = 0, machines: int = 0
) -> None:
    """Refuse a run from its settings alone; counts are those of `engines.engine.check_settings`."""
    for where, part in training_parts(config, rlvr):
        _check_attention(part, where)
        if not isinstance(part, LearnerConfig) and part.report_to:
            from terrella.engines.trl.arguments import trackers

            trackers(part.report_to)
    if rlvr is not None and rlvr.steps:
        rlvr.check(processes=ranks or processes())
        _check_group_size(rlvr)
        if config.sampler == "vllm":
            check_one_machine(machines or machine_count())
            check_placement(config.vllm, ranks=ranks or processes(), schedule=rlvr.schedule)


def _check_group_size(rlvr: RlvrConfig) -> None:
    if rlvr.group_size < 2:
        raise ConfigError(
            "rlvr.group_size",
            f"{rlvr.group_size}, and TRL's trainer plays each task at least twice, whatever the "
            "algorithm",
            "set group_size=2 or more, or use engine=verl",
        )


def _check_attention(part: MemoryConfig, where: str) -> None:
    if part.attention == "flash_attention_2":
        raise ConfigError(
            f"{where}.attention",
            "flash_attention_2 takes no mask, and a pack needs one",
            "use sdpa or flex_attention, or engine=verl",
        )
