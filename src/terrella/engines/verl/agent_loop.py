"""Our `Rollout` as a verl agent loop: worlds step here, tokens come from verl's rollout servers.

verl asks for an episode by task index and group member. The output holds the sampled tokens, with
the world's tokens masked, the sampler's log-probabilities, and the reward (nan if masked).
    - name: terrella
      _target_: terrella.engines.verl.agent_loop.EpisodeLoop
      spec_file: runs/x/verl/rollout_spec.json
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from terrella.algos.credit import rewards_by_turn
from terrella.core.errors import EngineError
from terrella.core.tokens import Sampled, Task, TokenEpisode, TokenRequest
from terrella.engines.verl.rollout_spec import RolloutSpec
from terrella.models.presets import generation_ends

CACHED_TASKS = 4096
"""The members of a group have the same task: it is made once."""


@dataclass(slots=True)
class ServerSampler:
    """`core.protocols.Sampler` on verl's servers, for one episode.

    All turns of an episode go to the same server, which has its prefix in the cache.
    """

    servers: Any
    session: str = field(default_factory=lambda: uuid4().hex)
    context_tokens: int = 0
    """See `core.protocols.BoundedSampler`."""
    versions: list[int] = field(default_factory=list[int])
    """The oldest and the newest version of the weights that wrote each turn."""
    read: int = 0
    """Prompt tokens sent."""
    cached: int = 0
    """Prompt tokens that a server still had in its cache."""

    async def sample(self, request: TokenRequest) -> Sampled:
        sampling_params: dict[str, Any] = {
            "temperature": request.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "seed": request.seed,
            "logprobs": True,
            "max_tokens": request.max_new_tokens,
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,  # a turn ends with the codec's stop ids and nothing else
        }
        if request.allowed_ids is not None:
            sampling_params["allowed_token_ids"] = _allowed(request)
        try:
            output = await self.servers.generate(
                self.session, prompt_ids=list(request.prompt_ids), sampling_params=sampling_params
            )
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[-300:]
            message = f"was lost while it sampled for an episode: {reason}"
            raise EngineError("rollout server", message) from error
        version = self._count(output.extra_fields, len(request.prompt_ids))
        ids = tuple(output.token_ids)
        return Sampled(
            token_ids=ids,
            logprobs=tuple(output.log_probs or ()),
            stopped=bool(ids) and ids[-1] in request.stop_ids,
            version=version,
        )

    def _count(self, extra: dict[str, Any], prompt: int) -> int:
        """Keep what the servers report; returns the oldest version that wrote the turn."""
        names = ("min_global_steps", "max_global_steps")
        oldest, newest = (int(extra.get(name) or 0) for name in names)
        self.versions += [oldest, newest]
        self.read += prompt
        self.cached += int(extra.get("num_cached_tokens") or 0)
        return oldest

    def release(self, session: str) -> None:
        """Nothing to release: the servers evict from their prefix caches themselves."""


def _allowed(request: TokenRequest) -> list[int]:
    """The ids of the mask.

    The trainer computes probabilities before the mask. Servers report those only at temperature 1
    (`logprobs_mode` in `verl_keys`): raw log-probabilities leave the temperature out.
    """
    if request.temperature not in (0.0, 1.0):
        raise EngineError(
            "verl",
            f"allowed ids at temperature {request.temperature}: rollout servers report "
            "probabilities before the mask only at temperature 1",
            "use temperature=1",
        )
    assert request.allowed_ids is not None
    return list(request.allowed_ids)


class WorkerContext:
    """What all episodes of one process share: the rollout with its worlds, and the tasks."""

    def __init__(self, spec_file: str, tokenizer: Any) -> None:
        spec = RolloutSpec.read(spec_file)
        source = spec.source()
        # verl loads the tokenizer itself, without the model's ends of a generation.
        tokenizer.generation_ends = generation_ends(tokenizer.name_or_path)
        self.rollout = source.make_rollout(tokenizer)
        self.settings = spec.settings
        self.seed = spec.seed
        self.context_tokens = spec.context_tokens
        self.task = functools.lru_cache(CACHED_TASKS)(self._task)
        self._tasks = source.tasks.make()

    def _task(self, index: int) -> Task:
        return self._tasks(index)


_CONTEXTS: dict[str, WorkerContext] = {}


def worker_context(spec_file: str, tokenizer: Any) -> WorkerContext:
    """The context of this process, made once: verl makes a new loop for every episode."""
    if spec_file not in _CONTEXTS:
        _CONTEXTS[spec_file] = WorkerContext(spec_file, tokenizer)
    return _CONTEXTS[spec_file]


class EpisodeLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode of one group member."""

    def __init__(self, server_manager: Any, tokenizer: Any, spec_file: str, **_: Any) -> None:
        """Does not call verl's own, which needs a chat template: our codec makes the tokens."""
        self.servers = server_manager
        self.context = worker_context(spec_file, tokenizer)
        self.filler = int(tokenizer.eos_token_id)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play member `session_id` of the group of task `index`."""
        sampler = ServerSampler(self.servers, context_tokens=self.context.context_tokens)
        index = int(row["index"])
        task = self.context.task(index)
        episode = await self.context.rollout.run_one(
            sampler, task, int(row["session_id"]), self.context.seed
        )
        return as_output(
            episode,
            sampler,
            filler=self.filler,
            reward=self.context.settings.reward,
            step=int(row["global_steps"]),
            index=index,
        )


def as_output(
    episode: TokenEpisode,
    sampler: ServerSampler,
    *,
    filler: int,
    reward: str,
    step: int,
    index: int = 0,
) -> AgentLoopOutput:
    """The episode as verl's output.

    An episode that failed before the first token becomes one masked filler token.
    """
    written = bool(episode.completion_ids)
    masked = episode.outcome.value is None
    turn_rewards = [] if masked else rewards_by_turn(episode, reward)
    versions = sampler.versions or [step - 1]
    extra = {
        "min_global_steps": min(versions),
        "max_global_steps": max(versions),
        "turn_scores": [],
        "tool_rewards": [],
        "status": episode.outcome.status.value,
        "evidence": episode.outcome.evidence if masked else "",
        "masked": masked,
        "task": index,
        "length": len(episode.completion_ids) if written else 1,
        "turn_rewards": turn_rewards,
        "world_rewards": [] if masked else list(episode.turn_rewards),
        "turn_ends": [] if masked else list(episode.turn_ends),
        "env_steps": len(episode.record.transitions) if episode.record else 0,
        "world": episode.world,
        "replies": [list(reply) for reply in episode.replies],
        "prompt_read": sampler.read,
        "prompt_cached": sampler.cached,
    }
    return AgentLoopOutput(
        prompt_ids=list(episode.prompt_ids) or [filler],
        response_ids=list(episode.completion_ids) if written else [filler],
        response_mask=[int(by_model) for by_model in episode.model_mask] if written else [0],
        response_logprobs=list(episode.logprobs) if written else [0.0],
        reward_score=math.nan if masked else sum(turn_rewards),
        num_turns=len(episode.turn_ends),
        metrics=AgentLoopMetrics(),
        extra_fields=extra,
    )
