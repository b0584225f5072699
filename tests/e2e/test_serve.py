"""Real clients over real sockets: OpenEnv's, Gymnasium's, OpenAI's, and the command itself."""

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
from tests.support.served import LAKE, TOKEN, lying_oracle, running

from terrella.core.errors import WorldError
from terrella.core.types import Text
from terrella.serve.oracle import Oracle
from terrella.serve.settings import ServeSettings

PAGE = (Path(__file__).parents[2] / "docs/serve.md").read_text()
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def url():
    with running(lying_oracle(lies=0.0)) as address:
        yield address


def post(url, path, body, token=TOKEN):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def truth(seed, actions):
    """The same episode in the real world: this model never lies."""
    world = LAKE.build()
    seen = [world.reset(seed=seed, options={"split": "test"})[0]]
    return seen + [world.step(action)[0] for action in actions]


def openenv_python():
    """Who has OpenEnv: this Python, or the one that `.ci/openenv` made."""
    named = os.environ.get("TERRELLA_OPENENV_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("openenv") else None)


@pytest.mark.skipif(openenv_python() is None, reason="needs openenv: run .ci/openenv, or pip install openenv")
def test_the_openenv_client_plays_an_episode(url):
    script = Path(__file__).parents[1] / "support/openenv_client.py"
    command = [openenv_python(), str(script), url, TOKEN, "5", "test", "Down"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    first, last, steps = told["seen"][0], told["seen"][-1], len(told["seen"]) - 1
    assert [row["text"] for row in told["seen"]] == [record.text for record in truth(5, ["Down"] * steps)]
    assert told["state"]["step_count"] == steps and first["reward"] is None
    assert last["metadata"]["safe_horizon"] == 4 and 0 <= last["metadata"]["risk"] <= 1


def test_gymnasium_makes_the_same_world(url):
    env = gymnasium.make("terrella/Remote-v0", url=url, token=TOKEN)
    seen, info = env.reset(seed=5, options={"split": "test"})
    shown, over = [seen], False
    assert isinstance(seen, Text) and info["trust"] == "trusted"
    while not over:
        seen, _, terminated, truncated, info = env.step("Down")
        shown.append(seen)
        over = terminated or truncated
    assert shown == truth(5, ["Down"] * (len(shown) - 1)) and info["depth"] == len(shown) - 1
    with pytest.raises(WorldError, match="reset first"):
        env.unwrapped.step("Down")
    assert env.unwrapped.action_space.names == ("Left", "Down", "Right", "Up")
    env.close()


def test_without_the_token_no_door_opens(url):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with pytest.raises(InvalidStatus, match="401"), connect(url.replace("http", "ws") + "/ws", proxy=None):
        pass
    with pytest.raises(urllib.error.HTTPError, match="401"):
        post(url, "/predict", {}, token="wrong-token-entirely")
    with pytest.raises(WorldError, match="401"):
        gymnasium.make("terrella/Remote-v0", url=url, token="wrong")


def test_a_session_survives_nonsense_and_ends_when_it_is_told(url):
    from websockets.sync.client import connect

    with connect(url.replace("http", "ws") + "/ws", additional_headers=HEADERS, proxy=None) as socket:
        codes = []
        for message in ("{", "[]", '{"type": "fly"}', '{"type": "step", "data": {"action": "Up"}}', b"\xff\x00",
                        '{"type": "reset", "data": 3}', '{"type": "reset", "data": {"split": "all"}}'):  # fmt: skip
            socket.send(message)
            codes.append(json.loads(socket.recv())["data"]["code"])
        assert codes == ["INVALID_JSON", "VALIDATION_ERROR", "UNKNOWN_TYPE", "EXECUTION_ERROR", "INVALID_JSON",
                         "VALIDATION_ERROR", "VALIDATION_ERROR"]  # fmt: skip
        socket.send('{"type": "reset", "data": {"seed": 1}}')
        assert json.loads(socket.recv())["type"] == "observation"
        socket.send('{"type": "close"}')
        with pytest.raises(Exception, match="1000"):
            socket.recv()


# --- a model of tokens --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokens():
    """An untrained model: what it says is nonsense, how it is served is not."""
    pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")
    from tests.support.made_models import imagination_of

    from terrella.engines.sampling.local_sampler import LocalSampler
    from terrella.models.presets import load_model
    from terrella.use.world_models import LearnedWorldModel, codec_for

    world = LAKE.build()
    world.reset(seed=0)
    model, tokenizer = load_model("tiny-0.3m", words=world.words(), seed=0)
    learned = LearnedWorldModel(LocalSampler(model.eval()), codec_for(tokenizer), tokenizer, samples=4, turn_tokens=12)
    oracle = Oracle(imagination_of(learned), LAKE, ServeSettings.Config(), tokenizer=tokenizer, name="tiny")
    with running(oracle) as address:
        yield address, learned


def test_an_openai_client_gets_a_completion(tokens):
    openai = pytest.importorskip("openai", reason="pip install openai")
    url, _ = tokens
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN)
    assert [model.id for model in client.models.list()] == ["tiny"]
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "<obs>P_G<end><act>Right<end><obs>"}],
             "max_tokens": 6, "seed": 3}  # fmt: skip
    whole = client.chat.completions.create(**asked)
    assert 1 <= whole.usage.completion_tokens <= 6 and whole.choices[0].finish_reason in ("stop", "length")
    assert client.chat.completions.create(**asked).choices[0].message.content == whole.choices[0].message.content
    parts = [part.choices[0].delta.content or "" for part in client.chat.completions.create(**asked, stream=True)]
    assert "".join(parts) == whole.choices[0].message.content
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
    client.close()


def test_predictions_of_different_clients_share_forward_passes(tokens):
    url, model = tokens
    model.most_kept = 0  # every question is asked
    texts = [f"{a}{b}_\n___\n___" for a in "PGO_" for b in "PGO_"]
    questions = [{"questions": [{"observation": text, "action": "Up"}]} for text in texts]
    before = model.sampler.passes
    alone = [post(url, "/predict", question)["predictions"][0] for question in questions]
    one_by_one = model.sampler.passes - before
    together: dict[int, dict] = {}
    threads = [threading.Thread(target=lambda n=n: together.update({n: post(url, "/predict", questions[n])}))
               for n in range(len(texts))]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared = model.sampler.passes - before - one_by_one
    assert shared < 0.5 * one_by_one
    for n, told in together.items():  # and nobody's answer depends on who asked beside them
        answer = told["predictions"][0]
        assert answer["observation"] == alone[n]["observation"]
        assert answer["probability"] == pytest.approx(alone[n]["probability"], rel=1e-3)


# --- the command --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_serves_and_ends_politely(tmp_path):
    """A tiny model is trained, served by `terrella serve`, asked, and ended by SIGTERM."""
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250", "PYTHONUNBUFFERED": "1"}
    environment.pop("TERRELLA_TOKEN", None)
    run = [sys.executable, "-m", "terrella.cli"]
    small = ("transitions=200", "sft.epochs=1", "world.goals=20")
    commands = [line.split()[1:] for line in re.findall(r"```bash\n(.*?)```", PAGE, re.S)[0].strip().splitlines()]
    training, _, serving = commands  # certifying takes minutes, and has its own test
    training += [word for setting in small for word in ("--set", setting)]
    subprocess.run([*run, *training], check=True, cwd=tmp_path, env=environment, capture_output=True)
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen([*run, *serving, "--set", "limits.port=0"], cwd=tmp_path, env=environment,
                              stdout=subprocess.PIPE, stderr=log, text=True)  # fmt: skip
    try:
        url = re.search(r"http://\S+", server.stdout.readline())[0]
        token = server.stdout.readline().split()[-1]
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).read()
                break
            except OSError:
                assert server.poll() is None
        body = {"questions": [{"observation": {"kind": "state", "text": '{"goal":5,"value":3}'}, "action": "up"}]}
        told = post(url, "/predict", body, token)
        assert told["predictions"][0]["trust"] == "not_certified" and not told["certificate"]["certified"]
        code = f"url, token = {url!r}, {token!r}\n" + re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
        shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert "not_certified" in shown.stdout, shown.stderr[-2000:]
    finally:
        server.send_signal(signal.SIGTERM)
        rest = server.communicate(timeout=60)[0]
    assert server.returncode == 0 and "Traceback" not in Path(log.name).read_text()
    assert "let finish" in rest
