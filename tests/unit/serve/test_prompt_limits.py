"""A language model behind the server: prompts are measured first, and work ends with its client."""

import asyncio
import json
import time

import pytest

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="needs the extra: pip install 'terrella[serve]'")
pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from tests.support.made_models import certified_model_of
from tests.support.served import LAKE, TOKEN, call, running, untrained_model
from tests.support.slow_clients import exchange, post

from terrella.codecs.chat_template import fixed_date
from terrella.serve.admission import Waiting
from terrella.serve.app import make_app
from terrella.serve.chat import prompt_ids
from terrella.serve.inference import InferenceService
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError

ENDLESS = 29
"""With this seed the model writes 400 tokens and more without an end."""


def service_of(turn_tokens=12, beat=lambda: None, **limits):
    """An untrained model; `beat` is called after every forward pass."""
    learned = untrained_model(beat=beat, samples=4, turn_tokens=turn_tokens)
    learned.codec.stop_ids = ()  # a sample ends with its last token only
    settings = ServeSettings.Config(**limits)
    return InferenceService(
        certified_model_of(learned), LAKE, settings, tokenizer=learned.tokenizer
    )


def chat(text, **options):
    return {"messages": [{"role": "user", "content": text}], **options}


def questions(*texts):
    return {"questions": [{"observation": text, "action": "Up"} for text in texts]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", questions("P" * 200)),  # by tokens
        ("/predict", questions("P" * 900)),  # by characters
        ("/predict", questions(*["P" * 80] * 40)),  # all together
        ("/v1/chat/completions", chat("P" * 200)),
        ("/v1/chat/completions", chat("P" * 900)),
        ("/v1/chat/completions", {"messages": chat("P" * 60)["messages"] * 8}),
    ],
)
def test_a_prompt_that_is_too_long_is_refused_before_it_is_queued(path, body):
    service = service_of(max_prompt_tokens=100, max_waiting_tokens=2000)
    sampler = service.sampler
    reply = asyncio.run(call(make_app(service, TOKEN), "POST", path, body))
    assert reply.status == 413, reply.body
    assert sampler.passes == 0 and service.waiting.questions == 0


def test_text_is_not_tokenized_when_its_characters_are_too_many(monkeypatch):
    service = service_of(max_prompt_tokens=100)
    monkeypatch.setattr(service, "tokenizing", None)
    monkeypatch.setattr(service.certified_model.model, "codec", None)
    app = make_app(service, TOKEN)
    for path, body in (
        ("/predict", questions("P" * 801)),
        ("/v1/chat/completions", {"messages": chat("P" * 401)["messages"] * 2}),
    ):
        assert asyncio.run(call(app, "POST", path, body)).status == 413


def test_questions_wait_in_order_until_their_tokens_fit():
    waiting, order = Waiting(10, max_tokens=1000), []

    async def ask(name, rows, longest, seconds=0.02):
        with waiting.place():
            async with waiting.tokens(rows=rows, longest=longest):
                order.append(name)
                await asyncio.sleep(seconds)

    async def run():
        first = asyncio.create_task(ask("first", 2, 400, 0.1))
        await asyncio.sleep(0)
        wide = asyncio.create_task(ask("wide", 1, 800))
        gone = asyncio.create_task(ask("gone", 1, 900))
        small = [asyncio.create_task(ask(f"small {n}", 1, 10)) for n in range(3)]
        await asyncio.sleep(0.02)
        assert order == ["first"]  # not even small ones pass those who came before
        gone.cancel()
        await asyncio.gather(first, wide, *small)
        with pytest.raises(RequestError, match="too many tokens"):
            await ask("never", 3, 400)

    asyncio.run(asyncio.wait_for(run(), 10))
    assert order == ["first", "wide", "small 0", "small 1", "small 2"]
    assert (waiting.rows, waiting.questions, len(waiting._lengths)) == (0, 0, 0)


# --- clients that leave ---------------------------------------------------------------------------


async def leave_when_sampling(service, port, request):
    """Send a request, and hang up as soon as the model works on it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await until(lambda: service.sampler.rows)
    writer.transport.abort()


async def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def is_idle(service):
    return (
        not service.sampler.rows and not service.sampler.waiting and not service.waiting.questions
    )


@pytest.fixture(scope="module")
def slow():
    """A model that needs minutes for an answer."""
    service = service_of(turn_tokens=4000, beat=lambda: time.sleep(0.02), max_new_tokens=4000)
    with running(service) as url:
        yield service, int(url.rsplit(":", 1)[1])


@pytest.mark.parametrize(
    "request_",
    [
        post("/predict", questions("P_G", "G_P")),
        post("/v1/chat/completions", chat("P_G", max_tokens=4000, seed=ENDLESS)),
    ],
    ids=["predict", "chat"],
)
def test_a_client_that_leaves_takes_its_work_with_it(slow, request_):
    service, port = slow

    async def check():
        await leave_when_sampling(service, port, request_)
        await until(lambda: is_idle(service))

    asyncio.run(check())


def test_a_step_ends_when_its_client_leaves_and_the_episode_with_it(slow):
    service, port = slow

    async def check():
        _, _, body = await exchange(port, post("/reset", {"seed": 1}))
        session = json.loads(body)["session_id"]
        step = post("/step", {"session_id": session, "action": "Up"})
        await leave_when_sampling(service, port, step)
        await until(lambda: is_idle(service))
        status, _, body = await exchange(port, step)
        assert status == 409 and b"reset first" in body
        assert (await exchange(port, post("/reset", {"session_id": session})))[0] == 200

    asyncio.run(check())


def test_a_step_ends_when_its_web_socket_is_closed(slow):
    from websockets.asyncio.client import connect

    service, port = slow

    async def check():
        url, headers = f"ws://127.0.0.1:{port}/ws", {"Authorization": f"Bearer {TOKEN}"}
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            await socket.send('{"type": "reset", "data": {"seed": 1}}')
            await socket.send('{"type": "step", "data": {"action": "Up"}}')
            assert json.loads(await socket.recv())["type"] == "observation"
            await until(lambda: service.sampler.rows)
            socket.transport.abort()
        await until(lambda: is_idle(service))

    asyncio.run(check())


def test_work_ends_with_its_time():
    service = service_of(turn_tokens=4000, beat=lambda: time.sleep(0.02), request_seconds=0.5)

    async def check():
        app = make_app(service, TOKEN)
        begun = (await call(app, "POST", "/reset", {"seed": 1})).json()
        for path, body in (
            ("/predict", questions("P_G")),
            ("/v1/chat/completions", chat("P_G", max_tokens=1000, seed=ENDLESS)),
            ("/step", {"session_id": begun["session_id"], "action": "Up"}),
        ):
            assert (await call(app, "POST", path, body)).status == 504, path
            await until(lambda: is_idle(service))

    asyncio.run(check())


# --- how a chat is sampled ------------------------------------------------------------------------


def complete(service, **options):
    body = chat("P_G", max_tokens=12, seed=ENDLESS, **options)
    return asyncio.run(call(make_app(service, TOKEN), "POST", "/v1/chat/completions", body))


@pytest.mark.parametrize(
    ("key", "value", "neutral"),
    [
        ("top_p", 0.1, 1.0),
        ("tools", [{"type": "function"}], []),
        ("logprobs", True, False),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("frequency_penalty", 0.5, 0.0),
        ("stop", ["a"] * 5, ["never written"]),
    ],
)
def test_what_is_not_sampled_as_asked_is_refused_by_name(key, value, neutral):
    service = service_of()
    refused = complete(service, **{key: value})
    assert refused.status == 422 and key in refused.body.decode()
    assert complete(service, **{key: neutral}).status == 200


def test_a_reply_is_cut_at_a_stop():
    service = service_of()
    (whole,) = json.loads(complete(service).body)["choices"]
    text = whole["message"]["content"]
    middle = text[len(text) // 2 :][:3]
    (cut,) = json.loads(complete(service, stop=[middle, "never written"]).body)["choices"]
    assert cut["message"]["content"] == text[: text.index(middle)]
    assert (whole["finish_reason"], cut["finish_reason"]) == ("length", "stop")


def test_a_template_that_names_the_day_is_asked_as_in_training():
    service = service_of()
    service.tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}"
    asked = prompt_ids(service, [{"role": "user", "content": "hello"}])
    assert service.tokenizer.decode(asked) == fixed_date("%d %b %Y")


def test_what_a_template_refuses_is_the_fault_of_the_client():
    service = service_of()
    service.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    reply = complete(service)
    assert reply.status == 422 and "roles must alternate" in reply.body.decode()
