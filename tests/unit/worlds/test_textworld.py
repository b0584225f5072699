"""TextWorld: games are kept and whole, TextWorld's own rules decide, answers as facts that come and go."""

import json

import pytest

pytest.importorskip("textworld", reason="needs the extra: pip install 'terrella[text]'")

from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.core.types import Split, Status, Text, show_text
from terrella.policies.basic import Expert
from terrella.verify.properties import REWARDS
from terrella.worlds.textworld import TextWorld
from terrella.worlds.textworld.facts import Change, FactReward, FactView, implied, read_change, spoken
from terrella.worlds.textworld.games import Size, load_game, moves

SMALL = TextWorld.Config(rooms=(2, 3), objects=(2, 3), quest=2, games=8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TERRELLA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_game_is_made_once_and_can_be_won():
    size = Size(2, 2, 2)
    game = load_game(size, 1)
    load_game.cache_clear()
    assert load_game(size, 1) == game
    facts = game.facts
    for command in game.walkthrough:
        assert not game.wins <= facts
        facts = moves(facts)[command]
    assert game.wins <= facts


def test_a_broken_file_says_what_to_do(tmp_path, monkeypatch):
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


def test_a_question_is_one_step_and_its_answer_what_came_and_went():
    world = SMALL.replace(answer="difference", max_steps=1).build()
    changed = 0
    for seed in range(30):
        seen, _ = world.reset(seed=seed)
        start = world.state
        action = world.actions()[seed % len(world.actions())]
        answer, _, terminated, _, _ = world.step(action)
        change = FactView().read(answer)
        assert terminated and isinstance(change, Change)
        assert (start.facts - change.removed) | change.added == moves(start.facts).get(action, start.facts)
        changed += bool(change.added)
        for reward in REWARDS:
            assert FactReward.Config(reward=reward).build().verify(answer, answer, seen).value == 1.0
    assert 5 <= changed <= 28


def test_inverse_facts_are_written_once():
    facts = frozenset({"north_of r1 r0", "south_of r0 r1", "free r0 r1", "free r1 r0", "open d0"})
    assert spoken(facts) == ["free r0 r1", "north_of r1 r0", "open d0"] and implied(frozenset(spoken(facts))) == facts


@pytest.mark.parametrize(
    "text", ["", "+", "at P r0", "+at P r0;+at P r0", "-at P r9", "+in o0 I;=", "= ", "+a b c d e f"]
)
def test_a_reply_that_is_none_is_wrong(text):
    seen, truth = Text("1/2/2;at P r0;open d0"), Text("+at P r1;-at P r0")
    verdict = FactReward.Config().build().verify(Text(text), truth, seen)
    assert verdict.status is Status.UNPARSABLE
    assert read_change(show_text(truth)).removed == {"at P r0"}


def test_test_games_are_new_games():
    world = SMALL.build()
    starts = {split: set() for split in (Split.TRAIN, Split.TEST, Split.VALIDATION)}
    for split, found in starts.items():
        for seed in range(6):
            try:
                world.reset(seed=seed, options={"split": split})
            except WorldError:
                continue  # eight games need not fill three splits
            found.add(world.instance)
    assert starts[Split.TRAIN] and not starts[Split.TRAIN] & (starts[Split.TEST] | starts[Split.VALIDATION])
    with pytest.raises(ConfigError, match="least, most"):
        SMALL.replace(rooms=(3, 2)).build()
