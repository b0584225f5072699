"""What pipelines ask of an engine: samplers, learners, SFT, RL with verified rewards.

Pipelines import this module and no trainer. Models go in and out as Hugging Face folders; device,
precision and sharding are the engine's. Torch, TRL and verl are imported by the call that needs
them, so a config can be built, checked and printed without them.
    with make_engine(EngineConfig(sampler="vllm"), work=Path("runs/x/engine")) as engine:
        engine.sft(start, examples, SftConfig(), Path("runs/x/model"), seed=0, progress=progress)
        with engine.sampler(Path("runs/x/model")) as sampler: ...
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from terrella.core.files import read_json_lines
from terrella.core.protocols import Sampler
from terrella.core.run_folder import make_once, rank, wait_for
from terrella.core.tokens import History
from terrella.engines.configs import EngineConfig, LearnerConfig, RlvrConfig
from terrella.engines.interface import Curve, Engine, Model
from terrella.models.names import BUNDLED, TINY


def check_settings(
    config: EngineConfig,
    *,
    rlvr: RlvrConfig | None = None,
    temperature: float = 1.0,
    history: History = "sampled",
    masks_tokens: bool = False,
    ranks: int = 0,
    machines: int = 0,
) -> None:
    """Refuse settings that the engine cannot run. The engine itself need not be installed.

    `rlvr`, `temperature` and `history` are those of the RL that the run will do, if any.
    `masks_tokens` says that the run samples under a mask of allowed ids, which not every engine
    can. `ranks` is the number of processes that will train, on so many `machines`; 0 is that of
    this launch.
    """
    if rlvr is not None and rlvr.steps:
        rlvr.check_rollout(temperature=temperature, history=history)
    if config.engine == "tinker":
        from terrella.engines.tinker import limits as tinker_limits

        tinker_limits.check_run(
            config, rlvr=rlvr, temperature=temperature, masks_tokens=masks_tokens
        )
    elif config.engine == "verl":
        from terrella.engines.verl import limits as verl_limits

        verl_limits.check_run(config, rlvr=rlvr, history=history)
    else:
        from terrella.engines.trl import limits as trl_limits

        trl_limits.check_run(config, rlvr=rlvr, ranks=ranks, machines=machines)


def make_engine(  # noqa: PLR0913  what a run will do; all but two have defaults
    config: EngineConfig,
    *,
    work: Path,
    rlvr: RlvrConfig | None = None,
    learners: LearnerConfig | None = None,
    temperature: float = 1.0,
    history: History = "sampled",
    masks_tokens: bool = False,
    model: str | None = None,
) -> Engine:
    """The engine of a run, after `check_settings`. Nothing is started yet.

    `work` is the folder for logs of servers. A server that samples for a trainer computes in the
    precision of `rlvr` or of `learners`, and leaves it memory. `model` is the one that RL begins
    with.
    """
    check_settings(
        config, rlvr=rlvr, temperature=temperature, history=history, masks_tokens=masks_tokens
    )
    if config.engine == "tinker":
        from terrella.engines.tinker.tinker_engine import TinkerEngine

        return TinkerEngine(config, work)
    if config.engine == "verl":
        from terrella.engines.verl.verl_engine import VerlEngine

        return VerlEngine(config, work)
    from terrella.engines.trl.trl_engine import TrlEngine

    return TrlEngine(
        config, work, rlvr=rlvr, learners=learners, temperature=temperature, model=model
    )


def open_sampler(model: Model, config: EngineConfig | None = None, *, work: Path) -> Sampler:
    """A sampler for the rest of this process, for commands that serve, plan or show."""
    held = contextlib.ExitStack()
    atexit.register(held.close)
    engine = held.enter_context(make_engine(config or EngineConfig(), work=work))
    return held.enter_context(engine.sampler(model))


def start_model(name: str, folder: Path, *, vocabulary: Sequence[str] = (), seed: int = 0) -> Model:
    """The model that training starts from.

    A model that is made from scratch is written to `folder`, by rank 0. Others are where they are.
    """
    if name in TINY:
        if rank() == 0:
            make_once(folder, lambda path: _from_scratch(name, path, vocabulary, seed))
        wait_for(folder / "config.json")
        return folder
    if name in BUNDLED:
        from terrella.models.bundled import bundled_folder

        return bundled_folder(name)
    return name


def _from_scratch(name: str, folder: Path, vocabulary: Sequence[str], seed: int) -> None:
    from terrella.models import export, presets

    folder.parent.mkdir(parents=True, exist_ok=True)
    model, tokenizer = presets.load_model(name, vocabulary=vocabulary, seed=seed)
    export.export_model(model, tokenizer, folder)


def load_tokenizer(model: Model) -> Any:
    from terrella.models import presets

    return presets.load_tokenizer(model)


def max_positions(model: Model) -> int:
    """The longest sequence of a model, in tokens."""
    from terrella.models import presets

    return presets.max_positions(model)


def read_curve(path: Path) -> Curve:
    """Metrics by step from a `curve.jsonl`."""
    return read_json_lines(path)
