"""ByteSized32: two routes to the same rows, views that lead back, rewards that are right, splits that hold back."""

import json
import lzma
import os

import pytest

from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.core.types import Split, State, Status, Text, show_text
from terrella.policies.basic import Random
from terrella.verify.properties import REWARDS, reward
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.baselines import NearestNeighbour, no_change
from terrella.worlds.bytesized32.rewards import GameReward, released
from terrella.worlds.bytesized32.sample import sample_games
from terrella.worlds.bytesized32.sources import VARIABLE, load_records
from terrella.worlds.bytesized32.splits import held_out, split_rows
from terrella.worlds.bytesized32.things import objects_of, things_of
from terrella.worlds.bytesized32.views import VIEWS, read_before, read_reply

QUESTIONS = ("full", "action", "tick", "score")


@pytest.fixture(autouse=True)
def without_data(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def rows():
    return load_records(None)


def official(game):
    """The rows of a packed game as the official files write them: whole states."""
    for row in game["transitions"]:
        state = game["states"][row["s"]]
        told = {"taskDesc": state["task"], "max_UUID": state["max_uuid"], "look": "not used", "inventory": ""}
        stages, objects = [], {one["uuid"]: one for one in state["objects"]}
        for patch, last in ((None, state["last_action"]), (row["act"], row["a"]), (row["tick"], row["a"])):
            if patch:
                objects = {uuid: one for uuid, one in objects.items() if uuid not in patch["removed"]}
                objects |= {one["uuid"]: one for one in patch["modified"]}
            stages.append({**told, "lastAction": last, "objects": list(reversed(list(objects.values())))})
        names = ("current_state", "action_state", "tick_state")
        yield row["split"], {"game": game["game"], "state_id": str(row["id"]), "current_score_state": state["score"],
                             "next_score_state": row["score"], **dict(zip(names, stages, strict=True))}  # fmt: skip


def test_both_routes_give_identical_records(tmp_path):
    (tmp_path / "packed").mkdir()
    (tmp_path / "lines").mkdir()
    lines = {"train": [], "test": []}
    for game in sample_games():
        with lzma.open(tmp_path / "packed" / f"{game['game']}.json.xz", "wt") as file:
            json.dump(game, file)
        for split, row in official(game):
            lines[split].append(json.dumps(row))
    for split, texts in lines.items():
        (tmp_path / "lines" / f"{split}.jsonl").write_text("\n".join(texts), "utf-8")
    packed, imported = load_records(tmp_path / "packed"), load_records(tmp_path / "lines")
    assert len(packed) > 300 and packed == imported
    assert len({id(row.state) for row in imported}) < len(imported) / 5  # states are shared, not copied


def test_a_folder_without_data_says_where_it_comes_from(tmp_path):
    with pytest.raises(WorldError, match=r"train\.jsonl"):
        ByteSized32.Config(path=tmp_path).build()
    (tmp_path / "train.jsonl").write_text('{"game": "x"}')
    with pytest.raises(WorldError, match="cannot be read"):
        ByteSized32.Config(path=tmp_path).build()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("whole", [False, True])
def test_every_answer_leads_to_the_state_after(rows, view, whole):
    for row in rows[::3]:
        for asked in QUESTIONS:
            before, after = row.question(asked)
            shown = VIEWS[view].state(row.game, before)
            game, seen = read_before(shown)
            answer = VIEWS[view].answer(game, before, after, whole=whole)
            found = read_reply(answer, game, seen)
            assert strip(found) == strip(after)  # few words leave types out
            assert view != "json" or found == after


def strip(things):
    return {key: {path: value for path, value in thing.items() if path != ":type"} for key, thing in things.items()}


def test_things_lead_back_to_objects(rows):
    for row in rows[::5]:
        after = row.tick.apply(row.act.apply(row.state.objects))
        objects, score = objects_of(things_of(after, row.score))
        assert objects == [{**one, "contains": sorted(one["contains"], key=numbered)} for one in after]
        assert score == row.score


def numbered(name):
    return int(name.split("ID: ")[1][:-1])


def test_the_truth_scores_one_and_nothing_else_does(rows):
    creating = 0
    for row in rows:
        before, after = row.question("full")
        for kind in REWARDS:
            assert reward(kind, before, after, after).value == 1.0
            assert (reward(kind, before, before, after).value == 1.0) == (not row.changed)
        created = bool(after.keys() - before.keys())
        creating += created
        assert (released(before, after, after).value == 1.0) == (not created)  # the published one loses new objects
    assert creating


def test_released_does_not_see_what_is_invented_and_ours_does(rows):
    row = next(row for row in rows if row.changed and row.action.startswith("turn on"))
    before, after = row.question("full")
    invented = {**after, "#3": {**after["#3"], "isBogus": "true"}}
    assert released(before, invented, after).value == 1.0
    values = [reward(kind, before, invented, after).value for kind in REWARDS]
    assert all(0 <= value < 1 for value in values)


WRONG = ["", "==", "#99<#0", "-#99", "+#0<#1", "#0", "#0<", "#3 isOn+1", "#3 temperature+x", "=;=", "#0 a=!", "{", "[]",
         "#3 isOn=true;#3 isOn=true", "made-tea;#0;#0", '{"modified": [], "removed": [99]}', '{"modified": {}}',
         '{"modified": [{"uuid": 3}], "removed": []}', '{"modified": [], "removed": [], "more": 1}',
         '{"game_state": []}', '{"game_state": [1, 2]}']  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_reply_that_is_none_is_wrong_and_breaks_nothing(rows, text):
    verifier = GameReward.Config(reward="task_specific").build()
    row = next(row for row in rows if row.game == "made-tea" and row.changed)
    before, after = row.question("full")
    shown, truth = (view(VIEWS["compact"]) for view in (
        lambda v: v.state(row.game, before), lambda v: v.answer(row.game, before, after, whole=False)))  # fmt: skip
    for reply in (Text(text), State(text)):
        verdict = verifier.verify(reply, truth, shown)
        assert verdict.status is Status.UNPARSABLE and verdict.value == 0.0


def test_numbers_change_by_an_amount_and_can_be_said_outright(rows):
    row = next(row for row in rows if row.action == "wait" and row.changed)
    before, after = row.question("full")
    shown = VIEWS["compact"].state(row.game, before)
    truth = VIEWS["compact"].answer(row.game, before, after, whole=False)
    assert show_text(truth) == "#3 temperature+10.0"
    verifier = GameReward.Config().build()
    value = after["#3"]["temperature"]
    assert verifier.verify(Text(f"#3 temperature={value}"), truth, shown).value == 1.0
    assert verifier.verify(Text("#3 temperature+5.0"), truth, shown).value == 0.0


def test_splits_hold_back_what_they_say(rows):
    games = {row.game for row in rows}
    official, dedup, held = (split_rows(rows, name) for name in ("official", "official_dedup", "held_out_games"))
    for pools in (official, dedup, held):
        learnt = {row.key for row in pools[Split.TRAIN]}
        assert learnt and not learnt & {row.key for row in pools[Split.VALIDATION]}
    known = {row.key for split in (Split.TRAIN, Split.VALIDATION) for row in official[split]}
    assert {row.key for row in dedup[Split.TEST]} == {row.key for row in official[Split.TEST]} - known
    asked = {row.game for row in held[Split.TEST]}
    assert asked == set(held_out(games)) and not asked & {row.game for row in held[Split.TRAIN]}
    assert len(held_out({f"game {n:02}" for n in range(31)})) >= 6


def test_drawing_follows_split_and_gold_share():
    world = ByteSized32.Config(gold_share=1.0).build()
    for seed in range(30):
        world.reset(seed=seed, options={"split": "test"})
        assert world.record.changed and world.record.split == "test"
    with pytest.raises(ConfigError, match="share"):
        ByteSized32.Config(gold_share=2.0).build()


def test_what_is_the_same_everywhere_is_left_out_and_answers_still_count():
    world = ByteSized32.Config(focus="varying").build()
    whole = ByteSized32.Config().build()
    for record in world.pools[Split.TEST]:
        step = world.transition(record)
        assert "isMoveable" not in show_text(step.observation)
        assert len(show_text(step.observation)) < len(show_text(whole.begin(record)))
        assert world.verifier.verify(step.next_observation, step.next_observation, step.observation).value == 1.0
    words = world.words()
    assert {"made-tea", "#3", " temperature=", "+10.0", "take "} <= set(words)


def test_nearest_neighbour_copies_the_change(rows):
    pools = split_rows(rows, "official")
    copy = NearestNeighbour([*pools[Split.TRAIN], *pools[Split.VALIDATION]])
    right = [copy.predict(row) == row.question("full")[1] for row in pools[Split.TEST]]
    still = [no_change(row) == row.question("full")[1] for row in pools[Split.TEST]]
    assert sum(right) > sum(still) and all(
        ok for ok, row in zip(still, pools[Split.TEST], strict=True) if not row.changed
    )


def test_a_prompt_tells_form_task_rules_and_examples(tmp_path):
    for kind in ("object", "action", "score"):
        rules = {
            "made-tea": f"the {kind} rule",
            "made-soup": [f"the {kind} rule"],
            "made-toast": {"a": f"the {kind} rule"},
        }
        (tmp_path / f"{kind}_rules.json").write_text(json.dumps(rules))
    world = ByteSized32.Config(view="json", rules_folder=tmp_path, asked="tick").build()
    world.reset(seed=0)
    told = world.instruction
    assert all(f"the {kind} rule" in told for kind in ("object", "action", "score"))
    assert '"modified"' in told and "next tick" in told and world.record.state.task in told
    (tmp_path / "score_rules.json").unlink()
    with pytest.raises(WorldError, match="human_written_rules"):
        _ = ByteSized32.Config(rules_folder=tmp_path.parent).build().instruction


def test_an_episode_is_one_recorded_step():
    episode = play(ByteSized32.Config().build(), Random.Config().build(), seed=3)
    assert len(episode.transitions) == 1 and episode.success and episode.transitions[0].terminated


@pytest.mark.slow
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"needs the data: set ${VARIABLE}")
def test_the_published_counts(monkeypatch):
    monkeypatch.setenv(VARIABLE, DATA)
    rows = split_rows(load_records(None), "official")[Split.TEST]
    changed = [row for row in rows if row.changed]
    assert (len(rows), len(changed)) == (2954, 1210)
    assert len(split_rows(load_records(None), "official_dedup")[Split.TEST]) == 2954 - 629
    for row in rows[::10]:
        before, after = row.question("full")
        assert all(reward(kind, before, after, after).value == 1.0 for kind in REWARDS)


DATA = os.environ.get(VARIABLE, "")
