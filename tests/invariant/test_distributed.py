"""One process, two with DDP, two with FSDP2: the same tasks, curves and exported weights."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.support.fsdp_on_cpu import FSDP2
from tests.support.launched import launch

SCRIPT = Path(__file__).parents[1] / "support" / "distributed_run.py"
SFT = SCRIPT.with_name("sft_ranks.py")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("distributed")
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
    for run, alone_report in expected.items():
        assert first[run]["parameter"] == ("DTensor" if name == "fsdp2" else "Parameter")
        assert sorted(first[run]["tasks"] + second[run]["tasks"]) == sorted(alone_report["tasks"])
        assert max(first[run]["mismatch"]) < (0.02 if run == "bf16" else 1e-5)
        if run == "bf16":
            continue
        for metric in ("loss", "grad_norm"):
            assert first[run][metric] == pytest.approx(alone_report[metric], abs=1e-4)
        rewards = [pytest.approx(row, abs=1e-4) for row in alone_report["reward"]]
        assert first[run]["reward"] == rewards
        assert weights(folder / f"{name}-{run}") == pytest.approx(
            weights(folder / f"alone-{run}"), abs=1e-4
        )


@pytest.mark.slow
def test_sft_on_two_processes_trains_every_item_once(tmp_path: Path):
    """Five items in batches of four: the second process has nothing to do in the last batch."""
    (alone,) = launch(SFT, tmp_path, "alone", 1)
    first, _ = launch(SFT, tmp_path, "two", 2)
    assert first["loss"] == pytest.approx(alone["loss"], abs=1e-5)
    assert first["grad_norm"] == pytest.approx(alone["grad_norm"], abs=1e-5)
    assert weights(tmp_path / "two") == pytest.approx(weights(tmp_path / "alone"), abs=1e-5)


def weights(folder: Path) -> list[float]:
    """A few thousand numbers of the exported model; the critic is not among them."""
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    assert not any(name.startswith("critic") for name in state)
    return torch.cat([state[name].flatten()[:500] for name in sorted(state)]).tolist()
