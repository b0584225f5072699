"""A cluster that loses a node while it collects: every episode is there, once."""

import pytest

pytest.importorskip("ray")
from tests.support.three_nodes import collect


@pytest.mark.ray
@pytest.mark.slow
def test_a_lost_node_loses_no_episode_and_doubles_none(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    found = collect(tmp_path / "store", 1_000)
    assert found["nodes_lost"] == 1 and found["workers_lost"] >= 1
    assert (found["episodes"], found["lost"], found["duplicated"]) == (1_000, 0, 0)
