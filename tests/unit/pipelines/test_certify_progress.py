"""A section of a certificate says how far it is, not only that it has begun."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.made_models import Lying, by_chance, data_of

from terrella.core.config_override import override
from terrella.core.errors import ConfigError, MissingExtraError, PolicyError
from terrella.core.types import Split
from terrella.pipelines.certify.pipeline import Certify, _measure_all
from terrella.pipelines.certify.records import CertifyConfig, Evidence
from terrella.pipelines.certify.sections import Sections
from terrella.policies.basic import Mixture, Random
from terrella.rollout.tasks import PredictionTasks
from terrella.show.progress import SilentProgress
from terrella.world_models.planner import Planner
from terrella.worlds.counter import Counter


class Recorded(SilentProgress):
    def __init__(self):
        self.phases = {}

    def phase(self, name, total):
        self.name, self.total = name.rpartition(": ")[2], total
        self.phases[self.name] = []

    def advance(self, done, **_):
        self.phases[self.name].append(done / self.total)


def measured(progress, *, ranked_on, exploited_on, plan_depth=1, **settings):
    world = Counter.Config(max_steps=4)
    config = CertifyConfig(
        world=world,
        folder=Path("unused"),
        policy=Random.Config(),
        policies=(Mixture.Config(share=0.0), Mixture.Config(share=1.0)),
        calibration=40,
        held_out=40,
        horizon_episodes=3,
        depth=2,
        ranked_on=ranked_on,
        exploited_on=exploited_on,
        plan_depth=plan_depth,
        **settings,
    )
    built = world.build()
    model = Lying(built, by_chance(0.1))
    return _measure_all(Sections(config, Evidence(built, model, data_of(built))), progress)


@pytest.fixture(scope="module")
def phases():
    progress = Recorded()
    measured(progress, ranked_on=2, exploited_on=1)
    return progress.phases


def test_long_sections_move_between_their_beginning_and_their_end(phases):
    assert list(phases) == [
        "risk",
        "one step",
        "horizon",
        "coverage",
        "ranking",
        "exploitability",
    ]
    for name in ("risk", "horizon", "ranking", "exploitability"):
        between = [share for share in phases[name] if 0 < share < 1]
        assert between and between == sorted(between), name


def test_every_section_begins_at_once_and_is_whole_only_at_its_end(phases):
    for name, shares in phases.items():
        assert shares[0] == 0 and shares[-1] == 1, name
        assert shares.count(1) == 1, name


@pytest.mark.parametrize("name", ["ranked_on", "exploited_on"])
def test_one_episode_is_refused_before_anything_is_measured(tmp_path, name):
    config = Certify.Config(world=Counter.Config(), folder=tmp_path, **{name: 1})
    with pytest.raises(ConfigError, match=f"{name}.*one episode has no interval"):
        Certify(config).run(SilentProgress())


def test_sections_without_episodes_are_left_out():
    sections = measured(SilentProgress(), ranked_on=0, exploited_on=0)
    assert sections["ranking"] is None and sections["exploitability"] is None
    assert sections["one_step"]["all"]["model"]["n"] > 0


class GivesUp(Random):
    """Fails at its third step, as an endpoint that goes down."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Random.Config):
        pass

    def act(self, moment):
        if len(moment.history) == 2:
            raise PolicyError("endpoint", "does not answer")
        return super().act(moment)


def test_an_episode_that_breaks_is_not_a_right_one():
    world = Counter.Config(goals=200)
    config = CertifyConfig(
        world=world, folder=Path("unused"), policy=GivesUp.Config(), horizon_episodes=3
    )
    built = world.build()
    sections = Sections(config, Evidence(built, Lying(built, by_chance(1.0)), data_of(built)))
    with pytest.raises(PolicyError, match="does not answer"):
        sections.horizon()


def test_the_horizon_asks_as_the_rest_of_the_certificate_does():
    world = Counter.Config(goals=200).build()
    asked = []

    class Recording(Lying):
        def predict(self, queries):
            asked.extend(queries)
            return super().predict(queries)

    config = CertifyConfig(
        world=world.config, folder=Path("unused"), policy=Random.Config(), horizon_episodes=3
    )
    model = Recording(world, by_chance(0.1))
    Sections(config, Evidence(world, model, data_of(world))).horizon()
    expected = PredictionTasks(world.config, split=Split.TEST)(0).situation.instruction
    assert expected and {query.situation.instruction for query in asked} == {expected}


@pytest.mark.parametrize("name", ["ranked_on", "exploited_on"])
def test_fewer_than_no_episodes_are_refused(tmp_path, name):
    config = Certify.Config(world=Counter.Config(), folder=tmp_path, **{name: -1})
    with pytest.raises(ConfigError, match=f"{name}.*is not a number of episodes"):
        Certify(config).run(SilentProgress())


@pytest.mark.parametrize(
    "assignment",
    ["level=0", "level=1", "level=1.5", "samples=0", "held_out=0", "depth=0", "step_error=2"],
)
def test_numbers_that_measure_nothing_are_refused_by_name(assignment):
    config = Certify.Config(world=Counter.Config(), folder=Path("unused"))
    with pytest.raises(ConfigError) as error:
        override(config, [assignment])
    assert error.value.where == assignment.partition("=")[0]


def test_a_missing_extra_is_named_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="plots"):
        Certify(Certify.Config(world=Counter.Config(), folder=tmp_path)).run(SilentProgress())
    assert not list(tmp_path.iterdir())


def test_no_page_of_an_earlier_verdict_stays_beside_a_new_one(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the extra: pip install 'terrella[plots]'")
    certify = Certify(Certify.Config(world=Counter.Config(), folder=tmp_path))
    monkeypatch.setattr(certify, "measure", lambda progress: {"certified": False})
    certify.report_folder.mkdir()
    (certify.report_folder / "certificate.html").write_text("CERTIFIED")
    with pytest.raises(KeyError):  # the page cannot be drawn
        certify.run(SilentProgress())
    assert [path.name for path in certify.report_folder.iterdir()] == ["certificate.json"]


@pytest.mark.parametrize("states", [1, 3])
def test_a_plan_expands_no_more_states_than_it_may(monkeypatch, states):
    """A model whose predictions scatter has thousands of states within a few steps."""
    planners = []

    class Watched(Planner):
        def __init__(self, config, risk_estimator):
            super().__init__(config, risk_estimator)
            planners.append(self)

    monkeypatch.setattr("terrella.pipelines.certify.sections.Planner", Watched)
    measured(SilentProgress(), ranked_on=0, exploited_on=2, plan_depth=4, plan_states=states)
    (planner,) = planners
    actions = len(Counter.Config().build().all_actions(None))
    assert 0 < planner.cost.queries <= planner.cost.plans * states * actions
