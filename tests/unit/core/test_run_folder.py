"""A folder of another command is refused by what it holds; a run has hashes of its files."""

import pytest

from terrella.core.errors import StoreError
from terrella.core.run_folder import WORK_SUFFIXES, check_spec, held, result_files


def spec(name, **settings):
    return {"config": {"class": f"terrella.pipelines.{name.lower()}:{name}", **settings}}


def test_a_run_of_another_command_is_named_by_its_kind(tmp_path):
    check_spec(tmp_path, spec("Collect", seed=0, world={"size": 3}))
    with pytest.raises(StoreError) as refused:
        check_spec(tmp_path, spec("Rlvr", seed=1, model="tiny"))
    assert refused.value.what == "was written by another command (Collect there, Rlvr here)"
    assert refused.value.remedy == "choose another folder with --out"


def test_other_settings_of_the_same_command_are_named_one_by_one(tmp_path):
    check_spec(tmp_path, spec("Rlvr", seed=0))
    with pytest.raises(StoreError, match=r"other settings: config\.seed is 0 there, 1 here"):
        check_spec(tmp_path, spec("Rlvr", seed=1))


@pytest.mark.parametrize("name", ["lake", *(f"lake{suffix}" for suffix in WORK_SUFFIXES)])
def test_a_run_has_hashes_whatever_its_folder_is_called(tmp_path, name):
    for path in ("curve.jsonl", "rl/before.json", "model-rlvr/checkpoint.bin"):
        (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / path).write_text("{}")
    # Checkpoints inside have hashes of their own.
    assert sorted(result_files(tmp_path / name)) == ["curve.jsonl", "rl/before.json"]


def test_a_run_is_not_continued_in_a_folder_with_links(tmp_path):
    """Who prepared the folder would choose what the run overwrites."""
    (tmp_path / "run/deep/rows").mkdir(parents=True)
    link, profile = tmp_path / "run/deep/rows/bandit.rows", tmp_path / "profile"
    for target in (profile, tmp_path):  # nothing yet, and a folder
        link.symlink_to(target)
        with pytest.raises(StoreError) as refused, held(tmp_path / "run"):
            pass
        assert refused.value.where == str(link)
        assert f"is a link to {target}" in refused.value.what
        link.unlink()
    (tmp_path / "scratch").symlink_to(tmp_path / "run")
    with held(tmp_path / "scratch"):  # the folder itself is the choice of who names it
        pass


def test_a_folder_that_hides_its_names_is_not_continued(tmp_path, monkeypatch):
    def refused(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(PermissionError), held(tmp_path):
        pass
