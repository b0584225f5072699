"""What goes between a seat and a world in another process: small JSON, no pickle, and no history twice.

A world's answer holds only what is new (the observation, the reward); the seat keeps the episode so far and puts the
records together again. So a step costs the same at the end of a long episode as at its beginning.
    text = pack_step(run);  acted = mirror.after("Up", unpack(text))
"""

from __future__ import annotations

import json
from typing import Any

from terrella.core.episode import EpisodeRun
from terrella.core.protocols import Task
from terrella.core.types import Episode, Situation, Split, Stop, Transition
from terrella.engines.episodes.seats import Acted
from terrella.verify.wire import pack_observation, pack_verdict, unpack_observation, unpack_verdict


def pack_task(task: Task, member: int) -> str:
    """Which instance to play, with whose noise."""
    return json.dumps({"seed": task.seed, "noise_seed": task.noise_seed, "split": task.split, "member": member})


def unpack_task(text: str) -> tuple[Task, int]:
    """The task that was packed."""
    data = json.loads(text)
    return Task(seed=data["seed"], noise_seed=data["noise_seed"], split=Split(data["split"])), data["member"]


def pack_start(run: EpisodeRun) -> str:
    """Where an episode begins."""
    identity = {**run.identity, "world": run.world.name, "policy": run.policy, "instruction": run.instruction}
    return json.dumps({"identity": identity, "first": pack_observation(run.first), **_open_moves(run)})


def pack_step(run: EpisodeRun) -> str:
    """What the last action brought."""
    step = run.transitions[-1]
    rest = {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated, "info": dict(step.info)}
    return json.dumps({"next": pack_observation(step.next_observation), "over": run.over, **rest, **_open_moves(run)})


def pack_end(episode: Episode) -> str:
    """How it ended; the steps are on the other side already."""
    return json.dumps({"stop": episode.stop, "outcome": pack_verdict(episode.outcome), "error": episode.error})


def _open_moves(run: EpisodeRun) -> dict[str, Any]:
    return {"actions": run.world.actions(), "steps_left": run.world.config.max_steps - len(run.transitions)}


class Mirror:
    """An episode that is played elsewhere, as its answers tell it."""

    def __init__(self, text: str) -> None:
        """From what `pack_start` said."""
        data = json.loads(text)
        self.identity = data["identity"]
        self.instruction: str = self.identity.pop("instruction")
        self.first = self.observation = unpack_observation(data["first"])
        self.transitions: list[Transition] = []
        self.situation = self._situation(data)

    def after(self, action: str, text: str) -> Acted:
        """One step further, from what `pack_step` said."""
        data = json.loads(text)
        seen = unpack_observation(data["next"])
        step = Transition(
            observation=self.observation, action=action, next_observation=seen, reward=data["reward"],
            terminated=data["terminated"], truncated=data["truncated"], info=data["info"],
        )  # fmt: skip
        self.transitions.append(step)
        self.observation = seen
        self.situation = self._situation(data)
        return Acted(step, self.situation, data["over"])

    def episode(self, text: str) -> Episode:
        """The record, from what `pack_end` said."""
        data = json.loads(text)
        identity = {**self.identity, "split": Split(self.identity["split"])}
        return Episode(
            first=self.first, transitions=tuple(self.transitions), stop=Stop(data["stop"]),
            outcome=unpack_verdict(data["outcome"]), error=data["error"], **identity,
        )  # fmt: skip

    def _situation(self, data: dict[str, Any]) -> Situation:
        return Situation(
            instruction=self.instruction, observation=self.observation, actions=tuple(data["actions"]),
            history=self.transitions, steps_left=data["steps_left"],
        )  # fmt: skip
