"""Numbers and names that `reproduce` cannot use are refused before anything starts."""

import pytest

from terrella.cli.training import reproduce
from terrella.core.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": 0}, "--jobs 0: is below 1"),
        ({"seeds": 0}, "--seeds 0: is below 1"),
        ({"only": "foo"}, "foo: no such job"),
        (
            {"assignments": ["arms.spa.rlvr.group_size=1"]},
            "group_size of the arm spa: grpo compares",
        ),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_cannot_run_is_refused(tmp_path, options, said, dry_run):
    with pytest.raises(ConfigError, match=said):
        reproduce("spa_sokoban", out=tmp_path / "out", dry_run=dry_run, **options)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_one_job_shows_that_job(tmp_path, capsys):
    reproduce("spa_sokoban", out=tmp_path / "out", dry_run=True, only="spa-0")
    assert "spa-0" in capsys.readouterr().out
