"""Settings of a WebRL run. Arms differ in `loss`, `curriculum`, `replay.ratio`, `outcome_judge`.

webrl_sokoban().arms["webrl_paper"].replace(phases=3)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from terrella.algos.webrl_config import WebRlUpdateConfig
from terrella.core.config import Local, Recorded, dump
from terrella.core.errors import ConfigError
from terrella.core.world import World
from terrella.data.replay import Replay
from terrella.engines.configs import LearnerConfig
from terrella.models.names import check_model_name
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.webrl.curriculum import Curriculum
from terrella.pipelines.webrl.language_agent import LanguageAgentConfig
from terrella.pipelines.webrl.outcome_model import OutcomeModel

POINTER = "pointer"
"""The small model: it points at one of the offered actions."""


@dataclass(frozen=True, kw_only=True)
class WebRlSettings(ModelPipeline.Config):
    """One arm of WebRL."""

    own_models: ClassVar[tuple[str, ...]] = (POINTER,)
    """Models that only this pipeline has."""
    model: Local[str] = POINTER
    """`pointer` (0.3M parameters, from scratch), or a chat model by name or folder."""
    agent: LanguageAgentConfig = field(default_factory=LanguageAgentConfig)
    """How a language model acts; a pointer network has `width` and `layers` instead."""
    families: Recorded[Mapping[str, World.Config]]
    """Families of tasks to practise, easy ones first where there is an order."""
    unseen: Recorded[Mapping[str, World.Config]] = field(default_factory=dict[str, World.Config])
    """Families that are only evaluated."""
    slots: int = 64
    """Worlds that are played at the same time."""
    env_threads: Local[int] = 0
    """Threads that step worlds beside each other, and reset those that the critic looks at.

    0 does so one after the other. A writing agent steps worlds in `agent.env_pool`.
    """
    read_instruction: bool = False
    """Put the world's instruction before its text."""
    width: int = 64
    layers: int = 2
    demonstrated: Recorded[tuple[str, ...]] = ()
    """Families that the expert demonstrates; empty for all."""
    demonstrations: int = 20
    """Per family."""
    traces: Local[str] = ""
    """A folder of WebRL's traces: its successes are the demonstrations, instead of an expert's."""
    imitation_updates: int = 150
    """Few on purpose: a policy that is certain does not explore."""
    curriculum: Literal["self_evolving", "fixed"] = "self_evolving"
    practice: Curriculum.Config = field(default_factory=Curriculum.Config)
    loss: Literal["webrl_paper", "webrl_released", "filtered_bc", "awr", "digirl", "grpo"] = (
        "webrl_paper"
    )
    learner: WebRlUpdateConfig = field(default_factory=WebRlUpdateConfig)
    reference: Literal["last_phase", "imitation"] = "last_phase"
    """The policy that a loss stays near: that of the last phase, as published, or the first one.

    With the first one, what practice changes does not add up from phase to phase.
    """
    replay: Replay.Config = field(default_factory=Replay.Config)
    group_size: int = 1
    """Attempts at each task; above 1 for `grpo`, which compares them."""
    outcome_judge: Literal["world", "model"] = "world"
    """Whether the world's verdict or an outcome model decides which attempts succeeded."""
    outcome_model: OutcomeModel.Config = field(default_factory=OutcomeModel.Config)
    phases: int = 6
    """A finished run can be continued with more phases."""
    phase_steps: int = 3000
    """Env steps of practice per phase, so that arms practise for equally many.

    What a phase overran, because attempts are played to their end, is taken from the next.
    """
    validation: int = 16
    """Distinct validation instances of each family after each phase; 0 for none."""
    test: int = 32
    """Distinct test instances of each family at the end; a small family may have fewer."""
    base_cache: Local[Path] = Path("runs/webrl-bases")
    """The first policies, shared by the arms of a seed."""
    out: Path = Path("runs/webrl")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.families or self.test < 1:
            raise ConfigError("webrl", "needs at least one family and one test instance of it")
        if self.imitation_updates < 1:
            raise ConfigError(
                "webrl.imitation_updates",
                f"is {self.imitation_updates}: the first policy would not have learnt anything",
                "set it to 1 or more",
            )
        if self.model != POINTER:
            check_model_name(self.model)

    def check_together(self) -> None:
        """Refuse settings that do not go together; they are set one by one, so not before a run."""
        if self.loss == "grpo" and self.group_size < 2:
            raise ConfigError(
                "webrl.group_size",
                f"is {self.group_size}: grpo compares attempts at one task, and trains nothing",
                "set it to 2 or more, such as group_size=4, or choose another loss",
            )
        if self.traces and self.model == POINTER:
            raise ConfigError(
                "webrl.traces",
                "hold actions in words, and the pointer network only points at what is offered",
                "set `model` to a language model, or leave traces out",
            )

        for name, tested in {**self.families, **self.unseen}.items():
            if any(tested.shares_tasks(dump(each)) for each in self.families.values()):
                raise ConfigError(
                    f"webrl.{name}",
                    "its test holds all tasks, and a family here practises some of them",
                    "leave test_all out, or practise other tasks",
                )

    @property
    def world(self) -> World.Config:
        """One of the worlds, for callers that show an example."""
        return next(iter(self.families.values()))

    @property
    def all_families(self) -> tuple[str, ...]:
        return (*self.families, *self.unseen)

    @property
    def learners(self) -> LearnerConfig | None:
        """Memory of the models that are trained in turns with a server that samples."""
        return None if self.model == POINTER else self.agent.training

    @property
    def unused(self) -> tuple[str, ...]:
        of_words = self.model != POINTER
        used = {
            "agent.training": of_words,
            "agent.critic": of_words and self.uses_critic,
            "agent.judge": of_words and self.judges,
        }
        return tuple(path for path, is_used in used.items() if not is_used)

    @property
    def patience(self) -> int:
        """Broken attempts in a row that end a run: more than a site that restarts would break."""
        return 2 * self.slots

    @property
    def judges(self) -> bool:
        """Whether an outcome model is trained and asked."""
        return self.outcome_judge == "model"

    @property
    def uses_critic(self) -> bool:
        """Imitation and GRPO need no critic, unless the curriculum does."""
        return self.loss not in ("grpo", "filtered_bc") or self.curriculum != "fixed"
