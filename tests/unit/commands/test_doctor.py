"""`terrella doctor`: what pip does not install is named, with the command that does."""

from terrella.commands import doctor
from terrella.core.errors import MissingProgramError


def findings(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setattr(doctor, "find_library", lambda name: None)
    return {finding.subject: finding for finding in doctor.programs()}


def test_missing_programs_are_named_with_their_commands(monkeypatch, tmp_path):
    monkeypatch.setenv("TERRELLA_CHROMIUM", str(tmp_path / "none"))
    found = findings(monkeypatch, tmp_path)
    assert set(found) == {"Chromium", "rendering (osmesa)", "Java"}
    assert not any(finding.good for finding in found.values())
    assert "TERRELLA_CHROMIUM" in found["Chromium"].detail
    assert "libosmesa6" in found["rendering (osmesa)"].detail
    assert "openjdk-17" in found["Java"].detail


def test_without_chromium_the_remedy_is_not_pip(monkeypatch):
    from terrella.browser import launch

    monkeypatch.delenv("TERRELLA_CHROMIUM", raising=False)
    monkeypatch.setattr(launch, "CHROMIUM_PATHS", ())
    try:
        launch.find_chromium()
    except MissingProgramError as error:
        assert "apt-get install chromium" in str(error) and "pip" not in str(error)
    else:
        raise AssertionError("Chromium was found nowhere")


def test_torch_comes_first_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(doctor, "gpus", list)
    assert doctor.install_line("train", ["torch"]).startswith("torch's CPU build first")
    assert "needs a GPU" in doctor.install_line("vllm", ["vllm"])
    monkeypatch.setattr(doctor, "gpus", lambda: ["a device"])
    assert doctor.install_line("train", ["torch"]) == "pip install 'terrella[train]'"
