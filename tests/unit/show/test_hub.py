"""Push and pull against a hub on loopback, and the cards of models and datasets."""

import json
import socket

import pytest

hub_library = pytest.importorskip(
    "huggingface_hub", reason="needs the extra: pip install 'terrella[hub]'"
)

from tests.support.fake_hub import fake_hub
from tests.support.made_episodes import made
from tests.support.manifests import write_manifest

from terrella.commands.hub import pull, push
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import locked
from terrella.core.integrity import write_sealed
from terrella.core.run_folder import check_spec
from terrella.core.types import Text
from terrella.data.parts import encode_part
from terrella.data.store import EpisodeStore, finish, write_part
from terrella.show.cards import card
from terrella.show.runs import read_run

STRANGE_NAMES = (
    "model.PY",
    "weights.PKL",
    "last.ckpt",
    "data.npy",
    "scaler.joblib",
    "lib.so.1",
    "page.json.exe",
    "setup",
    "..\\x.json",
    "a/../../x.json",
    "/etc/x.json",
    "C:x.json",
    ".config/x.json",
    "a//x.json",
    "new\nline.json",
)
"""None of them may stop at being skipped: the repository as a whole is not what it says."""


@pytest.fixture
def hub(monkeypatch):
    with fake_hub() as server:
        from huggingface_hub import constants

        monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            server.address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        real = hub_library.HfApi
        monkeypatch.setattr(hub_library, "HfApi", lambda: real(endpoint=server.address))
        download = hub_library.snapshot_download
        monkeypatch.setattr(
            hub_library,
            "snapshot_download",
            lambda *a, **k: download(*a, endpoint=server.address, **k),
        )
        yield server


def store(folder):
    folder.mkdir()
    config = {
        "class": "terrella.pipelines.collect.pipeline:Collect",
        "world": {"class": "terrella.worlds.counter:Counter"},
    }
    plan = check_spec(folder, {"config": config})
    episodes = [
        made("x", [Text("a"), Text("b")], ["go"], seed=n, value=float(n % 2)) for n in range(4)
    ]
    part = write_part(folder, encode_part(episodes, first=0, spec=plan))
    finish(folder, [part], {"config": config})
    return folder


def test_two_processes_do_not_pull_into_one_folder(hub, tmp_path):
    push(store(tmp_path / "store"), "me/eps")
    with locked(tmp_path / "again"), pytest.raises(StoreError, match="another process"):
        pull("me/eps", tmp_path / "again", kind="dataset")


def test_a_store_goes_up_and_comes_down_unchanged(hub, tmp_path):
    folder = store(tmp_path / "store")
    (folder / "secrets.env").write_text("KEY=1")
    (folder / "run.log").write_text("a line")
    assert push(folder, "me/eps").startswith(f"{hub.address}/me/eps/commit/")
    repo = hub.repos["me/eps"]
    assert repo["asked"]["type"] == "dataset" and hub.tokens == {"Bearer hf_of_the_test"}
    assert repo["asked"].get("private") is True or repo["asked"].get("visibility") == "private"
    suffixes = {name.split(".")[-1] for name in repo["files"]}
    assert suffixes == {"parquet", "json", "md"}  # no log, no secret
    readme = repo["files"]["README.md"].decode()
    assert readme.startswith("---\ntags:")
    assert "| episodes | 4 |" in readme and "| successes | 2 |" in readme
    commit = pull("me/eps", tmp_path / "again", kind="dataset")
    pulled = json.loads((tmp_path / "again/pulled.json").read_text())
    assert pulled == {"repo": "me/eps", "commit": commit}
    again, first = (
        list(EpisodeStore.open(tmp_path / name).episodes()) for name in ("again", "store")
    )
    assert again == first


@pytest.mark.parametrize("files", [[3], 3, {"../../x": "0"}])
def test_a_strange_list_of_files_is_refused(hub, tmp_path, files):
    table = tmp_path / "table.json"
    write_sealed(table, {"arms": {}, "files": files})
    hub.repos["me/table"] = {"files": {"table.json": table.read_bytes()}, "asked": {}}
    with pytest.raises(StoreError, match=r"strange values|a file outside of it"):
        pull("me/table", tmp_path / "again")


def test_pages_of_others_are_not_downloaded(hub, tmp_path):
    push(store(tmp_path / "store"), "me/eps")
    page = b"<h1>CERTIFIED for 99 steps</h1><script>run()</script>"
    for name in ("certificate/certificate.html", "certificate/certificate.png", "view/view.html"):
        hub.repos["me/eps"]["files"][name] = page
    pull("me/eps", tmp_path / "again", kind="dataset")
    taken = {path.suffix for path in (tmp_path / "again").rglob("*") if path.is_file()}
    assert not taken & {".html", ".png"} and ".parquet" in taken


@pytest.mark.parametrize("run", ["run", "lake-rlvr"])
def test_checkpoints_and_models_in_between_are_not_pushed(hub, tmp_path, run):
    config = {"class": "terrella.pipelines.rlvr:Rlvr", "ask": "action", "world": {"class": "a:B"}}
    metric = {"mean": 0.9, "low": 0.85, "high": 0.95, "n": 256}
    metrics = {"before": metric, "after": metric, "baselines": {}}
    write_manifest(tmp_path / run, config, metrics)
    for name in (
        "model/config.json",
        "model/model.safetensors",
        "model-rlvr/checkpoint-1/model.safetensors",
        "model-rlvr/checkpoint-1/optimizer.safetensors",
        "model-rlvr/tokens/step-1.jsonl",
        "fitted/config.json",
        "fitted/model.safetensors",
        "phase-01/actor/config.json",
        "phase-01/actor/model.safetensors",
        "phase-01/critic/config.json",
        "phase-01/critic/model.safetensors",
        "start/model.safetensors",
    ):
        (tmp_path / run / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / run / name).write_text("{}")
    push(tmp_path / run, "me/run")
    assert set(hub.repos["me/run"]["files"]) == {
        "README.md",
        "manifest.json",
        "model/config.json",
        "model/model.safetensors",
        "model-rlvr/tokens/step-1.jsonl",
    }


def test_a_link_to_a_file_outside_is_not_published(hub, tmp_path):
    folder = store(tmp_path / "store")
    (tmp_path / "private.txt").write_text("a key")
    (folder / "notes.txt").symlink_to(tmp_path / "private.txt")
    with pytest.raises(StoreError, match=r"link that leads outside: 'notes\.txt'"):
        push(folder, "me/eps")
    assert "me/eps" not in hub.repos


def test_code_and_tampering_are_refused(hub, tmp_path):
    push(store(tmp_path / "store"), "me/eps")
    files = hub.repos["me/eps"]["files"]
    part = next(name for name in files if name.endswith(".parquet"))
    whole = files[part]
    files[part] = whole[:-20] + bytes(20)
    with pytest.raises(StoreError, match="differs from its manifest"):
        pull("me/eps", tmp_path / "tampered", kind="dataset")
    files[part], files["modeling_x.py"] = whole, b"import os"
    with pytest.raises(ConfigError, match=r"could run code: modeling_x\.py"):
        pull("me/eps", tmp_path / "code", kind="dataset")
    assert not (tmp_path / "code").exists()
    del files["modeling_x.py"]
    for name in STRANGE_NAMES:
        files[name] = b"x"
        with pytest.raises(ConfigError, match=r"could run code|could leave the folder"):
            pull("me/eps", tmp_path / "code", kind="dataset")
        assert not (tmp_path / "code").exists()
        del files[name]
    files["model/config.json"] = b'{"auto_map": {"AutoConfig": "configuration_x.X"}}'
    with pytest.raises(ConfigError, match="names code that would be run: auto_map"):
        pull("me/eps", tmp_path / "code", kind="dataset")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        pull("me/eps", tmp_path / "full")


@pytest.mark.parametrize("name", ["lake", "me/lake/model", "me/", "/lake", "me/la ke", "../lake"])
def test_a_name_that_is_no_repository_is_refused_first(name, tmp_path):
    for ask in (lambda: push(tmp_path / "nowhere", name), lambda: pull(name, tmp_path)):
        with pytest.raises(ConfigError, match="is not the name of a repository\n  -> write owner"):
            ask()


def test_a_hub_that_cannot_be_reached_is_named(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    real = hub_library.HfApi
    monkeypatch.setattr(hub_library, "HfApi", lambda: real(endpoint=nobody))
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    folder = store(tmp_path / "store")
    for ask in (lambda: push(folder, "me/eps"), lambda: pull("me/eps", tmp_path / "again")):
        with pytest.raises(ConfigError, match=r"cannot be reached \(.*refused\)") as error:
            ask()
        assert error.value.where == nobody and "HF_ENDPOINT" in error.value.remedy
    assert not (tmp_path / "again").exists()


def test_a_hub_that_lost_the_way_to_its_files_is_named(hub, tmp_path, monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def lost(*_, **__):
        raise LocalEntryNotFoundError("the line was cut\nand more")

    push(store(tmp_path / "store"), "me/eps")
    monkeypatch.setattr(hub_library, "snapshot_download", lost)
    with pytest.raises(ConfigError, match=r"cannot be reached \(the line was cut\)"):
        pull("me/eps", tmp_path / "again", kind="dataset")


def test_what_the_hub_refuses_is_said_in_one_line(hub, tmp_path):
    with pytest.raises(ConfigError, match=r"me/nothing: http.* refused: 404") as error:
        pull("me/nothing", tmp_path / "again")
    assert "\n" not in error.value.what and "HF_TOKEN" in error.value.remedy


def test_a_model_card_shows_what_was_measured_and_that_there_is_no_certificate(tmp_path):
    config = {
        "class": "terrella.pipelines.rlvr:Rlvr",
        "ask": "observation",
        "world": {"class": "a:B"},
    }
    metric = {"mean": 0.9, "low": 0.85, "high": 0.95, "n": 256}
    metrics = {
        "before": {**metric, "mean": 0.2},
        "after": metric,
        "baselines": {"no_change": 0.0},
    }
    write_manifest(tmp_path, config, metrics)
    text = card(read_run(tmp_path))
    assert "| after training | 0.900 [0.850, 0.950] | 256 |" in text
    assert "| baseline: no_change | 0.000 |" in text
    assert "there is no certificate" in text
