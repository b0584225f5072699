"""The server with real clients: OpenEnv's, Gymnasium's, OpenAI's, and the command itself."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="needs the extra: pip install 'terrella[serve]'")

import gymnasium
from tests.support.served import LAKE, TOKEN, lying_service, running, untrained_model

from terrella.core.errors import WorldError
from terrella.core.types import Text
from terrella.serve.inference import InferenceService
from terrella.serve.settings import ServeSettings

PAGE = (Path(__file__).parents[2] / "docs/serve.md").read_text()
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def url():
    with running(lying_service(lies=0.0)) as address:
        yield address


def post(url, path, body, token=TOKEN):
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def truth(seed, actions):
    """Observations of the same episode in the real world: this model never lies."""
    world = LAKE.build()
    first, _ = world.reset(seed=seed, options={"split": "test"})
    return [first, *(world.step(action)[0] for action in actions)]


def openenv_python():
    """The Python with OpenEnv: this one, or that of `.ci/openenv`; None if there is none."""
    named = os.environ.get("TERRELLA_OPENENV_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("openenv") else None)


@pytest.mark.skipif(
    openenv_python() is None, reason="needs openenv: run .ci/openenv, or pip install openenv"
)
def test_the_openenv_client_plays_an_episode(url):
    script = Path(__file__).parents[1] / "support/openenv_client.py"
    command = [openenv_python(), str(script), url, TOKEN, "5", "test", "Down"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    played = json.loads(done.stdout)
    first, last, steps = played["seen"][0], played["seen"][-1], len(played["seen"]) - 1
    expected = [observation.text for observation in truth(5, ["Down"] * steps)]
    assert [row["text"] for row in played["seen"]] == expected
    assert played["state"]["step_count"] == steps and first["reward"] is None
    assert last["metadata"]["safe_horizon"] == 4 and 0 <= last["metadata"]["risk"] <= 1


def test_gymnasium_makes_the_same_world(url):
    env = gymnasium.make("terrella/Remote-v0", url=url, token=TOKEN)
    observation, info = env.reset(seed=5, options={"split": "test"})
    observations, over = [observation], False
    assert isinstance(observation, Text) and info["trust"] == "trusted"
    while not over:
        observation, _, terminated, truncated, info = env.step("Down")
        observations.append(observation)
        over = terminated or truncated
    steps = len(observations) - 1
    assert observations == truth(5, ["Down"] * steps) and info["depth"] == steps
    with pytest.raises(WorldError, match="reset first"):
        env.unwrapped.step("Down")
    assert env.unwrapped.action_space.names == ("Left", "Down", "Right", "Up")
    env.close()


def test_without_the_token_every_client_is_refused(url):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with (
        pytest.raises(InvalidStatus, match="401"),
        connect(url.replace("http", "ws") + "/ws", proxy=None),
    ):
        pass
    with pytest.raises(urllib.error.HTTPError, match="401"):
        post(url, "/predict", {}, token="wrong-token-entirely")
    with pytest.raises(WorldError, match="401"):
        gymnasium.make("terrella/Remote-v0", url=url, token="wrong")


def test_a_session_survives_invalid_messages_and_closes_on_request(url):
    from websockets.sync.client import connect

    with connect(
        url.replace("http", "ws") + "/ws", additional_headers=HEADERS, proxy=None
    ) as socket:
        codes = []
        for message in (
            "{",
            "[]",
            '{"type": "fly"}',
            '{"type": "step", "data": {"action": "Up"}}',
            b"\xff\x00",
            '{"type": "reset", "data": 3}',
            '{"type": "reset", "data": {"split": "all"}}',
        ):
            socket.send(message)
            codes.append(json.loads(socket.recv())["data"]["code"])
        assert codes == [
            "INVALID_JSON",
            "VALIDATION_ERROR",
            "UNKNOWN_TYPE",
            "EXECUTION_ERROR",
            "INVALID_JSON",
            "VALIDATION_ERROR",
            "VALIDATION_ERROR",
        ]
        socket.send('{"type": "reset", "data": {"seed": 1}}')
        assert json.loads(socket.recv())["type"] == "observation"
        socket.send('{"type": "close"}')
        with pytest.raises(Exception, match="1000"):
            socket.recv()


# --- a model of tokens ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokens():
    """An untrained language model: its predictions are nonsense, but served like any other."""
    pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")
    from tests.support.made_models import certified_model_of

    learned = untrained_model(samples=4, turn_tokens=12, cache_limit=0)  # every query is sampled
    service = InferenceService(
        certified_model_of(learned),
        LAKE,
        ServeSettings.Config(),
        tokenizer=learned.tokenizer,
        name="tiny",
    )
    with running(service) as address:
        yield address, learned


def test_an_openai_client_gets_a_completion(tokens):
    openai = pytest.importorskip("openai", reason="pip install openai")
    url, _ = tokens
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN)
    assert [model.id for model in client.models.list()] == ["tiny"]
    request = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "<obs>P_G<end><act>Right<end><obs>"}],
        "max_tokens": 6,
        "seed": 3,
    }
    whole = client.chat.completions.create(**request)
    assert 1 <= whole.usage.completion_tokens <= 6
    assert whole.choices[0].finish_reason in ("stop", "length")
    content = whole.choices[0].message.content
    again = client.chat.completions.create(**request)
    assert again.choices[0].message.content == content
    stream = client.chat.completions.create(**request, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in stream) == content
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
    client.close()


def test_predictions_of_different_clients_share_forward_passes(tokens):
    url, model = tokens
    texts = [f"{a}{b}_\n___\n___" for a in "PGO_" for b in "PGO_"]
    questions = [{"questions": [{"observation": text, "action": "Up"}]} for text in texts]
    before = model.sampler.passes
    alone = [post(url, "/predict", question)["predictions"][0] for question in questions]
    one_by_one = model.sampler.passes - before
    together: dict[int, dict] = {}
    threads = [
        threading.Thread(
            target=lambda n=n: together.update({n: post(url, "/predict", questions[n])})
        )
        for n in range(len(texts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared = model.sampler.passes - before - one_by_one
    assert shared < 0.5 * one_by_one
    for n, reply in together.items():  # and no prediction depends on the rest of its batch
        prediction = reply["predictions"][0]
        assert prediction["observation"] == alone[n]["observation"]
        assert prediction["probability"] == pytest.approx(alone[n]["probability"], rel=1e-3)


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_serves_and_stops_cleanly(tmp_path):
    """A tiny model is trained, served by `terrella serve`, queried, and stopped by SIGTERM."""
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250", "PYTHONUNBUFFERED": "1"}
    environment.pop("TERRELLA_TOKEN", None)
    run = [sys.executable, "-m", "terrella.cli"]
    small = ("transitions=200", "sft.epochs=1", "world.goals=20")
    block = re.findall(r"```bash\n(.*?)```", PAGE, re.S)[0]
    commands = [line.split()[1:] for line in block.strip().splitlines()]
    training, _, serving = commands  # certifying takes minutes, and has its own test
    training += [argument for setting in small for argument in ("--set", setting)]
    subprocess.run(
        [*run, *training], check=True, cwd=tmp_path, env=environment, capture_output=True
    )
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen(
        [*run, *serving, "--set", "limits.port=0"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        url = re.search(r"http://\S+", server.stdout.readline())[0]
        token = server.stdout.readline().split()[-1]
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).read()
                break
            except OSError:
                assert server.poll() is None
        observation = {"kind": "state", "text": '{"goal":5,"value":3}'}
        body = {"questions": [{"observation": observation, "action": "up"}]}
        reply = post(url, "/predict", body, token)
        assert reply["predictions"][0]["trust"] == "not_certified"
        assert not reply["certificate"]["certified"]
        example = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
        code = f"url, token = {url!r}, {token!r}\n{example}"
        shown = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert "not_certified" in shown.stdout, shown.stderr[-2000:]
    finally:
        server.send_signal(signal.SIGTERM)
        rest = server.communicate(timeout=60)[0]
    assert server.returncode == 0 and "Traceback" not in Path(log.name).read_text()
    assert "requests were finished" in rest
