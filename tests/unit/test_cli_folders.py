"""A folder that is missing, or of another kind, is refused for that reason."""

import pytest

from terrella.cli.evaluate import evaluate
from terrella.cli.plan import plan
from terrella.cli.sft import sft
from terrella.cli.showing import serve
from terrella.cli.training import certify
from terrella.core.config import dump
from terrella.core.errors import ConfigError, StoreError
from terrella.core.integrity import write_sealed
from terrella.core.run_folder import FORMAT, MANIFEST, SCHEMA
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.show.runs import warn_of_another_world
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban

COMMANDS = {
    "certify": certify,
    "serve": serve,
    "plan": lambda folder: plan(str(folder)),
    "plan a page": lambda folder: plan(str(folder), "counter", proposer="random"),
}


@pytest.fixture
def store(tmp_path):
    config = Collect.Config(
        world=Counter.Config(), policy=Random.Config(), episodes=2, out=tmp_path / "store"
    )
    Collect(config).run(SilentProgress())
    return config.out


def write_run(folder, class_name, **settings):
    plain = {"metrics": {}, "versions": {}, "seconds": 0.0, "files": {}}
    config = {"class": class_name, **settings}
    manifest = {"format": FORMAT, "schema": SCHEMA, "config": config, **plain}
    write_sealed(folder / MANIFEST, manifest)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_missing_folder_is_called_missing(tmp_path, command):
    with pytest.raises(ConfigError, match="nowhere: there is no such folder\n  -> check the path"):
        command(tmp_path / "nowhere")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_store_is_not_a_world_model(store, command):
    with pytest.raises(ConfigError, match="store: is an episode store, not a world model") as no:
        command(store)
    assert no.value.remedy == "name the folder that train-world-model wrote"


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_an_agent_is_not_a_world_model(tmp_path, command):
    write_run(tmp_path, "terrella.pipelines.rlvr:Rlvr")
    with pytest.raises(ConfigError, match="is a run of Rlvr, not a world model"):
        command(tmp_path)


@pytest.mark.parametrize("command", [certify, serve], ids=["certify", "serve"])
@pytest.mark.parametrize("kind", ["PageModel", "TextGameModel", "VideoModel"])
def test_a_model_that_has_no_certificate_is_told_why(tmp_path, command, kind):
    """`train-world-model` wrote it, so to name such a folder would be no remedy."""
    write_run(tmp_path, f"terrella.pipelines.some:{kind}")
    with pytest.raises(ConfigError, match=f"run of {kind}: such a model is measured") as no:
        command(tmp_path)
    assert "train-world-model" not in no.value.remedy and "manifest.json" in no.value.remedy


ASKED = {
    "plan": lambda folder, world: plan(str(folder), world, dry_run=True),
    "evaluate": lambda folder, world: evaluate(str(folder), (world,), dry_run=True),
}


@pytest.mark.parametrize("command", ASKED.values(), ids=ASKED)
def test_another_world_than_that_of_the_model_is_noticed(tmp_path, caplog, command):
    """Every reply is then invalid, and nothing else would say why."""
    world = dump(FrozenLake.Config(size=3))
    write_run(tmp_path, "terrella.pipelines.world_model:TrainWorldModel", world=world)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    command(tmp_path, "frozen_lake")
    assert caplog.messages == []
    command(tmp_path, "sokoban")
    told = f"fitted to frozen_lake ({tmp_path / MANIFEST}), not to sokoban"
    assert [told in message for message in caplog.messages] == [True]


def test_all_worlds_of_a_run_are_its_own(tmp_path, caplog):
    gated = {"class": "terrella.world_models.imagine_gate:GatedWorld"}
    others = [{"world": {**gated, "world": dump(Counter.Config())}}]
    lake = dump(FrozenLake.Config(size=3))
    write_run(tmp_path, "terrella.pipelines.rlvr:Rlvr", world=lake, others=others)
    for world in (FrozenLake.Config(), Counter.Config()):
        warn_of_another_world(tmp_path, world)
    assert caplog.messages == []
    warn_of_another_world(tmp_path, Sokoban.Config())
    assert "fitted to counter and frozen_lake" in caplog.text


def test_sft_looks_for_the_data_before_it_judges_the_options(tmp_path):
    with pytest.raises(StoreError, match="nowhere: is neither a file nor a folder"):
        sft(tmp_path / "nowhere", learn="agent")
    with pytest.raises(StoreError, match="has no file that ends with"):
        sft(tmp_path, learn="agent")
    (tmp_path / "chats.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="holds conversations"):
        sft(tmp_path, learn="agent")
