"""Without verl, engine=verl says how to install it: it is no extra."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.core.errors import EngineError
from terrella.engines.configs import EngineConfig
from terrella.engines.verl.verl_engine import VerlEngine

ROOT = Path(__file__).parents[3]


def test_the_error_points_to_lines_that_are_there(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match="is not installed") as refused:
        VerlEngine(EngineConfig(engine="verl"), tmp_path)
    page, section = re.search(r'(docs/\S+) \("(.+)"\)', refused.value.remedy).groups()
    text = (ROOT / page).read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    pinned = re.search(r"^verl==(\S+)", (ROOT / "constraints-verl.txt").read_text(), re.M)[1]
    assert f"pip install 'verl[vllm]=={pinned}'" in text
