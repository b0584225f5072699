"""Names of models: a mistyped folder is not looked for at the hub."""

import pytest

from terrella.core.errors import ConfigError
from terrella.models.names import check_model_name


def test_a_name_of_the_hub_is_a_name_of_the_hub():
    check_model_name("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")


@pytest.mark.parametrize("name", ["runs/lake", "./lake", "/nowhere/lake", "a/b/c"])
def test_a_mistyped_folder_is_missing(name):
    with pytest.raises(ConfigError, match=r"there is no such folder\n  -> check the path$"):
        check_model_name(name)


def test_a_folder_of_the_owners_name_explains_itself(tmp_path, monkeypatch):
    (tmp_path / "deepseek-ai").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="where there is no folder 'deepseek-ai'"):
        check_model_name("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")


def test_a_mistyped_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match=r"did you mean smollm2\?"):
        check_model_name("smolm2")
