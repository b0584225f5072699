"""TextWorld: cached games, TextWorld's own rules, and predictions as changes of facts."""

import json

import pytest

pytest.importorskip("textworld", reason="needs the extra: pip install 'terrella[text]'")

from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.core.types import Split, Status, Text, show_text
from terrella.policies.basic import Expert
from terrella.verify.properties import REWARDS
from terrella.worlds.textworld import TextWorld
from terrella.worlds.textworld.facts import (
    Change,
    FactReward,
    FactView,
    read_change,
    with_implied,
    written_facts,
)
from terrella.worlds.textworld.games import Size, load_game, successors

SMALL = TextWorld.Config(rooms=(2, 3), objects=(2, 3), quest=2, games=8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TERRELLA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_game_is_generated_once_and_can_be_won():
    size = Size(2, 2, 2)
    game = load_game(size, 1)
    load_game.cache_clear()
    assert load_game(size, 1) == game
    facts = game.facts
    for command in game.walkthrough:
        assert not game.wins <= facts
        facts = successors(facts)[command]
    assert game.wins <= facts


def test_the_error_for_a_broken_file_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("TERRELLA_CACHE", str(tmp_path))
    path = tmp_path / "textworld/2-2-2/3.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"facts": []}))
    with pytest.raises(WorldError, match="delete it"):
        load_game(Size(2, 2, 2), 3)


def test_the_expert_wins_and_looking_changes_nothing():
    world = SMALL.build()
    assert play(world, Expert.Config().build(), seed=0).success
    world.reset(seed=0)
    before = world.state
    world.step("look")
    assert world.state == before


def test_a_prediction_task_is_one_step_and_its_answer_the_change_of_facts():
    world = SMALL.replace(answer="difference", max_steps=1).build()
    changed = 0
    for seed in range(30):
        seen, _ = world.reset(seed=seed)
        start = world.state
        action = world.actions()[seed % len(world.actions())]
        answer, _, terminated, _, _ = world.step(action)
        change = FactView().read(answer)
        assert terminated and isinstance(change, Change)
        after = successors(start.facts).get(action, start.facts)
        assert (start.facts - change.removed) | change.added == after
        changed += bool(change.added)
        for reward in REWARDS:
            verifier = FactReward.Config(reward=reward).build()
            assert verifier.verify(answer, answer, seen).value == 1.0
    assert 5 <= changed <= 28


def test_inverse_facts_are_written_once():
    facts = frozenset({"north_of r1 r0", "south_of r0 r1", "free r0 r1", "free r1 r0", "open d0"})
    written = written_facts(facts)
    assert written == ["free r0 r1", "north_of r1 r0", "open d0"]
    assert with_implied(frozenset(written)) == facts


@pytest.mark.parametrize(
    "text",
    ["", "+", "at P r0", "+at P r0;+at P r0", "-at P r9", "+in o0 I;=", "= =", "+a b c d e f"],
)
def test_a_malformed_reply_is_unparsable(text):
    seen, truth = Text("1/2/2;at P r0;open d0"), Text("+at P r1;-at P r0")
    verdict = FactReward.Config().build().verify(Text(text), truth, seen)
    assert verdict.status is Status.UNPARSABLE
    assert read_change(show_text(truth)).removed == {"at P r0"}


def test_blanks_around_a_reply_do_not_matter():
    seen, truth = Text("1/2/2;at P r0;open d0"), Text("+at P r1;-at P r0")
    for text in ("\n+at P r1;-at P r0\n", " +at P r1;-at P r0"):
        assert FactReward.Config().build().verify(Text(text), truth, seen).value == 1.0


def test_held_out_games_are_new_games():
    world = SMALL.build()
    instances = {split: set() for split in (Split.TRAIN, Split.TEST, Split.VALIDATION)}
    for split, drawn in instances.items():
        for seed in range(6):
            try:
                world.reset(seed=seed, options={"split": split})
            except WorldError:
                continue  # eight games need not fill three splits
            drawn.add(world.instance)
    held_out = instances[Split.TEST] | instances[Split.VALIDATION]
    assert instances[Split.TRAIN] and not instances[Split.TRAIN] & held_out
    with pytest.raises(ConfigError, match="least, most"):
        SMALL.replace(rooms=(3, 2)).build()
