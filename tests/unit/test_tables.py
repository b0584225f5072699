"""Published numbers follow from their rows, and the README's table does not choose."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.made_models import Doubting, by_chance

from terrella.core.result_rows import read_rows, write_rows
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Mixture
from terrella.recipes import all_recipes, recipe_info
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import common
import families
import first_claims
import provenance
import recompute
import recompute_all
import recompute_coverage
import table_rows
import teaching
import trust_coverage

WORDS = (
    "several alike",
    "earlier calibration",
    "trusts a step in",
    "sets of all results",
    "not timed",
    "firm ice",
    "the curve above its baseline",
    "mixture(expert,random,0.5)",
)
"""Of the README's table."""


def test_the_words_of_the_table_are_in_the_glossary():
    table = "\n".join(first_claims.first_claim_lines())
    glossary = (ROOT / "docs/glossary.md").read_text("utf-8")
    named = glossary.replace("set of all results", "sets of all results")
    for word in WORDS:
        if word in table:
            assert f"| {word.removeprefix('the ')}" in named or f", {word}" in named, word


def test_the_page_of_numbers_says_which_commands_are_of_scripts_that_moved():
    named = {
        script
        for path in common.RESULTS.glob("*.json")
        for script in re.findall(r"results/measure_(\w+)\.py", path.read_text("utf-8"))
    }
    assert named
    assert [name for name in named if not (ROOT / f"benchmarks/{name}.py").exists()] == []
    told = f"{len(provenance.naming_moved_scripts())} of these files name `results/measure_NAME.py`"
    assert told in (ROOT / "docs/numbers.md").read_text("utf-8")


def test_every_number_that_has_rows_is_the_one_that_they_give():
    command = [sys.executable, "benchmarks/tables.py", "--recompute"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A reproduction with rows, in a results folder of its own."""
    rows = {
        "arms": {
            arm: {
                str(seed): {"successes": [won + seed % 2, won + seed // 2, won], "samples": 4}
                for seed in range(4)
            }
            for arm, won in (("spa", 3), ("vanilla", 1))
        }
    }
    claim = {"better": "spa", "worse": "vanilla", "k": 1, "not_below": False}
    record = {"margin": 0.05, "claims": [claim]}
    record |= json.loads(json.dumps(recompute.reproduction(record, rows)))
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(recompute_all, "ROWS", tmp_path / "rows")
    (tmp_path / "spa_sokoban.json").write_text(json.dumps(record))
    write_rows(tmp_path / "rows/spa_sokoban.json.gz", rows)
    return tmp_path


def test_a_table_that_follows_from_its_rows_passes(published):
    assert recompute_all.recompute_all() == ([], [])
    record = json.loads((published / "spa_sokoban.json").read_text())
    assert record["claims"][0]["mean"] == pytest.approx(0.5)
    assert record["claims"][0]["seeds"] == 4


def test_a_changed_row_is_found(published):
    path = published / "rows/spa_sokoban.json.gz"
    rows = read_rows(path)
    rows["arms"]["spa"]["2"]["successes"][1] -= 2
    write_rows(path, rows)
    differences, _ = recompute_all.recompute_all()
    assert any(line.startswith("spa_sokoban.arms.spa.pass@1.per_seed[2]") for line in differences)
    assert any(line.startswith("spa_sokoban.claims[0].per_seed[2]") for line in differences)


def test_a_changed_number_is_found_without_rows(published):
    (published / "rows/spa_sokoban.json.gz").unlink()
    path = published / "spa_sokoban.json"
    record = json.loads(path.read_text())
    assert recompute_all.recompute_all() == ([], ["spa_sokoban"])
    record["claims"][0]["verdict"] = "fails"
    path.write_text(json.dumps(record))
    differences, _ = recompute_all.recompute_all()
    assert differences == ["spa_sokoban.claims[0].verdict: fails there, holds computed"]


def test_rows_that_nothing_reads_are_a_fault(published):
    write_rows(published / "rows/unknown.json.gz", {})
    write_rows(published / "rows/spa_sokoban_later.json.gz", {})
    differences, _ = recompute_all.recompute_all()
    assert differences == [
        "spa_sokoban_later: has rows, but there is no results/spa_sokoban_later.json",
        "unknown: has rows, but nothing computes it from them",
    ]


def test_a_number_that_a_page_reads_and_no_row_gives_is_named(published):
    path = published / "spa_sokoban.json"
    record = json.loads(path.read_text())
    path.write_text(
        json.dumps({**record, "reference_scores": {"random": {"1": 0.3}, "optimal": 1}})
    )
    assert recompute_all.recompute_all() == ([], ["spa_sokoban: reference_scores"])


def with_another_number(record, *keys):
    """The same record with another number at the end of the keys."""
    key, *rest = keys
    changed = with_another_number(record[key], *rest) if rest else record[key] + 0.01
    if isinstance(record, list):
        return [*record[:key], changed, *record[key + 1 :]]
    return {**record, key: changed}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("bytesized32_smollm2", ("arms", "exact", "changed", "per_seed", 0)),
        ("bytesized32_smollm2", ("arms", "n", "changed")),
        ("webrl_smollm2_miniwob", ("unseen_families", "webrl_paper", 0)),
        ("webrl_smollm2_miniwob", ("claims", 0, "p")),
        ("webrl_miniwob", ("unseen_families", "sft", 1)),
        ("webrl_judge", ("flips", "0", "claims_of_success_on_failures", "turned")),
        ("webrl_judge", ("flips", "0", "claims_of_success_on_failures", "asked")),
        ("teaching", ("recipes", "tiny_counter", "seeds", "2000", "baseline")),
        ("evaluate_sokoban", ("scores", "passes", "64", "mean")),
        ("evaluate_sokoban", ("scores", "passes", "1", "low")),
        ("smollm2_counter", ("after", "metric", "mean")),
    ],
)
def test_a_changed_number_is_found(name, keys):
    record = common.read_results(name)
    assert recompute_all.recompute_one(name, record)[0] == []
    differences, _ = recompute_all.recompute_one(name, with_another_number(record, *keys))
    assert differences


def test_a_changed_row_of_each_kind_is_found(monkeypatch):
    """All answers of a seed set to wrong: the case of an audit."""
    rows = common.read_rows("bytesized32_smollm2")
    rows["arms"]["exact"][0] = "0" * len(rows["arms"]["exact"][0])
    monkeypatch.setattr(recompute_all, "read_rows", lambda path: rows)
    record = common.read_results("bytesized32_smollm2")
    differences, _ = recompute_all.recompute_one("bytesized32_smollm2", record)
    assert any("arms.exact.changed.per_seed[0]" in line for line in differences)


def test_parts_without_rows_are_named_beside_parts_with_rows():
    named = {
        name: recompute_all.recompute_one(name, common.read_results(name))[1]
        for name in ("web_pages", "webrl_judge", "teaching", "bytesized32_smollm2")
    }
    assert "web_pages: pages --seed 0" in named["web_pages"]
    assert not any(part.endswith("sft") for part in named["web_pages"])
    assert named["webrl_judge"] == ["webrl_judge: flips"]
    assert named["teaching"] == named["bytesized32_smollm2"] == []


def test_results_without_a_commit_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    records = {
        "whole": {"command": "a", "commit": "abc", "arms": {}},
        "old": {"command": "a", "arms": {}},
        "parts": {"new": {"command": "a", "commit": "abc"}, "old": {"command": "a"}},
        "old_parts": {"one": {"command": "a"}, "two": {"command": "a"}},
    }
    for name, record in records.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    assert provenance.without_commit() == ["old", "old_parts", "parts: old"]


# --- families of claims ---------------------------------------------------------------------------


def test_seeds_that_share_a_base_count_as_one():
    clear = [0.4, 0.42, 0.41, 0.43]
    (own,) = families.decide_family([clear])
    (shared,) = families.decide_family([clear], bases=["one"] * 4)
    (three,) = families.decide_family([clear], bases=["a", "b", "c", "c"])
    assert own["verdict"] == "holds" and "bases" not in own
    assert shared["verdict"] == "undecided" and shared["bases"] == 1
    assert shared["per_seed"] == clear and shared["low"] < 0.415 < shared["high"]
    assert three["verdict"] == "holds" and three["bases"] == 3
    assert "4 seeds of 1 base, the worst +0.400" in table_rows.outcome(shared)


def test_learners_behind_one_world_model_count_as_one():
    def rows(models):
        seeds = {
            str(n): behind_the_gate(0.9 + n / 1000, model=model) for n, model in enumerate(models)
        }
        return table_rows.gate({"seeds": seeds, "n": 1000}, "the lake")[0][1]

    assert rows([0, 0, 0, 0, 0]).startswith("undecided: ")
    assert rows([0, 0, 0, 0, 0]).endswith("5 seeds, 1 model, certified 1 of 1")
    assert rows([0, 1, 2, 3, 4]).startswith("holds: ")
    assert rows([0, 1, 2, 3, 4]).endswith("5 seeds, 5 models, certified 5 of 5")


def behind_the_gate(gated, **more):
    return {"gated": gated, "real": 0.9, "factor": 4.0, "certified": True, **more}


def test_a_refused_certificate_is_no_evidence_for_the_gate():
    """The gate is closed: "gated" is real training, and not below it for free."""

    def rows(seeds):
        record = {"seeds": {str(n): seed for n, seed in enumerate(seeds)}, "n": 1000}
        (_, success), (_, factor) = table_rows.gate(record, "the lake")
        return success, factor

    good = [behind_the_gate(0.9 + n / 1000, model=n) for n in range(3)]
    closed = [
        behind_the_gate(0.9, model=n, certified=False, factor=0.8) | {"verdict": "NOT CERTIFIED"}
        for n in (3, 4)
    ]
    assert rows(good)[0].startswith("holds: ")
    success, factor = rows([*good, *closed])
    assert success == rows(good)[0].replace("certified 3 of 3", "certified 3 of 5")
    # What the refused ones cost is not hidden: (3 x 4.0 + 2 x 0.8) / 5.
    assert factor.startswith("2.720 [") and "5 seeds, 5 models, certified 3 of 5" in factor
    assert rows([*good[:2], *closed])[0].startswith("undecided: ")
    assert rows(closed)[0] == "undecided: no learner, certified 0 of 2"


def test_learners_of_earlier_files_share_the_one_model_that_they_do_not_name():
    seeds = {str(n): behind_the_gate(0.9 + n / 1000) for n in range(5)}
    cells = table_rows.gate({"seeds": seeds, "evaluated_on": "1000 test instances"}, "sokoban")
    assert cells[0][1].startswith("undecided: ")
    assert all(cell.endswith("5 seeds, 1 model, certified 1 of 1") for _, cell in cells)


def test_the_gate_says_what_a_whole_certificate_would_cost():
    """What it counts has neither a ranking of policies nor a search for exploits."""
    paid = {"real_steps_gated": 25_000, "paid": {"certificate": 5_000}}
    seeds = {str(n): behind_the_gate(0.9, model=n) | paid for n in range(3)}
    record = {"seeds": seeds, "n": 1000}
    whole = common.read_results("trust_certificates")["models"]["lake"]["real_steps"]
    factor = 100_000 / (20_000 + sum(whole.values()))
    _, (label, cell) = table_rows.gate(record, "the lake", certificate="lake")
    assert label.endswith("a certificate of risk and horizon")
    assert f"in place of 5,000 to 5,000) {factor:.1f} [" in cell


def test_seeds_that_agree_on_every_instance_show_no_interval():
    row = {"mean": 0.5, "low": 0.5, "high": 0.5}
    same, other = {"0": [0, 1], "1": [0, 1]}, {"0": [0, 1], "1": [1, 0]}
    assert table_rows.depth_cell("depth 1", row, [same, same]) == "0.50 (2 seeds, 1 different)"
    assert table_rows.depth_cell("depth 1", row, [same, other]) == "0.50 [0.50, 0.50]"


def test_text_games_decide_the_claims_of_their_recipe_by_what_changes():
    for name in table_rows.SAID:
        record = common.read_results(name)
        decided = table_rows.text_claims(record, name)
        stated = all_recipes()[name]().claims
        assert [(c["better"], c["worse"], c["not_below"]) for c in decided] == [
            (better, worse, not_below) for better, worse, _, not_below in stated
        ]
        assert (decided[0].get("bases") == 1) == (name == "bytesized32_tiny")
    sft, neighbour = (record["arms"][arm]["changed"] for arm in ("sft", "nearest_neighbour"))
    assert decided[0]["per_seed"][1] == sft["per_seed"][1] - neighbour["per_seed"][1]


def test_figures_of_video_that_are_shown_together_are_decided_together():
    def row(lpips, psnr):
        figures = {"lpips": -lpips, "ssim": 0.0, "psnr": psnr}
        return {"figures": {name: {"difference": {"mean": v}} for name, v in figures.items()}}

    record = {"seeds": [row(0.0137, 0.2), row(0.0106, -0.1), row(0.0081, 0.1)]}
    alone = families.decide_family([[0.0137, 0.0106, 0.0081]])[0]
    together = table_rows.video_claims(record)[0]
    assert together["p"] == pytest.approx(3 * alone["p"])
    assert (alone["verdict"], together["verdict"]) == ("holds", "undecided")
    assert table_rows.video_claims({**record, "fit_seed": 0})[0]["p"] == 1.0


def test_unseen_families_are_a_claim_of_webrl_in_the_same_correction():
    record = common.read_results("webrl_miniwob")
    claim = record["claims"][-1]
    assert claim["on"] == families.UNSEEN_FAMILIES and claim["not_below"]
    assert claim["per_seed"] == pytest.approx([-0.06, -0.22, -0.16])
    assert claim["mean"] < claim["threshold"] and claim["verdict"] == "undecided"
    without = families.decide_table({**record, "claims": record["claims"][:-1]})
    assert record["claims"][0]["p"] == pytest.approx(without[0]["p"] * 10 / 9)
    assert (
        families.unseen_claims({"arms": {}, "unseen_families": {"sft": [], "webrl_paper": []}})
        == []
    )


def steps(covered, sizes, **more):
    """Two policies, which take a step each in every instance."""
    count = len(covered)
    return {
        "commit": "abc",
        "calibration": 2,
        "quantile": 0.5,
        "threshold": 0.5,
        "policy_names": ["random", "expert"],
        "policies": [0, 1] * (count // 2),
        "instances": [f"i{number // 2}" for number in range(count)],
        "covered": covered,
        "sizes": sizes,
        "risks": [0.1] * count,
        "wrong": [0.0] * count,
        "lengths": [1] * count,
        "shuffled": True,
        **more,
    }


def world_of(*models, level=0.9):
    rows = {"worlds": {"lake": {str(n): model for n, model in enumerate(models)}}}
    return recompute_coverage.coverage({"level": level}, rows)["worlds"]["lake"]


def test_coverage_is_over_models_and_shows_the_empty_sets():
    models = [
        steps([1.0, 1.0, 0.9 + n / 100, 1.0] * 25, ["1", "1", "2", "0"] * 25) for n in range(5)
    ]
    found = world_of(*models)
    assert found["empty_sets"] == 0.25 and found["models"]["0"]["n"] == 50
    assert found["coverage"]["mean"] == pytest.approx(0.96) and found["claim"]["verdict"] == "holds"
    assert world_of(models[0])["claim"]["verdict"] == "undecided"


def test_the_worst_policy_of_each_model_is_tested():
    """The promise is for each policy: one that is covered does not make up for another."""
    low, full = [0.8 + n / 1000 for n in range(5)], 1.0
    models = [
        steps([full, each] * 50 if n % 2 else [each, full] * 50, ["1"] * 100)
        for n, each in enumerate(low)
    ]
    found = world_of(*models, level=0.85)  # below the average of the policies, 0.9
    assert [model["coverage"] for model in found["models"].values()] == pytest.approx(low)
    assert [model["worst_policy"] for model in found["models"].values()][:2] == ["random", "expert"]
    assert found["claim"]["verdict"] == "fails"
    assert found["models"]["1"]["coverage_by_policy"] == pytest.approx(
        {"random": 1, "expert": 0.801}
    )
    alike = world_of(steps([1.0, 1.0], ["1", "1"]))["models"]["0"]
    assert alike["worst_policy"] == recompute_coverage.SEVERAL
    # Two steps of one instance are one value: (1 + 0.5) / 2 and 1.
    twice = steps([1.0, 0.5, 1.0], ["1"] * 3, instances=["a", "a", "b"], policies=[0] * 3)
    twice["policy_names"] = ["random"]
    assert world_of(twice)["models"]["0"]["coverage"] == pytest.approx(0.875)


def test_beside_coverage_stands_whether_a_model_is_of_use(tmp_path, monkeypatch):
    """Coverage above the promise is no leave to imagine: sets may hold while no step is trusted."""
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    useful = steps([1.0, 1.0], ["1", "1"])
    useless = steps([1.0, 0.5], ["1", "1"], threshold=None)
    world = world_of(useful, useless, useless)

    def cell(certified=None):
        models = {} if certified is None else {"lake": {"certified": certified}}
        (tmp_path / "trust_certificates.json").write_text(json.dumps({"models": models}))
        return table_rows.beside_coverage("lake", world)

    assert "worst policy expert (2), several alike (1)" in cell()
    assert "trusts a step in 1 of 3 models" in cell() and "seed 0" not in cell()
    assert cell(certified=True).endswith("seed 0 certified")
    assert cell(certified=False).endswith("certificate of seed 0 refused")


def test_a_model_of_an_earlier_calibration_is_named(monkeypatch):
    today = steps([1.0, 1.0], ["1", "1"])
    older = {key: value for key, value in today.items() if key != "lengths"}
    more_fitted = {**today, "fit_share": table_rows.FIT_SHARE + 0.15}
    kept = {**today, "fit_share": table_rows.FIT_SHARE}
    in_order = {key: value for key, value in today.items() if key != "shuffled"}

    def earlier(*models):
        return "earlier calibration" in table_rows.beside_coverage("elsewhere", world_of(*models))

    assert not earlier(today, kept)
    assert earlier(today, older) and earlier(today, more_fitted) and earlier(in_order)


def test_worlds_of_an_earlier_calibration_are_told_to_be():
    rows = table_rows.coverage(common.read_results("trust_coverage"))
    told = {what.split(":")[0]: "earlier calibration" in cell for what, cell in rows}
    kept = common.read_rows("trust_coverage")["worlds"]
    assert told == {
        name: not all("shuffled" in model for model in models.values())
        for name, models in kept.items()
    }


def test_a_teaching_recipe_is_held_to_its_bar():
    def seed(after, curve):
        return {"before": {"a": 0.2}, "after": after, "curve": curve, "baseline": 0.3, "seconds": 9}

    rows = {
        "good": {"1000": seed({"a": 1.0, "b": 0.8}, [0.2] * 9 + [0.9])},
        "poor": {"1000": seed({"a": 0.8, "b": 0.8}, [0.2] * 9 + [0.9])},
        "flat": {"1000": seed({"a": 1.0, "b": 0.8}, [0.2] * 10)},
    }
    found = recompute.teaching({"least_after": 0.85}, {"recipes": rows})["recipes"]
    assert {name: recipe["seeds"]["1000"]["held"] for name, recipe in found.items()} == {
        "good": True,
        "poor": False,
        "flat": False,
    }


def test_questions_are_counted_by_group_and_clips_are_paired():
    marks = {
        "groups": [("overall", "changed"), ("overall", "unchanged"), ("overall", "changed")],
        "right": {"model": "101", "no_change": "010"},
    }
    found = recompute.textworld({}, {"seed 0": marks})["seed 0"]["accuracy"]
    assert found["changed"]["model"] == {"right": 2, "n": 2, "share": 1.0}
    assert found["overall"]["no_change"] == {"right": 1, "n": 3, "share": 0.3333}
    clips = {"before": {"psnr": [20.0, 22.0]}, "after": {"psnr": [21.0, 25.0]}}
    (seed,) = recompute.video({"seeds": [{"figures": {"psnr": {}}}]}, {"seeds": [clips]})["seeds"]
    assert seed["figures"]["psnr"]["difference"]["mean"] == 2.0


@pytest.fixture
def hand_made(tmp_path, monkeypatch):
    """`trust_coverage.py` with hand-made models in place of trained ones: wrong now and then."""
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(recompute_all, "ROWS", tmp_path / "rows")
    counter = Counter.Config(goals=2000)
    trained = []

    def train(name, model, chosen):
        trained.append((name, model))
        policy = Mixture.Config(share=0.5)
        Collect(
            Collect.Config(
                world=counter, policy=policy, out=tmp_path / f"{model}/data", transitions=200
            )
        ).run(SilentProgress())
        return TrainWorldModel.Config(world=counter, out=tmp_path / str(model))

    monkeypatch.setattr(trust_coverage, "train", train)
    monkeypatch.setattr(
        trust_coverage,
        "load_world_model",
        lambda folder, samples: Doubting(counter.build(), by_chance(0.04, seed=len(trained))),
    )
    return trained


def test_the_coverage_of_models_is_measured_one_after_the_other(hand_made, tmp_path):
    trust_coverage.main(["counter", "--models", "1", "--first", "4", "--small"])
    assert hand_made == [("counter", 4)]
    trust_coverage.main(["counter", "--models", "2", "--small"])  # seed 4 is before the first one
    assert hand_made[1:] == [("counter", 5), ("counter", 6)]
    trust_coverage.main(["counter", "--models", "3", "--small"])  # what is measured is kept
    assert hand_made[3:] == [("counter", 7)]
    result = json.loads((tmp_path / "trust_coverage_small.json").read_text())
    world = result["worlds"]["counter"]
    assert result["seeds"] == ["5", "6", "7"] and len(world["models"]) == 3
    for model in world["models"].values():
        assert 0.9 < model["coverage"] <= 1.0 and model["n"] == 120 and model["calibration"] == 120
        assert len(model["coverage_by_policy"]) == 3
    assert recompute_all.recompute_all() == ([], [])
    rows = read_rows(tmp_path / "rows/trust_coverage_small.json.gz")
    assert min(rows["worlds"]["counter"]["5"]["lengths"]) >= 1
    rows["worlds"]["counter"]["5"]["covered"][7] = 0.5
    write_rows(tmp_path / "rows/trust_coverage_small.json.gz", rows)
    differences, _ = recompute_all.recompute_all()
    assert any("counter.models.5.coverage" in line for line in differences)


def test_trusted_steps_count_by_length_where_the_rows_have_lengths():
    rows = steps([1.0] * 3, ["1"] * 3, risks=[0.1, 0.2, 0.9], wrong=[1.0, 0.0, 0.0])
    rows |= {"policies": [0] * 3, "policy_names": ["random"], "lengths": [6, 2, 2]}
    new = recompute_coverage.model_figures(rows)
    assert (new["trusted_share"], new["trusted_wrong"]) == (0.8, 0.75)
    del rows["lengths"]
    old = recompute_coverage.model_figures(rows)
    assert (old["trusted_share"], old["trusted_wrong"]) == (2 / 3, 0.5)


@pytest.mark.parametrize(
    ("world", "key", "change", "figure"),
    [
        ("lake", "risks", lambda values: [1.0, *values[1:]], "trusted_share"),
        ("lake", "wrong", lambda values: [0.5, *values[1:]], "mean_wrong"),
        ("lake", "lengths", lambda values: [values[0] + 1, *values[1:]], "trusted_share"),
        ("lake", "threshold", lambda _: None, "trusted_share"),
        ("sokoban", "threshold", lambda value: value * 1.001, "threshold"),
        ("lake_slip", "policies", lambda values: values[::-1], "coverage_by_policy"),
        ("lake_slip", "covered", lambda values: [0.0, *values[1:]], "coverage"),
    ],
)
def test_a_changed_row_of_coverage_is_found(monkeypatch, world, key, change, figure):
    rows, record = common.read_rows("trust_coverage"), common.read_results("trust_coverage")
    model = rows["worlds"][world]["5"]
    model[key] = change(model[key])
    monkeypatch.setattr(recompute_all, "read_rows", lambda path: rows)
    differences, _ = recompute_all.recompute_one("trust_coverage", record)
    assert any(f"{world}.models.5.{figure}" in line for line in differences)


def test_a_note_stays_when_a_result_is_written_anew(tmp_path, monkeypatch):
    """It says what was discarded; the next run must not delete it."""
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    common.save_results("trust_coverage", {"note": "Discarded: ...", "level": 0.5, "old": 1})
    trust_coverage.write(
        "trust_coverage", {"worlds": {"lake": {"5": steps([1.0] * 2, ["1"] * 2)}}}, ()
    )
    written = common.read_results("trust_coverage")
    assert written["note"] == "Discarded: ..." and written["level"] == 0.9 and "old" not in written


def taught(seconds, **more):
    after, curve = {"a": 0.9}, [0.2] * 9 + [0.9]
    return {
        "before": after,
        "after": after,
        "curve": curve,
        "baseline": 0.3,
        "seconds": seconds,
    } | more


@pytest.mark.parametrize(
    ("seconds", "slow", "told"),
    [
        ([None, None], None, "not timed"),
        ([200, None], [], "at most 200 s, 1 not timed"),
        ([200, 301], ["1"], "at most 301 s"),
        ([0, None], [], "at most 0 s, 1 not timed"),
    ],
)
def test_a_seed_that_was_not_timed_is_not_fast(seconds, slow, told):
    rows = {"recipes": {"tiny": {str(n): taught(each) for n, each in enumerate(seconds)}}}
    record = {"bar": "bar", "least_after": 0.85} | recompute.teaching({"least_after": 0.85}, rows)
    assert record["recipes"]["tiny"]["slower_than_five_minutes"] == slow
    ((_, cell),) = table_rows.teaching(record)
    assert cell.endswith(f"; {told}")


def test_a_seed_keeps_the_commit_that_made_it(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    rows = {"recipes": {"tiny": {"0": taught(None), "1": taught(None, commit="abc")}}}
    teaching.write("teaching", rows, ())
    seeds = common.read_results("teaching")["recipes"]["tiny"]["seeds"]
    assert "commit" not in seeds["0"] and seeds["1"]["commit"] == "abc"


# --- the README -----------------------------------------------------------------------------------


def test_every_recipe_has_its_first_claim_or_the_reason_why_not():
    listed = first_claims.FIRST_CLAIMS.keys() | first_claims.NOT_RUN.keys()
    never = {
        name for name, recipe in all_recipes().items() if "never run" in recipe_info(recipe).expect
    }
    assert set(all_recipes()) == listed | never
    assert not first_claims.FIRST_CLAIMS.keys() & (first_claims.NOT_RUN.keys() | never)


def test_each_row_has_its_verdict_its_setting_and_the_papers():
    rows = [line for line in first_claims.first_claim_lines() if line.startswith("| `")]
    assert len(rows) == len(first_claims.FIRST_CLAIMS)
    for row in rows:
        claim, measured, setting, paper = (cell.strip() for cell in row.strip("|").split(" | "))
        assert measured.split(":")[0].split(",")[0] in ("holds", "fails", "undecided"), claim
        assert setting and paper


def test_a_masked_episode_is_in_no_mean_and_no_pair():
    seeds = {"0": {"0": [0.0, 1.0, None], "1": [1.0, None, 1.0]}}
    found = recompute.web_parts({}, {"part": {"all learnt": seeds}})["part"]
    depths = found["arms"]["all learnt"]
    assert (depths["depth 0"]["mean"], depths["depth 1"]["mean"]) == (0.5, 1.0)
    (claim,) = found["claims"]
    assert (claim["better"], claim["worse"], claim["mean"]) == ("depth 1", "depth 0", 1.0)
    assert claim["verdict"] == "undecided"  # one seed


def test_no_readme_row_holds_on_fewer_than_three_seeds_or_models():
    for name, make in first_claims.FIRST_CLAIMS.items():
        measured = make().measured
        if measured.startswith("holds"):
            units = measured.split(";")[0]  # further on, models are counted that trust a step
            found = re.findall(r"(\d+) (?:of \d+ )?(?:seed|model|base)s?\b", units)
            assert found and min(map(int, found)) >= 3, (name, measured)


def test_a_setting_names_the_size_of_the_board_that_was_played():
    for name, make in first_claims.FIRST_CLAIMS.items():
        board = re.match(r"(sokoban|frozen_lake) (\d)x\2", setting := make().setting)
        if board:
            sizes = set(re.findall(r"\bsize=(\d+)", repr(all_recipes()[name]())))
            assert sizes == {board[2]}, (name, setting)


def test_the_first_claim_is_the_first_one_that_the_recipe_states():
    for name in ("spa_frozen_lake", "spa_sokoban", "webrl_miniwob", "webrl_sokoban"):
        stated = all_recipes()[name]().claims[0]
        record = json.loads((ROOT / f"results/{name}.json").read_text())["claims"][0]
        assert (record["better"], record["worse"], record["k"]) == stated[:3]
