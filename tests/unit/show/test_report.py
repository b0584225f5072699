"""The numbers of a report are those of the results and of the runs."""

import html
import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from tests.support.manifests import write_manifest

from terrella.core.integrity import write_sealed

pytest.importorskip("matplotlib", reason="needs the extra: pip install 'terrella[plots]'")

from terrella.commands.report import Report
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import locked
from terrella.core.instances import plain
from terrella.core.stats import mean_interval
from terrella.evals.agent_rows import EpisodeRow
from terrella.evals.agent_scores import agent_scores
from terrella.evals.reply_counts import ReplyCounts
from terrella.policies.chat_client import Usage
from terrella.show import certificate_plots
from terrella.show.report import write_report
from terrella.show.report_data import config_differences, load_report_data

RESULTS = Path(__file__).parents[3] / "results"
REPRODUCTIONS = sorted(
    path for path in RESULTS.glob("*.json") if "claims" in json.loads(path.read_text())
)


def tables(folder):
    """All rows of the Markdown report by section; the HTML must hold the same cells."""
    markdown = (folder / "report.md").read_text()
    page = (folder / "report.html").read_text()
    rows, section = {}, ""
    for line in markdown.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| ") and not line.startswith("| ---"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            rows.setdefault(section, []).append(cells)
            plain = [cell for cell in cells if cell and "'" not in cell and ">" not in cell]
            assert all(cell.replace("&", "&amp;") in page for cell in plain)
    return rows


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    runs = (RESULTS / "trust_certificates.json",)
    Report(Report.Config(runs=runs, out=folder)).write()
    return folder


def test_certificates_are_reported_with_their_verdict_and_horizon(reported):
    models = json.loads((RESULTS / "trust_certificates.json").read_text())["models"]
    markdown = (reported / "report.md").read_text()
    sections = tables(reported)
    for name, model in models.items():
        rows = dict(row for row in sections[f"Certificate of {name}"] if len(row) == 2)
        assert rows["safe horizon"].startswith(f"{model['safe_horizon']} steps")
        assert rows["weights"] == str(model["about"]["weights_sha256"])
        section = markdown.split(f"## Certificate of {name}\n")[1].split("\n## ")[0]
        assert ("NOT CERTIFIED" in section) != model["certified"]
    assert (reported / "certificate_of_lake.png").stat().st_size > 10_000


@pytest.mark.parametrize("path", REPRODUCTIONS, ids=lambda path: path.stem)
def test_a_finished_reproduction_is_reported_as_it_was_measured(path, tmp_path):
    record = json.loads(path.read_text())
    write_report(load_report_data([path]), tmp_path)
    sections = tables(tmp_path)
    header, *rows = sections[f"Reproduction {path.stem}: arms"]
    arms = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    for name, arm in record["arms"].items():
        for metric in (key for key in arm if key.startswith("pass@")):
            spread = arm[metric]["interval"]
            interval = f" [{spread[0]:.3f}, {spread[1]:.3f}]" if spread else ""
            assert arms[name][metric] == f"{arm[metric]['mean']:.3f}{interval}"
        assert arms[name]["seeds"] == str(len(arm["seeds"]))
    claims = sections[f"Reproduction {path.stem}: claims"][1:]
    for row, claim in zip(claims, record["claims"], strict=True):
        assert row[2] == (claim["verdict"] if claim["seeds"] else "not run")
        if claim["seeds"] > 1:
            assert row[1] == f"{claim['mean']:+.3f} [{claim['low']:+.3f}, {claim['high']:+.3f}]"


def table_of(arms=(0.5, 0.7), verdict="holds"):
    """A reproduction's table as `terrella reproduce` writes it."""
    values = {"pass@1": arms[0], "pass@8": arms[1]}
    scores = {
        name: {"mean": v, "interval": [v - 0.1, v + 0.1], "per_seed": [v] * 2}
        for name, v in values.items()
    }
    arm = {"seeds": [0, 1], **scores, "env_steps": [100, 200], "seconds": [3600, 1800]}
    claim = {
        "better": "spa",
        "worse": "vanilla",
        "k": 1,
        "not_below": False,
        "seeds": 2,
        "mean": 0.1,
        "low": 0.02,
        "high": 0.18,
        "p": 0.02,
        "threshold": 0.0,
        "verdict": verdict,
    }
    known = {"random": {"1": 0.2, "8": 0.6}, "optimal": 1.0}
    return {
        "arms": {"spa": arm, "vanilla": arm},
        "test": "a test",
        "claims": [claim],
        "reference_scores": known,
        "paper": {"pass@1": "43.5"},
    }


LIVE = (
    "</td><script>run()</script><img src=x onerror=run()> ![b](http://there/beacon) `a` "
    "[c](javascript:run()) \\[d\\](http://there) \\![e](http://there) [f][g] <http://there>"
)


def test_a_report_holds_no_markup_of_its_runs(tmp_path):
    """In headings, notes, cells and the names of columns."""
    table = table_of(verdict=LIVE)
    table["arms"][f"{LIVE}\n\n[g]: http://there"] = table["arms"]["spa"]
    table["paper"] = {"pass@1": LIVE}
    metrics = {f"pass@1 {LIVE}": 0.5}
    write_manifest(tmp_path / "run[h](http:", {"class": "a.b:C"}, metrics)
    (tmp_path / "made").mkdir()
    write_sealed(tmp_path / "made/table.json", table)
    runs = (tmp_path / "made", tmp_path / "run[h](http:")
    Report(Report.Config(runs=runs, out=tmp_path / "out", title=LIVE)).write()
    text = (tmp_path / "out/report.md").read_text()
    shown = MarkdownIt("commonmark").enable("table").render(text)
    assert not re.search(r"<(script|img|a|code)\b", shown)
    assert shown.count(html.escape("<script>run()</script>")) >= 5
    assert "![b](http://there/beacon) `a` [c](javascript:run())" in shown  # as it was written
    assert "<script>run()" not in (tmp_path / "out/report.html").read_text()


def test_dollars_in_a_name_are_no_formula(tmp_path):
    name = r"st$\frac$"
    config = {"class": "terrella.pipelines.collect.pipeline:Collect"}
    counts = {"episodes": 4, "transitions": 9, "successes": 2, "masked": {}}
    (tmp_path / name).mkdir()
    manifest = {"format": "terrella-episodes", "config": config, "counts": counts, "parts": []}
    write_sealed(tmp_path / name / "manifest.json", {**manifest, "schema": 2})
    Report(Report.Config(runs=(tmp_path / name,), out=tmp_path / "out")).write()
    assert (tmp_path / "out/episodes.png").stat().st_size > 5_000


def test_a_report_is_not_written_through_a_link(tmp_path):
    (tmp_path / "run").mkdir()
    write_sealed(tmp_path / "run/table.json", table_of())
    (tmp_path / "out").mkdir()
    for suffix in ("md", "html", "pdf"):
        (tmp_path / f"out/report.{suffix}").symlink_to(tmp_path / "profile")
    Report(Report.Config(runs=(tmp_path / "run",), out=tmp_path / "out")).write()
    assert not (tmp_path / "profile").exists()


def test_two_processes_do_not_write_one_report(tmp_path):
    (tmp_path / "run").mkdir()
    write_sealed(tmp_path / "run/table.json", table_of())
    report = Report(Report.Config(runs=(tmp_path / "run",), out=tmp_path / "out"))
    with locked(tmp_path / "out"), pytest.raises(StoreError, match="another process"):
        report.write()


def test_a_reproduction_shows_its_claims_beside_random_and_optimal_play(tmp_path):
    (tmp_path / "run").mkdir()
    write_sealed(tmp_path / "run/table.json", table_of(verdict="fails"))
    write_report(load_report_data([tmp_path / "run"]), tmp_path / "out")
    sections = tables(tmp_path / "out")
    assert sections["Reproduction run: arms"][1:3] == [
        ["random play (exact)", "0.200", "0.600", "", ""],
        ["optimal play (exact)", "1.000", "", "", ""],
    ]
    (_, claim) = sections["Reproduction run: claims"]
    assert claim[1:3] == ["+0.100 [+0.020, +0.180]", "fails"]
    assert ["run: spa", "300", "1.50"] in sections["Cost"]


def trained(folder, seed, reward, **rlvr):
    """The folder of a finished `terrella rlvr`."""
    config = {
        "class": "terrella.pipelines.rlvr:Rlvr",
        "seed": seed,
        "ask": "action",
        "rlvr": {"groups": 2, "group_size": 4, "learning_rate": 1e-3, **rlvr},
    }
    metric = {"mean": reward, "low": reward - 0.1, "high": reward + 0.1, "n": 64, "masked": 0}
    metrics = {
        "before": {**metric, "mean": 0.2},
        "after": metric,
        "baselines": {"random": 0.25},
        "steps": 3,
    }
    curve = [
        {"step": n, "reward": 0.2 * n, "tokens": 5.0, "turns": 2.0, "seconds/train": 9.0}
        for n in (1, 2, 3)
    ]
    write_manifest(folder, config, metrics)
    (folder / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve))
    return folder


def test_seeds_of_one_config_form_a_group_and_other_configs_do_not(tmp_path):
    runs = [
        trained(tmp_path / "a-0", 0, 0.8),
        trained(tmp_path / "a-1", 1, 0.6),
        trained(tmp_path / "b-0", 0, 0.5, kl=0.1),
    ]
    data = load_report_data(runs)
    assert [(group.name, len(group.runs)) for group in data.groups] == [("a", 2), ("b-0", 1)]
    assert data.groups[0].after.mean == pytest.approx(0.7) and data.groups[1].after.low is None
    assert data.groups[0].cost() == {
        "real steps": 2 * 3 * 2 * 8,
        "tokens": 2 * 3 * 5 * 8,
        "hours": 2 * 27 / 3600,
    }
    assert dict(config_differences(data.configs)) == {
        "seed": ["0", "1", "0"],
        "rlvr.kl": ["", "", "0.1"],
    }
    files = write_report(data, tmp_path / "report")
    rows = {tuple(row[:2]): row[2:] for row in tables(tmp_path / "report")["Trained with verdicts"]}
    low, high = mean_interval([0.8, 0.6])
    assert rows["a", "after training"] == [f"0.700 [{low:.3f}, {high:.3f}]", "0.800, 0.600", "2"]
    assert rows["a", "before training"][1:] == ["0.200, 0.200", "2"]
    assert ("a", "baseline: random") in rows
    assert [file.suffix for file in files] == [".md", ".html", ".pdf"]
    assert files[2].read_bytes()[:4] == b"%PDF"
    assert (tmp_path / "report/curve_of_a.png").exists()
    assert not re.findall(r"(?:src|href)=\"http", files[1].read_text())


def evaluated(folder, model, value):
    """The folder of a finished `terrella evaluate`, on four instances."""
    common = {"status": "ok", "turns": 1, "steps": 1, "usage": Usage(requests=1)}
    common["written"] = ReplyCounts(replies=1)
    rows = [EpisodeRow(instance=str(n), seed=n, member=0, value=value, **common) for n in range(4)]
    scores = agent_scores(rows, samples=1, reference=None)
    metrics = {
        "model": {"kind": "hub", "name": model, "url": "", "sha256": None},
        "worlds": {"lake": plain(scores)},
        "cost": {"usage": plain(scores.usage), "price": None},
    }
    write_manifest(folder, {"class": "terrella.pipelines.evaluate.agents:AgentEvaluation"}, metrics)
    return folder


def test_runs_whose_folders_have_one_name_are_all_reported(tmp_path):
    runs = (evaluated(tmp_path / "a/eval", "A", 1.0), evaluated(tmp_path / "b/eval", "B", 0.0))
    Report(Report.Config(runs=runs, out=tmp_path / "report")).write()
    markdown = (tmp_path / "report/report.md").read_text()
    assert markdown.startswith("# Report on a/eval, b/eval\n")
    assert "A on lake" in markdown and "B on lake" in markdown
    assert "a/eval minus b/eval on lake" in markdown
    tables_of = [tmp_path / name / "run" for name in ("c", "d")]
    others = [tmp_path / name / "other" for name in ("c", "d")]
    for folder, other in zip(tables_of, others, strict=True):
        folder.mkdir(parents=True)
        write_sealed(folder / "table.json", table_of())
        write_manifest(other, {"class": "x:Y"}, {"share": 0.5})
    data = load_report_data([*tables_of, *others])
    assert list(data.tables) == ["c/run", "d/run"]
    assert list(data.metrics) == ["c/other", "d/other"]


def test_a_run_that_is_named_twice_or_copied_is_one_seed(tmp_path):
    first = trained(tmp_path / "x-0", 0, 0.9)
    (group,) = load_report_data([first, tmp_path / "x-0" / ".." / "x-0"]).groups
    assert len(group.runs) == 1 and group.after.low is None
    copy = trained(tmp_path / "x-copy", 0, 0.9)
    with pytest.raises(ConfigError, match=r"x-copy: .*seed \(0\) of x-0"):
        load_report_data([first, copy])


def test_other_runs_are_reported_by_the_names_of_their_manifests(tmp_path):
    metrics = {
        "test": {"share": 0.25, "each": [1, 0]},
        "rl": {"env_steps": 500},
        "marks": "1010",
        "curve": [{"step": 1}],
    }
    write_manifest(tmp_path, {"class": "x:Y", "seed": 3}, metrics, seconds=1800.0)
    data = load_report_data([tmp_path])
    assert data.metrics[tmp_path.name] == {
        "test.share": 0.25,
        "test.each.0": 1,
        "test.each.1": 0,
        "seconds": 1800,
        "rl.env_steps": 500,
    }
    assert data.costs[tmp_path.name] == {"real steps": 500, "hours": 0.5}


def test_dollars_in_a_config_are_no_mathematics(tmp_path):
    for name, note in (("a", "x$b_$c"), ("b", "y")):
        write_manifest(tmp_path / name, {"class": "x:Y", "note": note}, {"share": 0.5})
    data = load_report_data([tmp_path / "a", tmp_path / "b"])
    assert write_report(data, tmp_path / "report")[2].read_bytes()[:4] == b"%PDF"


def test_a_path_that_is_not_a_run_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match="no run named"):
        Report.Config(runs=())
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match="nothing that a report can show"):
        load_report_data([tmp_path / "x.json"])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_report_data([RESULTS / "trust_plan.png"])


def drawn_one_step(path, **changed):
    """The panel of one-step accuracy of a real certificate, with some accuracies replaced."""
    sections = json.loads(path.read_text())["models"]["lake"]
    one_step = sections["one_step"]
    sections["one_step"] = {**one_step, "changed": {**one_step["changed"], **changed}}
    return certificate_plots.figure(sections).axes[1]


def test_an_accuracy_without_values_is_marked_and_not_drawn_as_zero():
    path = RESULTS / "trust_certificates.json"
    whole = drawn_one_step(path)
    assert len(whole.patches) == 6 and not whole.texts
    axes = drawn_one_step(path, nearest={"mean": None, "low": None, "high": None, "n": 0})
    assert len(axes.patches) == 5
    assert [text.get_text() for text in axes.texts] == ["no value"]


def test_a_report_on_a_store_has_a_title_and_success_with_an_interval(tmp_path):
    from terrella.pipelines.collect.pipeline import Collect
    from terrella.policies.basic import Expert
    from terrella.show.progress import SilentProgress
    from terrella.worlds.counter import Counter

    config = Collect.Config(
        world=Counter.Config(), policy=Expert.Config(), out=tmp_path / "seen", episodes=12
    )
    Collect(config).run(SilentProgress())
    Report(Report.Config(runs=(tmp_path / "seen",), out=tmp_path / "report")).write()
    (row,) = tables(tmp_path / "report")["Episodes"][1:]
    assert row[0] == "seen" and row[3].startswith("1.000 [0.7") and row[4] == "0"
    assert (tmp_path / "report/episodes.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report/report.md").read_text().startswith("# Report on seen\n")
