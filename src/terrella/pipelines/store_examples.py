"""SFT examples from stored episodes: actions for an agent, next observations for a world model.

Prompts, replies and the world's turns are the codec's, so they are the tokens that a rollout of the
same world writes. Rules and limits come from the world; a store of recordings without a world has
its task in the steps.
    scenes = Scenes(world_config.build())
    for example in prediction_examples(scenes, codec, episode, outcome=None): ...
    example = imitation_example(scenes, codec, episode)
"""

from __future__ import annotations

from collections.abc import Iterator

from terrella.codecs.choose import sft_targets
from terrella.codecs.outcome import OutcomeCodec
from terrella.core.errors import ConfigError
from terrella.core.protocols import Codec
from terrella.core.tokens import TrainExample
from terrella.core.types import Episode, Frames, Situation
from terrella.core.world import World


class Scenes:
    """The situations of stored episodes, as they were when they were played."""

    def __init__(self, world: World | None) -> None:
        """Without a world, the task of a step is its instruction and no action is named."""
        self.world = world

    def situations(self, episode: Episode) -> list[Situation]:
        """The situation before each step."""
        instruction, actions, limit = self._setting(episode)
        steps = episode.transitions
        return [
            Situation(
                instruction=instruction,
                observation=step.observation,
                actions=actions,
                history=steps[:index],
                steps_left=limit - index,
            )
            for index, step in enumerate(steps)
        ]

    def _setting(self, episode: Episode) -> tuple[str, tuple[str, ...], int]:
        if isinstance(episode.first, Frames):
            raise ConfigError(
                episode.world,
                "its observations are frames, and a language model reads text",
                "use a video recipe of `terrella train-world-model`",
            )
        if self.world is None:
            first = episode.transitions[:1]
            task = str(first[0].info.get("task", "")) if first else ""
            return task, (), len(episode.transitions)
        seen, _ = self.world.reset(
            seed=episode.seed, options={"split": episode.split, "noise_seed": episode.noise_seed}
        )
        if seen != episode.first:
            raise ConfigError(
                self.world.name,
                f"shows something else at the start of the stored episode with seed {episode.seed}",
                "name the world that the store was made with, with the same settings",
            )
        return self.world.instruction, tuple(self.world.actions()), self.world.config.max_steps


def prediction_examples(
    scenes: Scenes, codec: Codec, episode: Episode, *, outcome: OutcomeCodec | None
) -> Iterator[TrainExample]:
    """Each step: its situation and action are the prompt, what followed is the completion.

    With `outcome`, the reward and the end of the episode follow the observation.
    """
    situations = scenes.situations(episode)
    for situation, step in zip(situations, episode.transitions, strict=True):
        reply = codec.answer_observation(step.next_observation)
        if outcome is not None:
            success = step.terminated and bool(step.info.get("success"))
            reply += outcome.answer(step.reward, step.terminated, success)
        yield TrainExample(
            prompt_ids=codec.ask_observation(situation, step.action),
            completion_ids=reply,
            mask=sft_targets(codec, reply),
        )


def imitation_example(scenes: Scenes, codec: Codec, episode: Episode) -> TrainExample | None:
    """The episode as an agent writes it: its actions are learnt, the world's turns are given.

    None for an episode without a step.
    """
    ids: list[int] = []
    mask: list[bool] = []
    situations = scenes.situations(episode)
    if not situations:
        return None
    for situation, step in zip(situations, episode.transitions, strict=True):
        forced = codec.world_turn(situation) if ids else ()
        reply = codec.answer_action([step.action])
        ids += [*forced, *reply]
        mask += [*[False] * len(forced), *sft_targets(codec, reply)]
    return TrainExample(
        prompt_ids=codec.ask_action(situations[0]), completion_ids=tuple(ids), mask=tuple(mask)
    )
