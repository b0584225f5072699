"""Viewer pages and their data, without a browser."""

import base64
import dataclasses
import gzip
import hashlib
import io
import json
import math
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.support.made_episodes import EPISODES, extras_of, grid, made
from tests.support.made_models import Lying, by_chance, certified_model_of
from tests.support.manifests import write_manifest

from terrella.commands.view import View
from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.gym_world import GymWorld
from terrella.core.types import Text
from terrella.data.row_journal import RowJournal
from terrella.policies.basic import Random
from terrella.show.counterfactuals import EndedError, EpisodeAnalyzer
from terrella.show.page import render_page, write_pages
from terrella.show.page_data import PageBuilder
from terrella.show.png import png
from terrella.show.runs import Run, read_run
from terrella.verify.text import Exact
from terrella.worlds.frozen_lake import FrozenLake

VIEWER = Path(__file__).parents[3] / "viewer"


def read_back(page):
    (packed,) = re.findall(r'id="data">(.*?)</script>', page, re.S)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def page_of(*names):
    builder = PageBuilder("made")
    for number, name in enumerate(names):
        episode, wrong = EPISODES[name]
        builder.add(episode, number, extras_of(episode, wrong))
    return builder


def test_a_page_holds_its_data_and_each_observation_once():
    data = read_back(render_page(page_of(*EPISODES).data()))
    worlds = [row["world"] for row in data["episodes"]]
    assert worlds == ["frozen_lake", "kitchen", "counter", "shop", "tabletop"]
    assert len(data["observations"]) == len(set(map(json.dumps, data["observations"])))
    step = data["episodes"][0]["steps"][-1]
    assert data["observations"][step["seen"]]["text"] == grid(2, 1).text
    assert data["observations"][step["predicted"]["seen"]]["text"] == grid(1, 1).text
    assert step["predicted"]["verdict"]["value"] == 0 and step["risk"] == 0.7


def test_a_run_that_diverged_can_be_viewed(tmp_path):
    """NaN and infinity are no JSON; the other points of the curve are there."""
    rows = [(1, 0.1, 0.5), (2, 0.2, math.nan), (3, 0.3, math.inf), (4, 0.4, 0.7)]
    curve = [{"step": step, "reward": reward, "kl": kl} for step, reward, kl in rows]
    (tmp_path / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve))
    metric = {"mean": 0.9, "low": None, "high": None, "n": 8}
    config = {"class": "terrella.pipelines.rlvr:Rlvr", "seed": 0, "ask": "action"}
    write_manifest(tmp_path, config, {"before": metric, "after": metric, "baselines": {}})
    (page,) = View(View.Config(run=tmp_path)).write()
    curves = {each["name"]: each["values"] for each in read_back(page.read_text())["curves"]}
    assert curves == {"reward": [0.1, 0.2, 0.3, 0.4], "kl (not finite in 2 steps)": [0.5, 0.7]}


def test_a_reward_that_is_no_number_is_shown_as_unknown():
    episode = made("x", [Text("a"), Text("b")], ["go"], seed=0, value=1.0)
    step = dataclasses.replace(episode.transitions[0], reward=math.nan, info={"loss": math.inf})
    builder = PageBuilder("made")
    builder.add(dataclasses.replace(episode, transitions=(step,)), 0)
    (row,) = read_back(render_page(builder.data()))["episodes"][0]["steps"]
    assert row["reward"] is None and row["info"] == {"loss": None}


def test_hostile_text_cannot_leave_its_data():
    bad = Text("</script><script>alert(1)</script>\ud800\x00")
    builder = PageBuilder("<b>t</b></title><script>alert(2)</script>")
    builder.add(made("x", [bad, bad], ["<img src=x onerror=alert(3)>"]), 0)
    page = render_page(builder.data())
    assert "alert(" not in page.replace("&lt;script&gt;alert(2)", "")
    assert read_back(page)["observations"][0]["text"] == bad.text


def test_the_policy_allows_our_script_and_no_connection():
    page = render_page(page_of("grid").data())
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)">', page)
    (script,) = re.findall(r"</script><script>(.*?)</script></body>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "connect-src 'none'" in policy
    assert not re.findall(r"(?:src|href)=[\"']?https?:", page)


def test_a_large_run_is_paged_and_no_episode_is_lost(tmp_path):
    rng, builder = np.random.default_rng(0), PageBuilder("large")
    for number in range(40):
        noise = Text(rng.bytes(3000).hex())
        builder.add(made("x", [noise, noise], ["a"], seed=number), number)
    (tmp_path / "view-99.html").write_text("of an earlier, larger run")
    pages = write_pages(builder.data(), tmp_path, max_bytes=120_000)
    assert len(pages) > 1 and all(page.stat().st_size <= 120_000 for page in pages)
    data = [read_back(page.read_text()) for page in pages]
    assert [row["id"] for share in data for row in share["episodes"]] == list(range(40))
    assert data[1]["pages"] == [page.name for page in pages]
    assert not (tmp_path / "view-99.html").exists()
    last = data[-1]["episodes"][-1]
    assert data[-1]["observations"][last["first"]]["text"] == builder.observations[-1]["text"]


def test_groups_without_variance_are_marked():
    builder = PageBuilder("groups")
    rewards = [(1, 1.0), (1, 1.0), (2, 0.0), (2, 1.0), (3, 0.0), (4, None), (4, None)]
    for number, (seed, value) in enumerate(rewards):
        builder.add(made("x", [Text("a"), Text("b")], ["go"], value=value, seed=seed), number)
    flat = [row["flat"] for row in builder.data()["episodes"]]
    assert flat == [True, True, False, False, False, True, True]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_holds_the_pixels(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    file = io.BytesIO(png(pixels))
    assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    chunks = {}
    while head := file.read(8):
        length, name = struct.unpack(">I4s", head)
        chunks[name] = file.read(length)
        assert struct.unpack(">I", file.read(4))[0] == zlib.crc32(name + chunks[name])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(5, -1)
    assert (rows[:, 1:].reshape(pixels.shape) == pixels).all()


# --- predictions and counterfactuals --------------------------------------------------------------


def lake(success_rate, episodes=8):
    config = FrozenLake.Config(size=3, success_rate=success_rate)
    return config, [
        play(config.build(), Random.Config().build(), seed=seed) for seed in range(episodes)
    ]


def test_a_lying_model_is_shown_as_wrong_exactly_where_it_lies():
    config, episodes = lake(success_rate=1.0)
    analyzer = EpisodeAnalyzer(config, certified_model_of(Lying(config.build(), by_chance(0.5))))
    predictions = [step for steps in analyzer.predict(episodes) for step in steps]
    steps = [step for episode in episodes for step in episode.transitions]
    right = [
        step.next_observation == predicted.prediction.observation
        for step, predicted in zip(steps, predictions, strict=True)
    ]
    assert 0 < sum(right) < len(right)
    for same, predicted in zip(right, predictions, strict=True):
        verdict = predicted.verdict
        assert (verdict.value == 1.0) == (same and verdict.parts["outcome"] == 1.0)


def test_forks_have_exact_probabilities_and_include_the_taken_action():
    config, episodes = lake(success_rate=0.8)
    for episode, forks in zip(episodes, EpisodeAnalyzer(config).forks(episodes), strict=True):
        assert len(forks) == len(episode.transitions)
        for step, branches in zip(episode.transitions, forks, strict=True):
            assert [branch.action for branch in branches] == ["Left", "Down", "Right", "Up"]
            for branch in branches:
                assert sum(np.exp(result.logprob) for result in branch.real) == pytest.approx(1.0)
            (taken,) = [branch for branch in branches if branch.action == step.action]
            assert step.next_observation in [result.observation for result in taken.real]


def test_a_branch_has_several_actions_and_ends_with_the_episode():
    config, episodes = lake(success_rate=1.0)
    episode = next(e for e in episodes if len(e.transitions) > 2 and e.transitions[-1].terminated)
    analyzer = EpisodeAnalyzer(
        config, certified_model_of(Lying(config.build(), lambda question: False))
    )
    actions = [step.action for step in episode.transitions]
    branch = analyzer.fork(episode, 0, actions)
    last = episode.transitions[-1].next_observation
    assert branch.real[0].observation == branch.imagined[0].observation == last
    with pytest.raises(EndedError, match="over"):
        analyzer.fork(episode, 0, [*actions, "Up"])


def test_a_branch_at_the_end_of_a_cut_off_episode_starts_at_its_last_observation():
    config, episodes = lake(success_rate=1.0)
    whole = next(e for e in episodes if len(e.transitions) > 2)
    cut = dataclasses.replace(whole, transitions=whole.transitions[:2])
    analyzer = EpisodeAnalyzer(
        config, certified_model_of(Lying(config.build(), lambda question: False))
    )
    step = whole.transitions[2]
    branch = analyzer.fork(cut, 2, [step.action])
    assert branch.imagined[0].observation == step.next_observation


def test_worlds_by_dotted_path_have_rows_of_their_own(tmp_path):
    names = ("package.crane:World", "package.lift:World")
    for name in names:
        with RowJournal(tmp_path / "rows", name, key=("seed",)) as journal:
            journal.append({"seed": 0, "world": name})
            journal.finish()
    rows = Run(tmp_path, "evaluation", {}).evaluated_rows
    assert [row["world"] for found in rows.values() for row in found] == list(names)


class Taxi(GymWorld):
    env_id, action_names = "Taxi-v4", ("South", "North", "East", "West", "Pickup", "Dropoff")
    verifier = Exact.Config().build()

    def show(self, native):
        return Text(str([int(n) for n in self.env.unwrapped.decode(native)]))

    def succeeded(self, reward, terminated, info):
        return terminated and reward > 0


def test_a_world_without_a_readable_state_is_replayed():
    config = Taxi.Config(max_steps=4)
    episode = play(config.build(), Random.Config().build(), seed=1)
    (forks,) = EpisodeAnalyzer(config).forks([episode])
    for step, branches in zip(episode.transitions, forks, strict=True):
        (taken,) = [branch for branch in branches if branch.action == step.action]
        assert [result.observation for result in taken.real] == [step.next_observation]


# --- the bundle -----------------------------------------------------------------------------------


def test_the_bundle_was_built_from_these_sources():
    """Also without Node: the first line of the bundle names its sources by hash."""

    def files(folder):
        for entry in sorted(folder.iterdir(), key=lambda path: path.name):
            yield from files(entry) if entry.is_dir() else [entry]

    sources = b"".join(path.read_bytes() for path in files(VIEWER / "src"))
    digest = hashlib.sha256(sources).hexdigest()
    for name in ("viewer.js", "style.css"):
        head = (VIEWER.parent / "src/terrella/show/bundle" / name).read_text().splitlines()[0]
        assert digest in head, "stale: cd viewer && npm ci && npm run build"


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no manifest"):
        read_run(tmp_path)
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(ConfigError, match="begun"):
        read_run(tmp_path)
    write_manifest(tmp_path, {}, {"reward": 3})
    with pytest.raises(ConfigError, match="without a config"):
        read_run(tmp_path)
    write_manifest(tmp_path, {"class": "x:Y"}, {"reward": 3})
    (tmp_path / "curve.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    run = read_run(tmp_path)  # of a pipeline that the viewer does not know
    assert run.kind == "run" and run.world is None and run.curve == [{"step": 1, "reward": 0.5}]
    assert run.metrics == {"reward": 3}
