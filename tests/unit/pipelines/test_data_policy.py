"""Certify plays the policy of a store's manifest, which may come from anywhere (finding 4)."""

import contextlib
import socket

import pytest

from terrella.core.config import dump
from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.integrity import read_sealed, write_sealed
from terrella.pipelines.certify.pipeline import data_policy
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Mixture, Random
from terrella.policies.endpoint import Endpoint
from terrella.policies.human import Human
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    out = tmp_path_factory.mktemp("store")
    config = Collect.Config(world=Counter.Config(), policy=Random.Config(), out=out, episodes=2)
    Collect(config).run(SilentProgress())
    return out


def says(store, policy):
    """What a stranger's store would say: its hash is right, too."""
    manifest = read_sealed(store / "manifest.json")
    manifest["config"]["policy"] = dump(policy)
    write_sealed(store / "manifest.json", manifest)
    return data_policy(store)


def test_policies_that_stay_in_this_process_are_taken_from_the_manifest(store):
    assert says(store, Random.Config()) == Random.Config()
    assert says(store, Mixture.Config(share=0.3)) == Mixture.Config(share=0.3)


@pytest.mark.parametrize(
    "policy",
    [
        Endpoint.Config(url="http://127.0.0.1:9/v1", key_variable="HF_TOKEN"),
        Mixture.Config(first=Endpoint.Config(url="http://127.0.0.1:9/v1")),
        Human.Config(),
        Counter.Config(),
    ],
)
def test_an_endpoint_a_person_and_a_world_must_come_from_the_command_line(store, policy):
    with pytest.raises(ConfigError, match=r"--policy") as refused:
        says(store, policy)
    assert "HF_TOKEN" not in str(refused.value)


def test_no_address_of_a_manifest_is_asked(store, monkeypatch):
    """A listener got `Authorization: Bearer` with the value of any variable that a store named."""
    monkeypatch.setenv("HF_TOKEN", "hf_a_secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        named = Endpoint.Config(url=url, key_variable="HF_TOKEN", timeout=0.2, retries=1)
        with contextlib.suppress(ConfigError):
            play(Counter.Config().build(), says(store, named).build(), seed=0)
        with pytest.raises(BlockingIOError):  # nobody has come
            listener.accept()


def test_a_mixture_is_made_of_policies():
    with pytest.raises(ConfigError, match="Counter is not a policy"):
        Mixture.Config(first=Counter.Config())
