"""Which tasks are for testing: known without a browser, and the same wherever a file lies."""

import json
import shutil

import pytest
from tests.support.manifests import write_manifest

from terrella.core.config import dump
from terrella.core.errors import ConfigError, WorldError
from terrella.core.instances import instance_id, split_of
from terrella.core.types import Split
from terrella.evals import agents
from terrella.evals.agents import Evaluate
from terrella.pipelines.evaluate.agents import AgentEvaluation
from terrella.pipelines.evaluate.models import refuse_practised
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.recipes.webrl_language import webrl_llama_8b_webarena_lite
from terrella.rollout.batch_rollout import BatchRollout
from terrella.rollout.tasks import EvenTasks
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.webarena import env, tasks
from terrella.worlds.webarena.env import WebArena
from terrella.worlds.webarena.tasks import load_tasks

OWN = {"__SHOPPING__": "http://10.0.0.5"}


@pytest.fixture(autouse=True)
def no_browser(monkeypatch):
    """Nothing here opens a page; what would open one is listed."""
    opened = []

    class Host:
        def tab(self, storage):
            opened.append(storage)
            raise WorldError("chromium", "no page is to be opened")

    monkeypatch.setattr(env, "browser_for", lambda settings: Host())
    yield opened
    assert not opened


def rows(count):
    return [
        {
            "task_id": number,
            "sites": ["shopping"],
            "intent": f"Task {number}.",
            "start_url": "__SHOPPING__",
            "intent_template_id": 1,
            "require_login": False,
            "eval": {
                "eval_types": ["string_match"],
                "reference_answers": {"exact_match": "x"},
            },
        }
        for number in range(count)
    ]


@pytest.fixture
def lite():
    try:
        load_tasks("webarena_lite")
    except WorldError as missing:
        pytest.skip(str(missing))
    return WebArena.Config(tasks="webarena_lite", addresses=OWN)


def own(file, **fields):
    return WebArena.Config(tasks=str(file), addresses=OWN, **fields)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(rows(60)))
    return path


# --- the list -------------------------------------------------------------------------------------


def test_the_splits_of_lite_are_those_of_recorded_runs(lite):
    world = lite.build()
    listed = {split: world.instances(split) for split in Split}
    assert {split: len(names) for split, names in listed.items()} == {
        Split.TRAIN: 124,
        Split.VALIDATION: 25,
        Split.TEST: 16,
    }
    first = instance_id({"tasks": "webarena_lite", "task": world.tasks[0].task_id})
    assert first in listed[split_of(first)]
    # The task that a seed draws, pinned as it was before tasks were listed.
    named = [world.instance_of(seed, Split.TEST) for seed in range(3)]
    assert named == ["10c2ba056769f174", "15931faa8a16d829", "171d319c8b947f82"]


def test_a_seed_is_named_without_a_page_as_its_reset_would_name_it(file, monkeypatch):
    world = own(file).build()
    begun = []
    monkeypatch.setattr(world, "begin", begun.append)
    for split in Split:
        for seed in range(5):
            playing = world.task
            name = world.instance_of(seed, split)
            assert world.task is playing
            # `begin` was put off, and the page with it
            world.reset(seed=seed, options={"split": split})
            assert world.instance == name in world.instances(split)


def test_more_tasks_than_there_are_are_refused_at_once(lite, monkeypatch):
    drawn = []
    draw = WebArena.instance_of
    monkeypatch.setattr(
        WebArena, "instance_of", lambda self, *of: drawn.append(of) or draw(self, *of)
    )
    found = agents.tested_instances(lite, Evaluate.Config(instances=16))
    assert len(found) == 16
    enough = len(drawn)
    with pytest.raises(ConfigError, match="has only 16 distinct test instances") as refused:
        agents.tested_instances(lite, Evaluate.Config(instances=33))
    assert len(drawn) == 2 * enough  # it stops at the last one, not after 3,300 seeds
    assert "--instances 16" in refused.value.remedy and "world.test_all" in refused.value.remedy
    asked = AgentEvaluation.Config(model="smollm2", worlds={"lite": lite}, instances=33)
    with pytest.raises(ConfigError, match="has only 16 distinct test instances"):
        AgentEvaluation(asked).evaluate(None, "lite", lite)  # no page was opened before
    # A validation counts what there is, and each task of it equally often.
    assert len(EvenTasks(lite, 100, split=Split.VALIDATION).seeds) == 25


def test_a_run_tests_on_all_there_are_and_says_that_it_wanted_more(lite, caplog):
    with BatchRollout({"lite": lite}) as rollout:
        assert len(rollout.distinct_seeds("lite", 16, Split.TEST)) == 16
        assert not caplog.records
        assert len(rollout.distinct_seeds("lite", 33, Split.TEST)) == 16
    (record,) = caplog.records
    said = "lite: 16 distinct test instances found, of 33 that were asked for"
    assert record.getMessage() == said
    recipe = webrl_llama_8b_webarena_lite()
    splits = ((Split.VALIDATION, recipe.validation, 25), (Split.TEST, recipe.test, 16))
    for split, of_a_site, of_all in splits:
        sites = [lite.replace(only=site.only).build() for site in recipe.families.values()]
        counts = [len(site.instances(split)) for site in sites]
        assert max(counts) == of_a_site and sum(counts) == of_all


# --- all tasks of a collection --------------------------------------------------------------------


def test_all_tasks_of_a_collection_can_be_tested(lite):
    whole = lite.replace(test_all=True)
    world = whole.build()
    assert [len(world.instances(split)) for split in Split] == [0, 0, 165]
    assert len(agents.tested_instances(whole, Evaluate.Config(instances=165))) == 165
    assert all(split_of(name) is Split.TEST for name in world.instances(Split.TEST))
    with pytest.raises(WorldError, match="no train instance") as refused:
        world.reset(seed=0, options={"split": Split.TRAIN})
    assert "leaves none for training" in refused.value.remedy
    with BatchRollout({"whole": whole}) as rollout:
        assert rollout.distinct_seeds("whole", 4, Split.VALIDATION) == []


def test_a_run_that_practised_them_is_not_tested_on_all_of_them(lite, tmp_path):
    trained = webrl_llama_8b_webarena_lite().replace(families={"lite": lite})
    write_manifest(tmp_path / "run", dump(trained), {})
    (tmp_path / "run" / "model").mkdir()
    (tmp_path / "run" / "model" / "config.json").write_text("{}")

    def check(world, model="run"):
        refuse_practised(str(tmp_path / model), {"webarena": world})

    whole = lite.replace(test_all=True)
    # The public collections hold the same tasks.
    for world in (whole, whole.replace(tasks="webarena"), whole.replace(only=(7,))):
        for model in ("run", "run/model"):
            with pytest.raises(ConfigError, match=r"webarena: .* has practised some of them"):
                check(world, model)
    config = AgentEvaluation.Config(model=str(tmp_path / "run"), worlds={"all": whole})
    with pytest.raises(ConfigError, match="all: its test holds all tasks"):
        AgentEvaluation(config).check_model(None)
    check(lite)
    check(whole.replace(tasks="mini"))
    check(whole, "elsewhere")


def test_a_run_does_not_test_on_all_of_what_it_practises(lite):
    whole = lite.replace(test_all=True)
    config = WebRl.Config(families={"lite": lite}, unseen={"whole": whole})
    with pytest.raises(ConfigError, match="a family here practises some of them"):
        config.check_together()
    config.replace(families={"pages": MiniWob.Config()}).check_together()
    config.replace(
        families={"some": lite.replace(only=(7, 20))},
        unseen={"others": whole.replace(only=(21, 33))},
    ).check_together()


# --- files ----------------------------------------------------------------------------------------


def test_the_split_of_a_task_does_not_depend_on_where_its_file_lies(file, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere" / "mine.json"
    elsewhere.parent.mkdir()
    shutil.copy(file, elsewhere)
    monkeypatch.chdir(tmp_path)
    places = ("own.json", "./own.json", file, elsewhere)
    first, *others = [own(place).build().instances(Split.TEST) for place in places]
    assert first and all(names == first for names in others)
    whole = own("own.json", test_all=True)
    assert whole.shares_tasks(dump(own(elsewhere)))
    elsewhere.write_text(json.dumps(rows(61)))
    assert own(elsewhere).build().instances(Split.TEST) != first
    assert not whole.shares_tasks(dump(own(elsewhere)))


def test_a_file_that_a_manifest_names_is_not_read_unless_it_is_as_large_as_ours(
    file, tmp_path, monkeypatch
):
    read = []
    monkeypatch.setattr(
        tasks, "file_sha256", lambda path: read.append(path) or path.read_text()[:9]
    )
    endless = tmp_path / "endless"
    endless.write_text(file.read_text() + " ")
    assert not tasks.share_tasks(str(file), (), str(endless), ()) and not read
    endless.write_text(file.read_text())
    assert tasks.share_tasks(str(file), (), str(endless), ()) and len(read) == 2


def test_known_collections_go_by_their_names():
    world = WebArena.Config(tasks="mini", addresses=OWN).build()
    named = {name for split in Split for name in world.instances(split)}
    assert instance_id({"tasks": "mini", "task": 30}) in named
    assert len(named) == len(world.tasks) == 69
