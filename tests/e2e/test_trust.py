"""The page docs/trust.md, as a person follows it.

A tiny model is trained, certified, planned with and stepped in.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

PAGE = (Path(__file__).parents[2] / "docs/trust.md").read_text()
# Fewer steps and fewer questions, so that CI has the time; everything else is as on the page
SMALL = {
    "train-world-model": "transitions=1500 sft.epochs=4 sft.learning_rate=3e-3",
    "certify": "calibration=40 held_out=40 horizon_episodes=10 depth=2 ranked_on=3 exploited_on=2"
    " plan_depth=2 samples=2",
    "plan": "planner.depth=1 instances=2",
}


def run(words, cwd, codes=(0,)):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode in codes, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_page_can_be_followed(tmp_path):
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    for line in commands.strip().splitlines():
        _, command, *rest = line.split()
        small = [word for setting in SMALL[command].split() for word in ("--set", setting)]
        run([sys.executable, "-m", "terrella.cli", command, *rest, *small], tmp_path, codes=(0, 1))
    check_the_folder(tmp_path / "runs/lake")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    shown = run([sys.executable, "-c", code], tmp_path)
    assert "'imagined'" in shown and "'audited'" in shown


def check_the_folder(folder):
    found = json.loads((folder / "certificate/certificate.json").read_text())
    assert {"about", "risk", "one_step", "horizon", "coverage", "ranking", "exploitability"} <= set(
        found
    )
    assert found["about"]["weights_sha256"] and found["certified"] == (not found["reasons"])
    assert len(found["ranking"]["policies"]) >= 8 and sum(found["real_steps"].values()) > 100
    model, lazy = (found["one_step"]["all"][name]["mean"] for name in ("model", "no_change"))
    assert model > lazy  # even this little training beats saying that nothing happens
    page = (folder / "certificate/certificate.html").read_text()
    assert (
        "data:image/png;base64," in page
        and (folder / "certificate/certificate.png").stat().st_size > 10_000
    )


def test_thin_data_is_refused_without_a_model(tmp_path):
    from tests.support.made_models import data_of

    from terrella.pipelines.certify.pipeline import Certify
    from terrella.policies.basic import Random
    from terrella.show.certificate import write_report
    from terrella.trust.certificate import Certificate
    from terrella.trust.truth import TrueModel
    from terrella.worlds.counter import Counter

    counter = Counter.Config()
    small = {
        "horizon_episodes": 5,
        "depth": 1,
        "policies": (),
        "exploited_on": 0,
        "policy": Random.Config(),
    }
    for count, reason in ((8, "no risk can be calibrated"), (60, "too thin")):
        config = Certify.Config(
            world=counter, folder=tmp_path, calibration=count, held_out=count, **small
        )
        found = Certify(config).measure(
            model=TrueModel(counter.build()), data=data_of(counter.build(), 5)
        )
        assert not found["certified"] and any(reason in line for line in found["reasons"])
        page = write_report(Certificate(found), tmp_path / str(count)).read_text()
        assert "NOT CERTIFIED" in page and reason in page
