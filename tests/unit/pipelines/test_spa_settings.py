"""Settings of SPA that would do nothing, or fail after hours, are refused before anything runs."""

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.tiny_chat import chat_model_folder

from terrella.core.errors import ConfigError
from terrella.core.metric import Metric
from terrella.evals import agents
from terrella.evals.results import RlCost, TestScores
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.reproduce.report import show_table
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.spa.results import SpaResult
from terrella.pipelines.spa.self_play import SelfPlay
from terrella.recipes import find_recipe
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban
from terrella.worlds.sudoku import Sudoku

GARBLED = SelfPlay.Config(states="random_coordinates")
LAKE = FrozenLake.Config(view="coordinates")


@pytest.mark.parametrize(
    "world",
    [
        FrozenLake.Config(view="compact"),
        FrozenLake.Config(view="grid"),
        Sokoban.Config(view="grid"),
        Sudoku.Config(),
        Counter.Config(),
    ],
)
def test_states_without_coordinates_cannot_be_garbled(world):
    """They would stay true, and the ablation would be SPA itself."""
    spa = Spa.Config(world=world, self_play=GARBLED)
    with pytest.raises(ConfigError, match=r"self_play.states: .*shows no coordinates in brackets"):
        Spa(spa).preflight()
    Spa(spa.replace(self_play=SelfPlay.Config())).check_settings()
    Spa(spa.replace(self_play=GARBLED.replace(trajectories=0))).check_settings()


@pytest.mark.parametrize("view", ["coordinates", "grid_coordinates"])
def test_states_with_coordinates_can(view):
    for world in (FrozenLake.Config(), Sokoban.Config(), Sudoku.Config()):
        Spa(Spa.Config(world=world.replace(view=view), self_play=GARBLED)).check_settings()


def test_a_comparison_refuses_such_an_arm_before_its_first_job():
    whole = find_recipe("spa_frozen_lake")()
    Reproduce(whole).check_settings()
    changed = whole.with_overrides(["world.view=compact"], {})
    with pytest.raises(ConfigError, match="of the arm random_coordinates"):
        Reproduce(changed).check_settings()


def test_random_actions_have_true_states():
    with pytest.raises(ConfigError, match="believed, but random actions"):
        SelfPlay.Config(actions="random", states="believed")


def test_a_form_without_states_of_its_own_is_refused_for_a_chat_model(tmp_path):
    chat = chat_model_folder(tmp_path / "chat")
    spa = Spa.Config(
        world=LAKE, model=str(chat), form="shown", turn_tokens=96, out=tmp_path / "run"
    )
    with pytest.raises(ConfigError, match="form=worldmodel"):
        Spa(spa).preflight()
    Spa(spa.replace(form="worldmodel")).preflight()
    Spa(spa.replace(model="tiny-0.3m")).preflight()
    with pytest.raises(ConfigError, match="form=worldmodel"):  # known by name: --dry-run says it
        Spa(spa.replace(model="smollm2")).check_settings()


# --- what is left out is said -----------------------------------------------------------------


def test_masked_episodes_are_shown_beside_the_scores(capsys):
    scores = TestScores(
        successes=[1, 0],
        samples=2,
        passes={"1": Metric.of([1.0, 0.0])},
        judged=[1, 2],
        masked=1,
        masked_reason="the verifier took 30 s",
    )
    result = SpaResult(base=None, self_play=None, rl=RlCost(env_steps=1), test=scores)
    summary = dict(Spa(Spa.Config(world=LAKE)).summary(result))
    assert summary["masked test episodes"] == "1, left out; the first: the verifier took 30 s"
    arm = {"seeds": [0], "pass@1": {"mean": 0.5, "interval": None}}
    table = {"reference_scores": {}, "claims": [], "test": "t"}
    show_table({**table, "arms": {"spa": {**arm, "masked": [3]}, "base": arm}})
    shown = [line for line in capsys.readouterr().out.splitlines() if "pass@1" in line]
    assert ["3 masked episodes" in line for line in shown] == [True, False]


def test_each_seed_of_an_arm_is_tested_on_instances_of_its_own():
    world = Sokoban.Config(longest=7, max_steps=6)
    first, second = (
        set(agents.tested_instances(world, agents.Evaluate.Config(instances=20, seed=seed)))
        for seed in (0, 1)
    )
    assert len(first) == len(second) == 20 and not first & second
