"""ByteSized32: two data formats, views that read back, rewards, splits and prompts."""

import json
import lzma
import os

import pytest
from tests.support.made_games import official_rows

from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.core.types import Split, State, Status, Text, show_text
from terrella.policies.basic import Random
from terrella.verify.properties import REWARDS, reward
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.baselines import NearestNeighbour, no_change
from terrella.worlds.bytesized32.published_prompt import example_records
from terrella.worlds.bytesized32.rewards import GameReward, released
from terrella.worlds.bytesized32.sample import sample_games
from terrella.worlds.bytesized32.sources import VARIABLE, load_records
from terrella.worlds.bytesized32.splits import held_out, split_records
from terrella.worlds.bytesized32.things import objects_of, things_of
from terrella.worlds.bytesized32.views import VIEWS, read_before, read_reply

QUERIES = ("full", "action", "tick", "score")


@pytest.fixture(autouse=True)
def without_data(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def records():
    return load_records(None)


def test_both_data_formats_give_identical_records(tmp_path):
    (tmp_path / "packed").mkdir()
    (tmp_path / "lines").mkdir()
    lines = {"train": [], "test": []}
    for game in sample_games():
        with lzma.open(tmp_path / "packed" / f"{game['game']}.json.xz", "wt") as file:
            json.dump(game, file)
        for split, row in official_rows(game):
            lines[split].append(json.dumps(row))
    for split, texts in lines.items():
        (tmp_path / "lines" / f"{split}.jsonl").write_text("\n".join(texts), "utf-8")
    packed = load_records(tmp_path / "packed")
    imported = load_records(tmp_path / "lines")
    assert len(packed) > 300 and packed == imported
    # States are shared, not copied.
    assert len({id(record.state) for record in imported}) < len(imported) / 5


def test_the_error_for_a_folder_without_data_says_where_to_get_it(tmp_path):
    with pytest.raises(WorldError, match=r"train\.jsonl") as refused:
        ByteSized32.Config(path=tmp_path).build()
    assert "--set world.path=FOLDER (check and play: --set path=FOLDER)" in refused.value.remedy
    (tmp_path / "train.jsonl").write_text('{"game": "x"}')
    with pytest.raises(WorldError, match="cannot be read"):
        ByteSized32.Config(path=tmp_path).build()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("whole", [False, True])
def test_every_answer_reads_back_as_the_state_after(records, view, whole):
    for record in records[::3]:
        for asked in QUERIES:
            before, after = record.before_and_after(asked)
            shown = VIEWS[view].state(record.game, before)
            game, seen = read_before(shown)
            answer = VIEWS[view].answer(game, before, after, whole=whole)
            predicted = read_reply(answer, game, seen)
            assert without_types(predicted) == without_types(after)  # compact leaves types out
            assert view != "json" or predicted == after


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("around", ["\n{}\n", " {}", "\n\n{}\n\n"])
def test_blanks_around_an_answer_do_not_matter(records, view, around):
    before, after = records[0].before_and_after("full")
    answer = show_text(VIEWS[view].answer(records[0].game, before, after, whole=False))
    known = read_reply(Text(answer), records[0].game, before)
    assert read_reply(Text(around.format(answer)), records[0].game, before) == known


def without_types(things):
    return {
        key: {path: value for path, value in thing.items() if path != ":type"}
        for key, thing in things.items()
    }


def test_things_convert_back_to_objects(records):
    for record in records[::5]:
        after = record.tick.apply(record.act.apply(record.state.objects))
        objects, score = objects_of(things_of(after, record.score))
        assert objects == [
            {**obj, "contains": sorted(obj["contains"], key=number_in)} for obj in after
        ]
        assert score == record.score


def number_in(name):
    return int(name.split("ID: ")[1][:-1])


def test_the_truth_scores_one_and_nothing_else_does(records):
    creating = 0
    for record in records:
        before, after = record.before_and_after("full")
        for kind in REWARDS:
            assert reward(kind, before, after, after).value == 1.0
            assert (reward(kind, before, before, after).value == 1.0) == (not record.changed)
        created = bool(after.keys() - before.keys())
        creating += created
        # The published reward loses new objects.
        assert (released(before, after, after).value == 1.0) == (not created)
    assert creating


def test_released_ignores_invented_properties_and_ours_do_not(records):
    record = next(
        record for record in records if record.changed and record.action.startswith("turn on")
    )
    before, after = record.before_and_after("full")
    invented = {**after, "#3": {**after["#3"], "isBogus": "true"}}
    assert released(before, invented, after).value == 1.0
    values = [reward(kind, before, invented, after).value for kind in REWARDS]
    assert all(0 <= value < 1 for value in values)


UNREADABLE = [
    "",
    "==",
    "#99<#0",
    "-#99",
    "+#0<#1",
    "#0",
    "#0<",
    "#3 isOn+1",
    "#3 temperature+x",
    "=;=",
    "#0 a=!",
    "{",
    "[]",
    "#3 isOn=true;#3 isOn=true",
    "made-tea;#0;#0",
    '{"modified": [], "removed": [99]}',
    '{"modified": {}}',
    '{"modified": [{"uuid": 3}], "removed": []}',
    '{"modified": [], "removed": [], "more": 1}',
    '{"game_state": []}',
    '{"game_state": [1, 2]}',
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_an_unreadable_reply_is_unparsable_and_scores_zero(records, text):
    verifier = GameReward.Config(reward="task_specific").build()
    record = next(record for record in records if record.game == "made-tea" and record.changed)
    before, after = record.before_and_after("full")
    shown = VIEWS["compact"].state(record.game, before)
    truth = VIEWS["compact"].answer(record.game, before, after, whole=False)
    for reply in (Text(text), State(text)):
        verdict = verifier.verify(reply, truth, shown)
        assert verdict.status is Status.UNPARSABLE and verdict.value == 0.0


def test_numbers_change_by_an_amount_or_to_a_value(records):
    record = next(record for record in records if record.action == "wait" and record.changed)
    before, after = record.before_and_after("full")
    shown = VIEWS["compact"].state(record.game, before)
    truth = VIEWS["compact"].answer(record.game, before, after, whole=False)
    assert show_text(truth) == "#3 temperature+10.0"
    verifier = GameReward.Config().build()
    value = after["#3"]["temperature"]
    assert verifier.verify(Text(f"#3 temperature={value}"), truth, shown).value == 1.0
    assert verifier.verify(Text("#3 temperature+5.0"), truth, shown).value == 0.0


def test_splits_separate_train_validation_and_test(records):
    games = {record.game for record in records} - {"dishwasher"}
    official, dedup, held = (
        split_records(records, name) for name in ("official", "official_dedup", "held_out_games")
    )
    for pools in (official, dedup, held):
        assert keys(pools[Split.TRAIN])
        assert not keys(pools[Split.TRAIN]) & keys(pools[Split.VALIDATION])
    train_keys = keys(official[Split.TRAIN]) | keys(official[Split.VALIDATION])
    assert keys(dedup[Split.TEST]) == keys(official[Split.TEST]) - train_keys
    test_games = {record.game for record in held[Split.TEST]}
    assert test_games == set(held_out(games))
    assert not test_games & {record.game for record in held[Split.TRAIN]}
    assert len(held_out({f"game {n:02}" for n in range(31)})) >= 6


def keys(records):
    return {record.key for record in records}


def test_drawing_follows_split_and_gold_share():
    world = ByteSized32.Config(gold_share=1.0).build()
    for seed in range(30):
        world.reset(seed=seed, options={"split": "test"})
        assert world.record.changed and world.record.split == "test"
    with pytest.raises(ConfigError, match="share"):
        ByteSized32.Config(gold_share=2.0).build()


def test_constant_properties_are_left_out_and_answers_still_verify():
    world = ByteSized32.Config(focus="varying").build()
    whole = ByteSized32.Config().build()
    for record in world.pools[Split.TEST]:
        step = world.transition(record)
        assert "isMoveable" not in show_text(step.observation)
        assert len(show_text(step.observation)) < len(show_text(whole.begin(record)))
        answer = step.next_observation
        assert world.verifier.verify(answer, answer, step.observation).value == 1.0
    fragments = {"made-tea", "#3", " temperature=", "+10.0", "take "}
    assert fragments <= set(world.vocabulary())


def test_nearest_neighbour_copies_the_change(records):
    pools = split_records(records, "official")
    baseline = NearestNeighbour([*pools[Split.TRAIN], *pools[Split.VALIDATION]])
    test = pools[Split.TEST]
    right = [baseline.predict(record) == record.before_and_after("full")[1] for record in test]
    unchanged = [no_change(record) == record.before_and_after("full")[1] for record in test]
    assert sum(right) > sum(unchanged)
    assert all(ok for ok, record in zip(unchanged, test, strict=True) if not record.changed)


def test_a_prompt_has_format_task_and_rules(tmp_path):
    for kind in ("object", "action", "score"):
        rules = {
            "made-tea": f"the {kind} rule",
            "made-soup": [f"the {kind} rule"],
            "made-toast": {"a": f"the {kind} rule"},
        }
        (tmp_path / f"{kind}_rules.json").write_text(json.dumps(rules))
    world = ByteSized32.Config(view="json", rules_folder=tmp_path, asked="tick").build()
    world.reset(seed=0)
    instruction = world.instruction
    assert all(f"the {kind} rule" in instruction for kind in ("object", "action", "score"))
    assert '"modified"' in instruction and "next tick" in instruction
    assert world.record.state.task in instruction
    (tmp_path / "score_rules.json").unlink()
    with pytest.raises(WorldError, match="human_written_rules"):
        _ = ByteSized32.Config(rules_folder=tmp_path.parent).build().instruction


def test_the_published_prompt_has_two_examples_and_rules_before_the_game():
    config = ByteSized32.Config(view="json", prompt="published", examples=2)
    world = config.build()
    world.reset(seed=0)
    text = world.instruction
    parts = [
        "You are a simulator of a text game.",
        "Example game task description:",
        "in the example game:",
        "the game state is changed by an action:",
        "the game state is changed over the time.",
        "Here is the game that you need to simulate:",
        world.record.state.task,
        "Here are the descriptions of all game objects properties:",
        "Here are the descriptions of all game actions:",
        "Here is a description of the score function of the game:",
        f"The current game UUID base is {world.record.state.max_uuid}",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    by_action, by_time = example_records(None)
    assert by_action.act.modified and not by_action.tick.modified
    assert by_time.tick.modified and not by_time.act.modified
    assert text.count("The expected response is:") == 2
    one = config.replace(examples=1).build()
    assert one.instruction.count("The expected response is:") == 1
    for wrong in ({"view": "compact"}, {"asked": "tick"}, {"answer": "whole"}, {"examples": 3}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            config.replace(**wrong).build()


def test_the_published_prompt_needs_the_rules_of_real_games(tmp_path):
    for game in sample_games():
        with lzma.open(tmp_path / f"{game['game']}.json.xz", "wt") as file:
            json.dump(game, file)
    config = ByteSized32.Config(view="json", prompt="published", path=tmp_path)
    with pytest.raises(WorldError, match="human_written_rules"):
        config.build()
    for kind in ("object", "action", "score"):
        (tmp_path / f"{kind}_rules.json").write_text(json.dumps({"made-tea": f"the {kind} rule"}))
    world = config.build()
    world.begin(next(row for row in world.pools[Split.TRAIN] if row.game == "made-tea"))
    assert "the action rule" in world.instruction


def test_worked_examples_are_never_trained_on_or_tested(records):
    assert any(record.game == "dishwasher" for record in records)
    for pool in split_records(records, "official").values():
        assert all(record.game != "dishwasher" for record in pool)


def test_an_episode_is_one_recorded_step():
    episode = play(ByteSized32.Config().build(), Random.Config().build(), seed=3)
    assert len(episode.transitions) == 1 and episode.success and episode.transitions[0].terminated


@pytest.mark.slow
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"needs the data: set ${VARIABLE}")
def test_the_published_counts(monkeypatch):
    monkeypatch.setenv(VARIABLE, DATA)
    records = split_records(load_records(None), "official")[Split.TEST]
    changed = [record for record in records if record.changed]
    assert (len(records), len(changed)) == (2954, 1210)
    assert len(split_records(load_records(None), "official_dedup")[Split.TEST]) == 2954 - 629
    for record in records[::10]:
        before, after = record.before_and_after("full")
        assert all(reward(kind, before, after, after).value == 1.0 for kind in REWARDS)


DATA = os.environ.get(VARIABLE, "")
