"""What is written with its hash is what is read back, or is refused by name."""

import json
import os

import pytest

from terrella.core import integrity
from terrella.core.errors import StoreError
from terrella.core.integrity import (
    check_file,
    check_folder,
    copy_folder,
    damaged_files,
    file_sha256,
    folder_damage,
    folder_sha256,
    read_hashed,
    read_sealed,
    write_hashed,
    write_listing,
    write_sealed,
)


def flip(path, at=0.5, bit=0):
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1 << bit
    path.write_bytes(data)


def test_a_sealed_file_comes_back_as_json_would_bring_it(tmp_path):
    content = {"a": (1, 2), "b": {3: 0.1, 20: None}, "text": "\ud800 ü", "sum": 1.0}
    write_sealed(tmp_path / "x.json", content)
    assert read_sealed(tmp_path / "x.json") == json.loads(json.dumps(content))
    assert "sha256" in json.loads((tmp_path / "x.json").read_text())


def test_every_flipped_bit_of_a_sealed_file_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "x.json"
    content = {"seed": 1, "name": "lake", "values": [0.5, 1e-3, True, None]}
    write_sealed(path, content)
    whole = path.read_bytes()
    for position in range(len(whole) * 8):
        data = bytearray(whole)
        data[position // 8] ^= 1 << position % 8
        path.write_bytes(data)
        try:
            read = read_sealed(path)
        except StoreError as error:
            assert "x.json" in str(error)
        else:
            assert read == content, f"bit {position} was read as {read}"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": 1}', "[" * 100_000, '{"sha256": NaN}'])
def test_what_was_never_sealed_is_refused_by_name(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(StoreError, match=r"x\.json.*\n.*(restore|new folder)"):
        read_sealed(tmp_path / "x.json")


def test_a_file_is_hashed_once_and_again_when_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"one")
    os.utime(path, ns=(0, 0))
    first = file_sha256(path)
    with monkeypatch.context() as patch:
        patch.setattr(integrity.hashlib, "file_digest", None)
        assert file_sha256(path) == first
    path.write_bytes(b"two")
    assert file_sha256(path) != first
    with pytest.raises(StoreError, match=r"x: is damaged.*\n"):
        check_file(path, first)
    with pytest.raises(StoreError, match="y: is missing"):
        check_file(tmp_path / "y", first)


def test_a_hashed_file_is_refused_when_it_or_its_hash_changes(tmp_path):
    path = tmp_path / "net.safetensors"
    write_hashed(path, b"weights")
    assert read_hashed(path) == b"weights" and damaged_files(tmp_path) == []
    for victim in (path, tmp_path / "net.safetensors.sha256"):
        whole = victim.read_bytes()
        flip(victim)
        with pytest.raises(StoreError, match=r"net.safetensors: is damaged"):
            read_hashed(path)
        assert damaged_files(tmp_path) == ["net.safetensors"]
        victim.write_bytes(whole)
    (tmp_path / "net.safetensors.sha256").unlink()
    with pytest.raises(StoreError, match="has no hash beside it"):
        read_hashed(path)


def model(folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    write_listing(folder)
    return folder


def test_a_listed_folder_is_what_was_written_or_is_refused_by_name(tmp_path):
    folder = model(tmp_path / "model")
    check_folder(folder)
    for name in ("config.json", "model.safetensors", "files.json"):
        whole = (folder / name).read_bytes()
        flip(folder / name)
        with pytest.raises(StoreError, match=rf"model: is damaged: .*{name}"):
            check_folder(folder)
        (folder / name).unlink()
        with pytest.raises(StoreError, match=rf"{name} is missing"):
            check_folder(folder)
        (folder / name).write_bytes(whole)
    (folder / "README.md").write_text("a note for people")
    check_folder(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"unlisted")
    with pytest.raises(StoreError, match=r"not in files.json: adapter_model.safetensors"):
        check_folder(folder)


def test_a_listing_of_nothing_is_refused(tmp_path):
    write_sealed(tmp_path / "files.json", {"files": {}})
    assert folder_damage(tmp_path) == "files.json lists no files"


def test_a_copy_has_the_same_hash_and_a_damaged_source_is_not_copied(tmp_path):
    folder = model(tmp_path / "model")
    copy_folder(folder, tmp_path / "copy")
    check_folder(tmp_path / "copy")
    assert folder_sha256(tmp_path / "copy") == folder_sha256(folder)
    flip(folder / "model.safetensors")
    with pytest.raises(StoreError, match=r"model.safetensors differs"):
        copy_folder(folder, tmp_path / "copy")
    check_folder(tmp_path / "copy")
    assert folder_sha256(tmp_path / "nowhere") is None
