"""Episodes on verl: allowed ids go to the servers, groups without a gradient are replaced."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.support.verl_cpu import use

use()
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo.v1 import replay_buffer

from terrella.core.errors import EngineError
from terrella.core.tokens import TokenRequest
from terrella.engines.configs import RlvrConfig
from terrella.engines.verl import refill
from terrella.engines.verl.agent_loop import ServerSampler
from terrella.engines.verl.refill import RefillBuffer
from terrella.engines.verl.stale_groups import may_take

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl's dependencies


class Servers:
    """Records what it is asked for."""

    async def generate(self, session: str, *, prompt_ids: Any, sampling_params: Any) -> Any:
        self.asked = sampling_params
        return SimpleNamespace(token_ids=[5], log_probs=[-0.5], extra_fields={})


def ask(**changes: Any) -> dict[str, Any]:
    servers = Servers()
    request = TokenRequest(prompt_ids=(1,), max_new_tokens=2, seed=0, **changes)
    asyncio.run(ServerSampler(servers).sample(request))
    return dict(servers.asked)


def test_allowed_ids_go_to_the_server_at_temperature_one_only():
    assert ask(allowed_ids=(5, 6))["allowed_token_ids"] == [5, 6]
    assert "allowed_token_ids" not in ask(temperature=0.5)
    with pytest.raises(EngineError, match="temperature"):
        ask(allowed_ids=(5, 6), temperature=0.5)


def test_a_turn_that_was_interrupted_has_the_version_of_its_oldest_token():
    class Interrupted(Servers):
        async def generate(self, *arguments: Any, **options: Any) -> Any:
            output = await super().generate(*arguments, **options)
            output.extra_fields.update(global_steps=7, min_global_steps=5, max_global_steps=7)
            return output

    sampler = ServerSampler(Interrupted())
    request = TokenRequest(prompt_ids=(1,), max_new_tokens=2, seed=0)
    assert asyncio.run(sampler.sample(request)).version == 5
    assert sampler.versions == [5, 7]


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_no_group_is_taken_too_late_however_slow_it_is(staleness: int):
    """Groups finish in the worst order; a step waits for more of them only if it has to."""
    groups, steps = 3, 40
    chance = random.Random(staleness)
    started = {f"{staleness}-{n}": 1 for n in range(staleness * groups)}
    finished: set[str] = set()
    waited, ages = 0, []
    for step in range(1, steps + 1):
        started |= {f"{step}+{n}": step for n in range(groups)}
        finished |= set(chance.sample(sorted(started), k=groups))  # some long ago, some just now
        while not may_take(started, finished, step=step, groups=groups, staleness=staleness):
            slow = [key for key in started if key not in finished]
            finished.add(max(slow, key=lambda key: (started[key], chance.random())))
            waited += 1
        for key in sorted(finished, key=lambda key: started[key])[:groups]:
            ages.append(step - started.pop(key))
            finished.discard(key)
    assert max(ages) <= staleness and waited


class Queue:
    """The calls of the transfer queue that a buffer makes, in memory."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    def add_group(self, task: int, rewards: list[float | None], status: str = "finished") -> None:
        uid = f"task{task}"
        self.tags[uid] = {"is_prompt": True, "status": status, "global_steps": 1}
        for member, reward in enumerate(rewards):
            key = f"{uid}_{member}_0"
            self.tags[key] = {"status": "success"}
            self.rows[key] = _record(task, reward)

    def kv_list(self) -> dict[str, Any]:
        return {"train": {key: dict(tag) for key, tag in self.tags.items()}}

    def kv_clear(self, *, partition_id: str, keys: list[str]) -> None:
        for key in keys:
            self.tags.pop(key, None)
            self.rows.pop(key, None)

    def kv_batch_get(self, *, keys: list[str], **_: Any) -> TensorDict:
        mask = torch.nested.as_nested_tensor([torch.ones(2)] * len(keys), layout=torch.jagged)
        data = TensorDict({"response_mask": mask}, batch_size=len(keys))
        data["uid"] = NonTensorStack(*(key.split("_")[0] for key in keys))
        data["extra_fields"] = NonTensorStack(*(self.rows[key] for key in keys))
        return data


def _record(task: int, reward: float | None) -> dict[str, Any]:
    known = [] if reward is None else [reward]
    return {
        "task": task,
        "status": "ok" if known else "error",
        "masked": reward is None,
        "length": 2,
        "turn_rewards": known,
        "world_rewards": known,
        "turn_ends": [2] if known else [],
        "world": "",
        "replies": [],
        "prompt_read": 1,
        "prompt_cached": 0,
        "env_steps": 3,
    }


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    found = Queue()
    for module in (refill, replay_buffer):
        monkeypatch.setattr(module, "tq", found)
    return found


def buffer(queue: Queue, answers: dict[int, list[float | None]], **settings: Any) -> Any:
    found = RefillBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        poll_interval=0.01,
    )
    found.settings = RlvrConfig(steps=2, groups=4, **settings)
    submitted: list[list[int]] = []

    def submit(tasks: Any) -> None:
        submitted.append(list(tasks))
        for task in tasks:
            queue.add_group(task, answers[task])

    found.submit = submit
    found.submitted = submitted
    return found


VARIED: list[float | None] = [1.0, 0.0]


def fill(queue: Queue) -> None:
    """Four groups: one with a gradient, one unanimous, one with a single verdict, one lost."""
    queue.add_group(4, VARIED)
    queue.add_group(5, [1.0, 1.0])
    queue.add_group(6, [None, 0.0])
    queue.add_group(7, [1.0], status="failure")


def tasks_of(batch: Any) -> set[str]:
    return {key.split("_")[0] for key in batch.keys}


def test_groups_without_a_gradient_are_replaced_by_the_tasks_of_the_trl_engine(queue: Queue):
    fill(queue)
    # Tasks 0..7 are those of the run. Task 13 has no variance either, its replacement has.
    answers = {13: [0.0, 0.0], 14: VARIED, 21: VARIED}
    found = buffer(queue, answers, refill=3)
    batch, _ = found.sample(1, "train", 4)
    assert found.submitted == [[13, 14], [21]]
    assert tasks_of(batch) == {"task4", "task21", "task14", "task7"}
    # The metrics are those before the refills; a lost group is left for the trainer to refuse.
    assert found.first_round["zero_variance"] == pytest.approx(2 / 3)
    assert found.refilled == 3
    assert found.dropped_env_steps == 3 * 2 * 3  # they count against a budget


def test_rounds_are_bounded_and_zero_rounds_change_nothing(queue: Queue):
    fill(queue)
    found = buffer(queue, {13: [0.0, 0.0], 14: VARIED}, refill=1)
    batch, _ = found.sample(1, "train", 4)
    assert found.submitted == [[13, 14]] and "task13" in tasks_of(batch)
    queue.tags.clear()
    fill(queue)
    plain = buffer(queue, {})
    batch, _ = plain.sample(1, "train", 4)
    assert not plain.submitted and plain.first_round is None and plain.refilled == 0
    assert tasks_of(batch) == {"task4", "task5", "task6", "task7"}


def test_with_a_critic_a_unanimous_group_stays(queue: Queue):
    fill(queue)
    found = buffer(queue, {}, refill=2, algorithm="ppo")
    found.sample(1, "train", 4)
    assert found.submitted == []
