"""The imagined world as a Gymnasium environment: checker, vectors, seeds, risk, Q-learning."""

import asyncio
import warnings
from collections import defaultdict
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tests.support.linked_pages import Pages, Reader
from tests.support.made_models import Lying, certified_model_of

from terrella.core.episode import play
from terrella.core.predictive import PredictiveDistribution
from terrella.core.tokens import Task
from terrella.core.types import Split
from terrella.evals.policy_eval import evaluate_policy
from terrella.policies.basic import Expert, Random
from terrella.rollout.env_pool import LocalEnvWorker
from terrella.rollout.session import EnvWorkerError, EpisodeSession
from terrella.trust.truth import TrueModel
from terrella.world_models.imagine import imagine
from terrella.world_models.imagine_arrays import ArrayWrapper, BatchedVectorEnv
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake

LAKE = FrozenLake.Config(size=3, success_rate=2 / 3)


def imagined(config=LAKE, model=None):
    return imagine(config, certified_model=certified_model_of(model or TrueModel(config.build())))


def test_it_passes_gymnasiums_own_check():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(imagined(), skip_render_check=True)


def test_a_seed_gives_the_same_episode_and_another_noise_seed_another():
    episodes = [
        play(imagined(), Random.Config().build(), seed=3, noise_seed=n) for n in (0, 0, 1, 2, 3)
    ]
    assert episodes[0] == episodes[1] and len({e.transitions for e in map(_plain, episodes)}) > 1


def _plain(episode):
    return replace(episode, transitions=tuple(replace(t, info=()) for t in episode.transitions))


def test_info_says_how_risky_how_deep_and_what_the_certificate_says():
    world = imagined(Counter.Config())
    _, info = world.reset(seed=0)
    assert (info["risk"], info["depth"]) == (0.0, 0)
    for depth in (1, 2, 3):
        *_, info = world.step("up")
        assert info["depth"] == depth and info["trust"] == "not_certified" and info["risk"] == 1.0


def test_with_the_truth_for_a_model_imagination_is_the_world():
    lake = FrozenLake.Config(size=3)
    model = TrueModel(lake.build())
    for policy in (Random.Config().build(), Expert.Config().build()):
        real = evaluate_policy(lake.build, policy, seeds=range(40), split=Split.TEST, num_envs=1)
        result = evaluate_policy(
            lambda: imagined(lake, model), policy, seeds=range(40), split=Split.TEST
        )
        assert result.returns == real.returns and result.successes == real.successes


def test_an_unreadable_prediction_ends_the_episode_without_success():
    class Babbling:
        def predict(self, queries):
            return [PredictiveDistribution((), unreadable=4) for _ in queries]

    world = imagined(model=Babbling())
    before, _ = world.reset(seed=0)
    after, reward, terminated, _, info = world.step("Left")
    assert terminated and reward == 0.0 and after == before
    assert info["unreadable"] and info["risk"] == 1.0 and not info["success"]


def test_an_unknown_action_changes_nothing_and_does_not_query_the_model():
    model = Lying(LAKE.build(), lambda query: False)
    world = imagined(model=model)
    before, _ = world.reset(seed=0)
    after, _, terminated, _, info = world.step("Fly")
    assert after == before and not terminated and not info["valid"] and model.query_count == 0


def test_where_the_state_cannot_be_read_the_model_says_what_is_legal_and_who_has_won():
    """The real world is still at its first page: its links and its verdict are of that page."""
    world = imagined(Pages.Config(), Reader())
    world.reset(seed=0)
    assert world.actions() == ("to 1",)
    for number in range(1, 6):
        assert world.query("?").situation.actions == (("to 1",) if number == 1 else ())
        seen, reward, terminated, _, info = world.step(f"to {number}")
        assert seen.text.startswith(f"page {number} ") and info["valid"]
    assert terminated and reward == 1.0 and info["success"] and world.real.taken == 0
    assert world.outcome(world.history).value == 1.0
    world.reset(seed=0)
    world.step("to 1")
    assert world.outcome(world.history).value == 0.0


def test_a_fork_goes_its_own_way():
    world = imagined(Counter.Config())
    before, _ = world.reset(seed=0)
    twin = world.fork()
    twin.step("up")
    assert world.steps == 0 and world.step("down")[0] != before and len(twin.history) == 1


def test_it_vectorises():
    vector = gymnasium.vector.SyncVectorEnv([imagined] * 3)
    vector.reset(seed=0)
    _, _, _, _, info = vector.step(["Left", "Right", "Up"])
    assert list(info["depth"]) == [1, 1, 1]


def test_a_batched_vector_queries_its_model_once_per_step():
    lake = FrozenLake.Config(size=3)
    calls = []

    class Counting(TrueModel):
        def predict(self, queries):
            calls.append(len(queries))
            return super().predict(queries)

    model = Counting(lake.build())
    vector = BatchedVectorEnv(ArrayWrapper(imagined(lake, model)) for _ in range(5))
    seen, _ = vector.reset(seed=0)
    assert seen.shape == (5, *vector.single_observation_space.shape)
    assert set(np.unique(seen)) == {0.0, 1.0}
    calls.clear()
    vector.step(np.zeros(5, int))
    assert calls[0] == 5
    for _ in range(15):
        vector.step(vector.action_space.sample())  # episodes end and restart on the way


class Sharing(TrueModel):
    """Whoever asks within a tenth of a second shares a batch; `batches` has their sizes."""

    def __init__(self, world):
        super().__init__(world)
        self.waiting, self.batches = 0, []

    async def predict_async(self, queries):
        self.waiting += len(queries)
        await asyncio.sleep(0.1)
        if self.waiting:
            self.batches.append(self.waiting)
            self.waiting = 0
        return self.predict(queries)


async def steps_of_a_rollout(worlds, action):
    workers = [LocalEnvWorker(EpisodeSession(world)) for world in worlds]
    for seed, worker in enumerate(workers):
        await worker.start(Task(seed=seed), member=0)
    return await asyncio.gather(*(worker.act(action) for worker in workers))


def test_the_episodes_of_a_rollout_share_the_batches_of_their_model():
    lake = FrozenLake.Config(size=3)
    model = Sharing(lake.build())
    results = asyncio.run(steps_of_a_rollout([imagined(lake, model) for _ in range(5)], "Left"))
    alone = asyncio.run(steps_of_a_rollout([imagined(lake) for _ in range(5)], "Left"))
    assert model.batches == [5] and results == alone


def test_a_model_that_fails_costs_the_episode_and_names_its_world():
    class Failing(Sharing):
        async def predict_async(self, queries):
            raise RuntimeError("the server is gone")

    lake = FrozenLake.Config(size=3)
    with pytest.raises(EnvWorkerError, match=r"imagined \(seed 0.*the server is gone"):
        asyncio.run(steps_of_a_rollout([imagined(lake, Failing(lake.build()))], "Left"))


def q_learning(env, instances, episodes, rng):
    """Tabular Q-learning on any Gymnasium env with numbered actions; uses nothing of Terrella."""
    table = defaultdict(lambda: np.zeros(env.action_space.n))
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode % instances)
        over = False
        while not over:
            values = table[seen.tobytes()]
            if rng.random() < 0.3:
                action = int(rng.integers(len(values)))
            else:
                action = int((values + rng.random(2) * 1e-6).argmax())
            after, reward, terminated, truncated, _ = env.step(action)
            later = 0.0 if terminated else 0.9 * table[after.tobytes()].max()
            values[action] += 0.5 * (reward + later - values[action])
            seen, over = after, terminated or truncated
    return table


def greedy_success(env, table, instances):
    won = 0
    for seed in range(instances):
        seen, _ = env.reset(seed=seed)
        over = False
        while not over:
            seen, _, terminated, truncated, info = env.step(int(table[seen.tobytes()].argmax()))
            over = terminated or truncated
        won += info["success"]
    return won / instances


def test_an_unmodified_program_learns_in_imagination_and_is_good_in_reality():
    counter = Counter.Config()
    table = q_learning(ArrayWrapper(imagined(counter)), 10, 600, np.random.default_rng(0))
    real = ArrayWrapper(counter.build())
    untrained = defaultdict(lambda: np.zeros(2))
    assert greedy_success(real, table, 10) >= 0.9 > 0.8 > greedy_success(real, untrained, 10)


@pytest.mark.slow
def test_ppo_of_stable_baselines_runs_on_it():
    baselines = pytest.importorskip("stable_baselines3", reason="pip install stable_baselines3")
    env = ArrayWrapper(imagined(FrozenLake.Config(size=3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = baselines.PPO(
            "MlpPolicy", env, n_steps=64, batch_size=32, seed=0, device="cpu"
        ).learn(128)
    action, _ = model.predict(env.reset(seed=0)[0])
    assert env.action_space.contains(int(action)) and model.num_timesteps >= 128
