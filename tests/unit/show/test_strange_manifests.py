"""A sealed manifest may hold anything: what shows a run says which one is strange, in our words."""

import copy

import pytest
from tests.support.made_episodes import made
from tests.support.manifests import write_manifest

from terrella.commands.view import View
from terrella.core.errors import ConfigError, StoreError, TerrellaError
from terrella.core.integrity import read_sealed, write_sealed
from terrella.core.run_folder import check_spec
from terrella.core.types import Text
from terrella.data.parts import encode_part
from terrella.data.store import finish, write_part
from terrella.show.cards import card
from terrella.show.report_data import load_report_data
from terrella.show.report_sections import sections
from terrella.show.runs import read_run

pytest.importorskip("matplotlib", reason="needs the extra: pip install 'terrella[plots]'")

STRANGE = ([], "x", -1, {"a": []})
WORLD = {"class": "terrella.worlds.counter:Counter"}
METRIC = {"mean": 0.1, "low": 0.0, "high": 0.2, "n": 3}
METRICS = {"before": METRIC, "after": METRIC, "baselines": {"random": 0.1}, "real_steps": {"a": 1}}


def view(folder):
    config = View.Config(run=folder, episodes=1, forked=0, photographed=0, replayed=0)
    return View(config).build_page()


SHOW = {
    "run": read_run,
    "card": lambda folder: card(read_run(folder)),
    "report": lambda folder: sections(load_report_data([folder])),
    "view": view,
}


def store(folder):
    folder.mkdir()
    config = {"class": "terrella.pipelines.collect.pipeline:Collect", "world": WORLD}
    spec = check_spec(folder, {"config": config})
    episodes = [made("x", [Text("a"), Text("b")], ["go"], seed=n, value=n % 2) for n in range(4)]
    part = write_part(folder, encode_part(episodes, first=0, spec=spec))
    finish(folder, [part], {"config": config})


def world_model(folder):
    config = {"class": "terrella.pipelines.world_model:TrainWorldModel", "world": WORLD}
    write_manifest(folder, {**config, "ask": "observation", "seed": 0}, METRICS)


def places(value, path=()):
    yield path
    for key in value if isinstance(value, dict) else ():
        yield from places(value[key], (*path, key))


def with_value(manifest, path, value):
    changed = copy.deepcopy(manifest)
    *outer, last = path
    inner = changed
    for key in outer:
        inner = inner[key]
    inner[last] = value
    return changed


@pytest.mark.parametrize("make", [store, world_model])
def test_strange_values_are_no_tracebacks(make, tmp_path):
    make(tmp_path / "run")
    honest = read_sealed(tmp_path / "run/manifest.json")
    for name in ("run", "report") if make is world_model else SHOW:
        SHOW[name](tmp_path / "run")
    refused = 0
    for path in filter(None, places(honest)):
        for value in STRANGE:
            write_sealed(tmp_path / "run/manifest.json", with_value(honest, path, value))
            for show in SHOW.values():
                try:
                    show(tmp_path / "run")
                except TerrellaError as error:
                    refused += 1
                    assert isinstance(error, ConfigError | StoreError)
    assert refused > 50


def test_a_strange_run_is_named(tmp_path):
    world_model(tmp_path / "run")
    manifest = read_sealed(tmp_path / "run/manifest.json")
    manifest["metrics"]["real_steps"] = []
    write_sealed(tmp_path / "run/manifest.json", manifest)
    with pytest.raises(StoreError, match="get it from its author again") as refused:
        load_report_data([tmp_path / "run"])
    assert refused.value.where == str(tmp_path / "run")
