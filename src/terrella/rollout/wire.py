"""Messages between an env worker and a world in another process: small JSON, no pickle.

An answer holds only what is new (the observation, the reward); the worker keeps the episode so far.
So a step costs the same at the end of a long episode as at its beginning.
    answer = pack_step(run);  result = remote.after("Up", answer)
"""

from __future__ import annotations

import json
from typing import Any

from terrella.core.episode import EpisodeRun
from terrella.core.tokens import Task
from terrella.core.types import Episode, Situation, Split, Stop, Transition
from terrella.rollout.session import StepResult
from terrella.verify.wire import pack_observation, pack_verdict, unpack_observation, unpack_verdict


def pack_task(task: Task, member: int) -> str:
    """The instance to play, and the group member whose noise it gets."""
    return json.dumps(
        {
            "seed": task.seed,
            "noise_seed": task.noise_seed,
            "split": task.split,
            "written": task.written,
            "member": member,
        }
    )


def unpack_task(text: str) -> tuple[Task, int]:
    data = json.loads(text)
    task = Task(
        seed=data["seed"],
        noise_seed=data["noise_seed"],
        split=Split(data["split"]),
        written=data["written"],
    )
    return task, data["member"]


def pack_start(run: EpisodeRun) -> str:
    """Where an episode begins."""
    identity = {
        **run.identity,
        "world": run.world.name,
        "policy": run.policy,
        "instruction": run.instruction,
    }
    return json.dumps(
        {"identity": identity, "first": pack_observation(run.first), **_legal_moves(run)}
    )


def pack_step(run: EpisodeRun) -> str:
    """The result of the last action."""
    step = run.transitions[-1]
    rest = {
        "reward": step.reward,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "info": dict(step.info),
    }
    return json.dumps(
        {
            "next": pack_observation(step.next_observation),
            "over": run.over,
            **rest,
            **_legal_moves(run),
        }
    )


def pack_end(episode: Episode) -> str:
    """How the episode ended; the worker already has the steps."""
    return json.dumps(
        {"stop": episode.stop, "outcome": pack_verdict(episode.outcome), "error": episode.error}
    )


def _legal_moves(run: EpisodeRun) -> dict[str, Any]:
    return {
        "actions": run.world.actions(),
        "steps_left": run.world.config.max_steps - len(run.transitions),
    }


class RemoteEpisode:
    """An episode in another process, rebuilt from its answers."""

    def __init__(self, text: str) -> None:
        """From the answer of `pack_start`."""
        data = json.loads(text)
        self.identity = data["identity"]
        self.instruction: str = self.identity.pop("instruction")
        self.first = self.observation = unpack_observation(data["first"])
        self.transitions: list[Transition] = []
        self.situation = self._situation(data)

    def after(self, action: str, text: str) -> StepResult:
        """The next step, from the answer of `pack_step`."""
        data = json.loads(text)
        observation = unpack_observation(data["next"])
        step = Transition(
            observation=self.observation,
            action=action,
            next_observation=observation,
            reward=data["reward"],
            terminated=data["terminated"],
            truncated=data["truncated"],
            info=data["info"],
        )
        self.transitions.append(step)
        self.observation = observation
        self.situation = self._situation(data)
        return StepResult(step, self.situation, data["over"])

    def episode(self, text: str) -> Episode:
        """The record, from the answer of `pack_end`."""
        data = json.loads(text)
        identity = {**self.identity, "split": Split(self.identity["split"])}
        return Episode(
            first=self.first,
            transitions=tuple(self.transitions),
            stop=Stop(data["stop"]),
            outcome=unpack_verdict(data["outcome"]),
            error=data["error"],
            **identity,
        )

    def _situation(self, data: dict[str, Any]) -> Situation:
        return Situation(
            instruction=self.instruction,
            observation=self.observation,
            actions=tuple(data["actions"]),
            history=self.transitions,
            steps_left=data["steps_left"],
        )
