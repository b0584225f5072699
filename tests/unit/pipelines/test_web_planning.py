"""The web agent as a command: oracles, endpoints, rows that survive a kill; no browser."""

import asyncio
import dataclasses
import json

import pytest
from tests.support.chat_server import ChatServer, completion
from tests.support.page_world import Buttons

from terrella.cli.plan import plan
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.predictive import Query
from terrella.core.types import Situation, Split, Transition, Tree
from terrella.pipelines.web import planning
from terrella.pipelines.web.page_agent import LocalPageAgent, SampledProposals, is_possible
from terrella.pipelines.web.planned_episodes import PlannedEpisode, depth_scores
from terrella.pipelines.web.planning import WebPlan
from terrella.pipelines.web.real_pages import DISCOUNT, RealPages, RightActionAmong, TrueValue
from terrella.policies.endpoint import Endpoint
from terrella.show.progress import SilentProgress
from terrella.world_models.planner_web import PagePlanner

WORLD = Buttons.Config()


class BinFirst:
    """A policy that likes the bin most, then the wrong button; it never says what is right."""

    asked = 0

    async def actions(self, situation, *, samples, seed):
        type(self).asked += 1
        return [("click 4",)] * 3 + [("stop",)] * 2 + [()] * (samples - 5)

    async def marks(self, situation, *, samples, seed):
        raise AssertionError("nobody asked for a value")


def situation(world, history=()):
    return Situation(
        instruction="",
        observation=world._observe(),
        actions=world.actions(),
        history=history,
        steps_left=4,
    )


@pytest.fixture
def real():
    pages = RealPages(WORLD)
    pages.begin(seed=3, split=Split.TEST)
    return pages


@pytest.fixture
def world():
    made = WORLD.build()
    made.reset(seed=3, options={"split": "test"})
    return made


def imagined(real, start, *actions):
    """The situation after these actions, as the planner writes it."""
    now = start
    for action in actions:
        (predicted,) = real.predict([Query(now, action)])[0].predictions
        step = Transition(
            observation=now.observation, action=action, next_observation=predicted.observation
        )
        now = dataclasses.replace(
            now, observation=predicted.observation, history=(*now.history, step)
        )
    return now, predicted


def test_the_real_copy_predicts_what_happens_and_leaves_the_world_alone(real, world):
    right = world.expert(world.state, 4, None)
    _, predicted = imagined(real, situation(world), right)
    assert world._observe() == situation(world).observation and not world.steps
    observed, reward, over, _, _ = world.step(right)
    assert predicted.observation == observed and not over and predicted.reward == reward == 0
    second = world.expert(world.state, 3, None)
    _, last = imagined(real, _start(real), right, second)
    assert last.terminated and last.success and last.reward == 1.0


def _start(real):
    fresh = WORLD.build()
    fresh.reset(seed=real.seed, options={"split": real.split})
    return situation(fresh)


def test_true_values_know_what_can_still_be_won(real):
    start = _start(real)
    right = real.expert_at(())
    wrong = "click 2" if right == "click 3" else "click 3"
    value = TrueValue(real).value
    after_right, _ = imagined(real, start, right)
    after_wrong, _ = imagined(real, start, wrong)
    after_bin, _ = imagined(real, start, "click 4")
    assert value([after_right]) > value([start]) > [0.0]
    assert value([after_wrong, after_bin]) == [0.0, 0.0]
    # what follows the end of an episode is void, also where a model did not see the end
    assert real.follow(("click 4", right)).terminated and real.expert_at(("click 4", right)) == ""


def test_the_right_action_is_put_among_the_proposals_without_a_mark(real):
    proposals = RightActionAmong(SampledProposals(BinFirst(), samples=8), real, width=2)
    start = _start(real)
    (found,) = proposals.propose([start])
    assert found == [("click 4", 0.6), (real.expert_at(()), 0.0)]
    assert (proposals.missing, proposals.pages, proposals.calls) == (1, 1, 8)
    assert proposals.proposer.unread == 3


def config(out, **fields):
    planner = PagePlanner.Config(width=3, budget=999)
    settings = {"proposer": "tiny-0.3m", "instances": 3, "planner": planner, "out": out} | fields
    return WebPlan.Config(world=WORLD, **settings)


@pytest.fixture
def bin_first(monkeypatch):
    monkeypatch.setattr(WebPlan, "_agent", lambda *_: BinFirst())
    monkeypatch.setattr(WebPlan, "resources", lambda *_: planning.contextlib.nullcontext())


def test_with_all_oracles_planning_helps_and_without_the_right_action_it_cannot(
    tmp_path, bin_first
):
    run = WebPlan(config(tmp_path / "all", right_action=True, value="true")).run(SilentProgress())
    assert [run.depths[d].success.mean for d in "012"] == [0.0, 1.0, 1.0]
    assert run.depths["1"].gain.mean == 1.0 and run.depths["0"].gain is None
    assert run.depths["0"].missing == run.depths["1"].missing == 1.0
    run = WebPlan(config(tmp_path / "policy", value="true")).run(SilentProgress())
    assert [run.depths[d].success.mean for d in "012"] == [0.0, 0.0, 0.0]
    # two steps ahead see the reward, one step does not: no value is needed then
    run = WebPlan(config(tmp_path / "reward", right_action=True)).run(SilentProgress())
    assert [run.depths[d].success.mean for d in "012"] == [0.0, 0.0, 1.0]


def test_random_proposals_need_no_model_and_are_the_same_again(tmp_path):
    """Drawn often enough they hold the right action, and the oracles find it."""
    settings = config(tmp_path / "a", proposer="random", value="true", proposer_samples=16)
    wide = settings.replace(planner=PagePlanner.Config(width=4, budget=999))
    first = WebPlan(wide).run(SilentProgress())
    assert first.depths["1"].success.mean == 1.0 > first.depths["0"].success.mean
    assert WebPlan(wide.replace(out=tmp_path / "b")).run(SilentProgress()) == first
    assert first.models == {}


def test_a_killed_plan_goes_on_where_it_stopped(tmp_path, bin_first, monkeypatch):
    played = []
    play = planning.play

    def mortal(world, planner, **which):
        if len(played) == 4:
            raise KeyboardInterrupt
        played.append((planner.config.depth, which["seed"]))
        return play(world, planner, **which)

    monkeypatch.setattr(planning, "play", mortal)
    settings = config(tmp_path / "run", right_action=True, depths=(0, 1))
    with pytest.raises(KeyboardInterrupt):
        WebPlan(settings).run(SilentProgress())
    before, played[:] = list(played), []
    result = WebPlan(settings).run(SilentProgress())
    assert len(before) == 4 and len(played) == 2 and not set(before) & set(played)
    whole = WebPlan(settings.replace(out=tmp_path / "whole"))
    monkeypatch.setattr(planning, "play", play)
    assert whole.run(SilentProgress()).depths == result.depths


# --- endpoints ------------------------------------------------------------------------------------


def answers(body, _=0):
    """Proposes what the task says is next, after a thought; marks pages by what is pressed."""
    system, user = (message["content"] for message in body["messages"])
    if "Mark how near" in system:
        return completion(f"<answer> {2 + user.count('selected')} </answer>")
    task = user.split('"')[1]
    names = [task.split()[1].strip(","), task.split()[3]]
    left = [name for name in names if f'"{name}" selected' not in user]
    number = {"Left": 2, "Right": 3}[left[0]] if left else 4
    assert "Possible actions:\nclick 2" in user
    return completion(f"<think>{left}</think><answer>click {number}</answer>")


def endpoint_config(out, url, **fields):
    endpoint = Endpoint.Config(url=url, model="m", retries=1)
    return config(
        out,
        proposer=url,
        value=url,
        proposer_endpoint=endpoint,
        value_endpoint=endpoint,
        depths=(0, 1),
        **fields,
    )


def test_an_endpoint_proposes_and_values_and_a_failure_is_masked_and_asked_again(tmp_path):
    with ChatServer(answers) as server:
        settings = endpoint_config(tmp_path / "run", server.url)
        result = WebPlan(settings).run(SilentProgress())
        assert [result.depths[d].success.mean for d in "01"] == [1.0, 1.0]
        assert result.models["proposer"].url == server.url
        assert result.depths["1"].calls_per_step > result.depths["0"].calls_per_step == 8

    down = []

    def fails_first(body, count):
        if not down:
            return 400, b"{}", {}
        return answers(body, count)

    with ChatServer(fails_first) as server:
        settings = endpoint_config(tmp_path / "down", server.url, instances=1)
        plan_ = WebPlan(settings)
        plan_.resources = lambda run: planning.contextlib.nullcontext()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planning, "depth_scores", lambda rows: 1 / 0)  # killed before the end
            with pytest.raises(ZeroDivisionError):
                plan_.run(SilentProgress())
        down.append(True)
        result = WebPlan(settings).run(SilentProgress())
        assert result.depths["1"].success.mean == 1.0 and result.depths["1"].masked == 0


def test_an_endpoint_without_a_name_and_a_folder_that_is_no_page_model_are_refused(tmp_path):
    settings = config(tmp_path / "a", proposer="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="which model of this endpoint"):
        WebPlan(settings).run(SilentProgress())
    with pytest.raises(ConfigError, match="not the folder of a finished page model"):
        planning.asked_pages(str(tmp_path))
    with pytest.raises(ConfigError, match="who proposes actions"):
        plan("real", "miniwob")


# --- parts ----------------------------------------------------------------------------------------


class Counted:
    """A codec and a sampler in one: prompts of 50 tokens."""

    stop_ids = (0,)

    def ask_action(self, situation):
        return (1,) * 50


def test_a_prompt_longer_than_the_context_is_refused_by_name():
    agent = LocalPageAgent(None, Counted(), turn_tokens=10, context_tokens=59)
    page = Situation(instruction="", observation=Tree("x"), actions=(), history=(), steps_left=1)
    with pytest.raises(PolicyError, match="needs 60 tokens with its reply, the context has 59"):
        asyncio.run(agent.actions(page, samples=1, seed=0))


def test_a_model_may_type_and_answer_what_a_page_cannot_offer():
    page = Situation(
        instruction="",
        observation=Tree('[2] textbox ""\n[3] button "Ok"'),
        actions=("click 3",),
        history=(),
        steps_left=1,
    )
    possible = ("click 3", "type 2 anything", "stop 42")
    assert all(is_possible(action, page) for action in possible)
    for action in ("click 9", "type 9 x", "press Enter", "hello"):
        assert not is_possible(action, page)


def page(*actions):
    return Situation(
        instruction="",
        observation=Tree('[2] button "Ok"\n[3] textbox ""'),
        actions=actions,
        history=(),
        steps_left=1,
    )


class Says:
    """A model that writes these replies in turn."""

    def __init__(self, *replies):
        self.replies = replies

    async def actions(self, situation, *, samples, seed):
        return [(reply,) for reply in (self.replies * samples)[:samples]]


def test_a_reply_in_any_web_language_is_the_offered_action():
    """An agent that was trained in WebRL's language must not lose its reply for its spelling."""
    said = ('do(action="Click", element="2")', 'click button "Ok" [2]', "click 2")
    typed = '# Element: the box\ndo(action="Type", argument="kai", element="3")'
    proposals = SampledProposals(Says(*said, typed), samples=4)
    ((first, second),) = proposals.propose([page("click 2", "stop")])
    assert (first, second) == (("click 2", 0.75), ("type 3 kai", 0.25))
    assert proposals.unread == 0
    lost = SampledProposals(Says("search 9 kai", "hello"), samples=4)
    assert lost.propose([page("click 2", "stop")]) == [[("click 2", 1.0)]] and lost.unread == 4


def test_unread_replies_are_told_with_the_success(tmp_path, monkeypatch, caplog):
    """Success of a model whose replies are replaced is the success of the first offered action."""
    monkeypatch.setattr(WebPlan, "_agent", lambda *_: Says("hm", "click 2", "click 3", "hello"))
    monkeypatch.setattr(WebPlan, "resources", lambda *_: planning.contextlib.nullcontext())
    plan_ = WebPlan(config(tmp_path / "run", depths=(0, 1), instances=2))
    result = plan_.run(SilentProgress())
    # of the replies, not of all model calls: at depth 1 the page model is called, too
    assert [result.depths[depth].unread for depth in "01"] == [0.5, 0.5]
    assert all("50% unread" in shown for _, shown in plan_.summary(result))
    warned = [line for line in caplog.messages if "50% of the replies" in line]
    assert len(warned) == 2 and "the first offered one is played" in warned[0]


def test_gains_are_over_the_same_instances_and_masked_ones_are_left_out():
    def row(depth, seed, success, **more):
        return PlannedEpisode(
            depth=depth,
            seed=seed,
            family="",
            success=success,
            steps=2,
            calls=20,
            asked=8,
            unread=2,
            **more,
        )

    successes = {(0, 0): 1.0, (1, 0): 1.0, (0, 1): 0.0, (1, 1): 1.0, (0, 2): None, (1, 2): 0.0}
    scores = depth_scores([row(*which, success) for which, success in successes.items()])
    assert scores["0"].masked == 1 and scores["0"].success.mean == 0.5
    assert scores["1"].gain.mean == 0.5 and scores["1"].gain.n == 2
    assert scores["1"].success.n == 3 and scores["1"].unread == 0.25


def test_two_models_on_one_server_are_refused_and_one_model_is_opened_once(tmp_path):
    opened = []

    def start(name):
        opened.append(name)
        return planning.contextlib.nullcontext("the one server"), name

    samplers = planning._Samplers(start, planning.contextlib.ExitStack())
    assert samplers.open("a") == samplers.open("a") == ("the one server", "a")
    with pytest.raises(ConfigError, match="one server cannot serve a and b in turns"):
        samplers.open("b")
    assert opened == ["a", "b"]


@pytest.mark.parametrize(("value", "prior"), [("reward", 0.3), ("true", 0.01)])
def test_a_preference_does_not_outweigh_a_step_that_the_true_value_calls_wasted(
    value, prior, capsys
):
    plan("real", "miniwob", proposer="random", value=value, dry_run=True)
    settings = json.loads(capsys.readouterr().out)["planner"]
    assert settings["prior_weight"] == prior
    wasted = DISCOUNT**10 - DISCOUNT**11  # late in an episode, where it counts least
    assert (prior < wasted) == (value == "true")
