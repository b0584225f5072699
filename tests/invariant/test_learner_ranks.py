"""A learner on two processes, with DDP or FSDP2, is the learner on one."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.support.fsdp_on_cpu import FSDP2
from tests.support.launched import launch

SCRIPT = Path(__file__).parents[1] / "support" / "learner_run.py"
RUNS = ("policy", "webrl", "lora", "bce", "heads")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("learner")
    (report,) = launch(SCRIPT, folder, "alone", 1)
    return folder, report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "environment"), [("ddp", {}), ("fsdp2", FSDP2)], ids=["ddp", "fsdp2"]
)
def test_two_processes_are_one(
    name: str, environment: dict[str, str], alone: tuple[Path, dict[str, Any]]
):
    folder, expected = alone
    first, second = launch(SCRIPT, folder, name, 2, **environment)
    for run in RUNS:
        one = expected[run]
        for two in (first[run], second[run]):  # every rank has the whole answer
            assert two["parameter"] == ("DTensor" if name == "fsdp2" else "Parameter")
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-6, abs=1e-6)
            for mine, other in zip(two["metrics"], one["metrics"], strict=True):
                assert mine == pytest.approx(other, rel=1e-6, abs=1e-6)
            for key in ("outputs", "before", "after"):
                for mine, other in zip(two[key], one[key], strict=True):
                    assert mine == pytest.approx(other, abs=1e-5)
            assert two["norms"] == pytest.approx(one["norms"], rel=1e-5)
            assert two["norms"][1] == two["norms"][2]  # the state went to disk and back
            assert two["sampled"] == one["sampled"]
        assert weights(folder / f"{name}-{run}") == pytest.approx(
            weights(folder / f"alone-{run}"), abs=1e-5
        )
    for rank in (first, second):
        assert rank["bf16"]["longer"] == pytest.approx((256 + 60 * 0.5) / 0.5, rel=0.01)
        values = torch.tensor(rank["bf16"]["values"])
        assert (values != values.bfloat16().float()).any()  # a head computes in fp32
    assert first["refused"] == second["refused"] == "processes passed different data"


def weights(folder: Path) -> list[float]:
    """A few thousand numbers of the exported model, and those of its value head."""
    from safetensors.torch import load_file

    state = {}
    for path in folder.glob("*.safetensors"):
        state |= load_file(path)
    return torch.cat([state[name].flatten()[:500] for name in sorted(state)]).tolist()
