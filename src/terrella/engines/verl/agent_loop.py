"""Our episode driver as a verl agent loop: worlds are stepped here, tokens come from verl's rollout servers.

An episode is asked for by the number of its question and of its member; what comes out is what was sampled, with the
world's tokens masked, the sampler's log-probabilities, and the verdict (nan where there is none).
    [{name: terrella, _target_: terrella.engines.verl.agent_loop.EpisodeLoop, plan: runs/x/verl/plan.json}]
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from terrella.algos.credit import turn_payments
from terrella.core.errors import EngineError
from terrella.core.protocols import Sampled, Task, TokenEpisode, TokenRequest
from terrella.core.types import Split
from terrella.engines.verl.plan import Plan

QUESTIONS_KEPT = 4096
"""The members of a group ask for the same question: it is made once."""


@dataclass(slots=True)
class ServerSampler:
    """`core.protocols.Sampler` on verl's servers, for one episode. A session stays with the server that knows it."""

    servers: Any
    session: str = field(default_factory=lambda: uuid4().hex)
    versions: list[int] = field(default_factory=list[int])
    """Of the weights that wrote each turn."""
    read: int = 0
    cached: int = 0
    """Prompt tokens asked for, and how many of them a server still had in its cache."""

    async def sample(self, request: TokenRequest) -> Sampled:
        """One turn."""
        asked = {
            "temperature": request.temperature, "top_p": 1.0, "top_k": -1, "seed": request.seed, "logprobs": True,
            "max_tokens": request.max_new_tokens, "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,  # a turn ends with the codec's stop ids and nothing else
        }  # fmt: skip
        if request.allowed_ids is not None:
            raise EngineError("verl", "rollout servers report probabilities after masking only", "drop `allowed_ids`")
        try:
            output = await self.servers.generate(
                self.session, prompt_ids=list(request.prompt_ids), sampling_params=asked
            )
        except ray.exceptions.RayError as error:
            what = " ".join(str(error).split())[-300:]
            raise EngineError("rollout server", f"lost while it wrote for an episode: {what}") from error
        self._note(output.extra_fields, len(request.prompt_ids))
        ids = tuple(output.token_ids)
        stopped = bool(ids) and ids[-1] in request.stop_ids
        return Sampled(token_ids=ids, logprobs=tuple(output.log_probs or ()), stopped=stopped)

    def _note(self, extra: dict[str, Any], prompt: int) -> None:
        self.versions.append(int(extra.get("global_steps") or 0))
        self.read += prompt
        self.cached += int(extra.get("num_cached_tokens") or 0)

    def release(self, session: str) -> None:
        """Nothing is kept here: the servers' prefix cache forgets by itself."""


class Desk:
    """What all episodes of one process share: the driver with its worlds, and the questions."""

    def __init__(self, plan: str, tokenizer: Any) -> None:
        """Made once per process."""
        source = Plan.read(plan).source()
        self.driver = source.driver(source.codec(tokenizer))
        self.settings = source.config.rlvr
        self.seed = int(source.config.seed)
        self.task = functools.lru_cache(QUESTIONS_KEPT)(self._task)
        self._tasks = source.tasks(Split.TRAIN)

    def _task(self, index: int) -> Task:
        return self._tasks(index)


_DESKS: dict[str, Desk] = {}


def desk(plan: str, tokenizer: Any) -> Desk:
    """The desk of this process: verl makes a new loop for every episode."""
    if plan not in _DESKS:
        _DESKS[plan] = Desk(plan, tokenizer)
    return _DESKS[plan]


class EpisodeLoop(AgentLoopBase):  # type: ignore[misc]
    """One episode of one member."""

    def __init__(self, server_manager: Any, tokenizer: Any, plan: str, **_: Any) -> None:
        """Not verl's own: it would look for a chat template, and tokens are our codec's business."""
        self.servers, self.desk = server_manager, desk(plan, tokenizer)
        self.filler = int(tokenizer.eos_token_id)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play member `session_id` of question `index`."""
        sampler = ServerSampler(self.servers)
        task = self.desk.task(int(row["index"]))
        episode = await self.desk.driver.run_one(sampler, task, int(row["session_id"]), self.desk.seed)
        return as_output(
            episode, sampler, filler=self.filler, reward=self.desk.settings.reward, step=int(row["global_steps"])
        )


def as_output(episode: TokenEpisode, sampler: ServerSampler, *, filler: int, reward: str, step: int) -> AgentLoopOutput:
    """The episode in verl's words. One that broke before a token was written becomes one masked filler token."""
    written, masked = bool(episode.completion_ids), episode.outcome.value is None
    paid = [] if masked else turn_payments(episode, reward)
    versions = sampler.versions or [step - 1]
    extra = {
        "min_global_steps": min(versions), "max_global_steps": max(versions), "turn_scores": [], "tool_rewards": [],
        "status": episode.outcome.status.value, "evidence": episode.outcome.evidence if masked else "",
        "masked": masked, "paid": paid, "turn_ends": [] if masked else list(episode.turn_ends),
        "prompt_read": sampler.read, "prompt_cached": sampler.cached,
    }  # fmt: skip
    return AgentLoopOutput(
        prompt_ids=list(episode.prompt_ids) or [filler],
        response_ids=list(episode.completion_ids) if written else [filler],
        response_mask=[int(mine) for mine in episode.model_mask] if written else [0],
        response_logprobs=list(episode.logprobs) if written else [0.0],
        reward_score=math.nan if masked else sum(paid), num_turns=len(episode.turn_ends),
        metrics=AgentLoopMetrics(), extra_fields=extra,
    )  # fmt: skip
