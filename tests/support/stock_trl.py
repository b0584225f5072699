"""A step of our trainer, and one of TRL's own trainer on the same episodes.

The second is what TRL means by an algorithm's name.
    rollout, ours = our_steps(folder, algorithm="grpo", denominator="all")
steps = stock_steps("grpo", episodes, folder, group_size=4, max_completion_length=12)
steps[0]["grad_norm"]
"""

from pathlib import Path
from typing import Any

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from datasets import Dataset
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import WrittenRewards, tiny_rollout, tiny_trainer
from tests.support.unanimous import with_unanimous_groups
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

SCALE = {"grpo": "group", "dapo": "group", "dr_grpo": "none"}
"""TRL's `scale_rewards` for each `loss_type`, as its documentation of the papers has it."""


GROUPS, SIZE = 4, 4


class Recorded(WrittenRewards):
    """Records its episodes; the last groups are unanimous."""

    episodes: list[Any] = []
    unanimous = 1

    async def run_async(self, *arguments: Any, **options: Any) -> Any:
        episodes = await super().run_async(*arguments, **options)
        self.episodes = with_unanimous_groups(episodes, SIZE, self.unanimous)
        return self.episodes


def our_steps(
    folder: Path, *, turns: int = 3, unanimous: int = 1, **settings: Any
) -> tuple[Recorded, list[dict[str, float]]]:
    """Our trainer: the rollout with its episodes, and what each optimizer step logged."""
    _, tokenizer = tiny_model()
    plain = tiny_rollout(tokenizer, max_turns=turns, turn_tokens=4 if turns > 1 else 9)
    rollout = Recorded(plain.config, plain.codec)
    rollout.unanimous = unanimous
    sizes = {"groups": GROUPS, "group_size": SIZE, "refill": 0}
    steps = settings.get("epochs", 1)
    trainer = tiny_trainer(folder, rollout=rollout, steps=steps, **sizes, **settings)
    trainer.train()
    return rollout, [row for row in trainer.state.log_history if "grad_norm" in row]


class ReplayedRloo(RLOOTrainer):
    """An `RLOOTrainer` that takes its completions from a list: it has no `rollout_func`."""

    episodes: list[Any] = []

    def _tokenize_prompts(self, prompts: Any) -> Any:
        return [list(episode.prompt_ids) for episode in self.episodes], None, {}

    def _generate_single_turn(self, *_: Any) -> Any:
        return [list(episode.completion_ids) for episode in self.episodes]


def stock_steps(
    algorithm: str, rollout: Recorded, folder: Path, *, epochs: int = 1
) -> list[dict[str, float]]:
    """TRL's trainer on the episodes of a rollout: what each optimizer step logged."""
    episodes = rollout.episodes
    common = {
        "output_dir": str(folder),
        "max_steps": epochs,
        "num_iterations": epochs,
        "num_generations": SIZE,
        "per_device_train_batch_size": len(episodes),
        "steps_per_generation": 1,
        "beta": 0.0,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_completion_length": rollout.config.max_model_tokens,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    options = {
        "reward_funcs": lambda **_: [episode.outcome.value for episode in episodes],
        "train_dataset": Dataset.from_dict({"prompt": ["x"] * GROUPS}),
    }
    trainer = _trainer(algorithm, episodes, common, options)
    trainer.train()
    return [row for row in trainer.state.log_history if "grad_norm" in row]


def _trainer(algorithm: str, episodes: list[Any], common: Any, options: Any) -> Any:
    model, tokenizer = tiny_model()
    options = {**options, "model": model, "processing_class": tokenizer}
    if algorithm == "rloo":
        trainer = ReplayedRloo(args=RLOOConfig(**common), **options)
        trainer.episodes = episodes
        return trainer
    config = GRPOConfig(**common, loss_type=algorithm, scale_rewards=SCALE[algorithm])
    return GRPOTrainer(args=config, **options, rollout_func=lambda prompts, _: _rolled(episodes))


def _rolled(episodes: list[Any]) -> dict[str, list[Any]]:
    return {
        "prompt_ids": [list(episode.prompt_ids) for episode in episodes],
        "completion_ids": [list(episode.completion_ids) for episode in episodes],
        "logprobs": [list(episode.logprobs) for episode in episodes],
        "env_mask": [[int(mine) for mine in episode.model_mask] for episode in episodes],
    }
