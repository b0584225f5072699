"""The server, called in this process: access, limits, refusals, and the fields of every reply."""

import asyncio
import functools
import json
import random
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="needs the extra: pip install 'terrella[serve]'")
pytest.importorskip("uvicorn", reason="needs the extra: pip install 'terrella[serve]'")

from tests.support.made_requests import malformed
from tests.support.served import LAKE, TOKEN, call, lying_service

from terrella.commands.serve import listen, serve_token
from terrella.core.errors import ConfigError
from terrella.serve.app import make_app
from terrella.serve.metrics import Metrics
from terrella.serve.micro_batcher import MicroBatcher
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError

GET_PATHS = ("/metadata", "/schema", "/state", "/metrics", "/v1/models", "/", "/nowhere")
POST_PATHS = ("/predict", "/reset", "/step", "/v1/chat/completions", "/health/../predict")
CHAT = {"messages": [{"role": "user", "content": "x"}]}
ROUTES = [("GET", path) for path in GET_PATHS] + [("POST", path) for path in POST_PATHS]


@functools.cache
def shared_app():
    return make_app(lying_service(), TOKEN)


def ask(*arguments, service=None, **options):
    app = make_app(service, TOKEN) if service else shared_app()
    return asyncio.run(call(app, *arguments, **options))


def question(**changes):
    world = LAKE.build()
    observation, _ = world.reset(seed=1)
    return {"observation": observation.text, "action": "Right", **changes}


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_without_the_token_every_route_is_refused(method, path, token):
    reply = ask(method, path, token=token)
    assert reply.status == 401 and reply.headers[b"www-authenticate"] == b"Bearer"


def test_health_is_open_and_says_nothing_else():
    assert ask("GET", "/health", token=None).json() == {"status": "healthy"}


def test_a_name_that_was_rebound_to_loopback_is_refused():
    headers = [(b"host", b"evil.example:80")]
    assert ask("GET", "/metadata", headers=headers).status == 421


def test_every_prediction_says_its_risk_and_the_safe_horizon():
    questions = [question(), question(action="Down", depth=9)]
    reply = ask("POST", "/predict", {"questions": questions}).json()
    first, second = reply["predictions"]
    assert reply["certificate"]["safe_horizon"] == 4 and reply["certificate"]["certified"]
    assert 0.0 <= first["risk"] <= 1.0
    assert first["trust"] == "trusted" and first["safe_horizon"] == 4
    assert second["trust"] == "too_deep"  # deeper than was certified, whatever the risk
    assert first["observation"]["kind"] == "text" and first["probability"] == 1.0


def test_a_model_without_a_certificate_is_trusted_with_nothing():
    service = lying_service()
    object.__setattr__(service.certified_model, "certificate", None)
    reply = ask("POST", "/predict", {"questions": [question()]}, service=service).json()
    (prediction,) = reply["predictions"]
    assert prediction["trust"] == "not_certified" and prediction["safe_horizon"] == 0


def test_limits_are_enforced():
    limits = ServeSettings.Config(max_batch=2, max_body=2000, max_sessions=1, max_text=50)
    app = make_app(lying_service(limits), TOKEN)
    long_text = question(observation="x" * 51)
    claimed_length = [(b"content-length", b"999999999")]
    requests = [
        (413, "/predict", {"questions": [question()] * 3}, []),
        (413, "/predict", b" " * 2001, []),
        (413, "/predict", b"{}", claimed_length),
        (413, "/predict", {"questions": [long_text]}, []),
        (200, "/reset", {"seed": 1}, []),
        (503, "/reset", {"seed": 2}, []),
        (501, "/v1/chat/completions", CHAT, []),
    ]

    async def check():
        for status, path, body, headers in requests:
            reply = await call(app, "POST", path, body, headers=headers)
            assert reply.status == status, reply.body

    asyncio.run(check())


def test_returning_clients_share_a_batch_and_none_waits_longer_than_the_last_batch_took():
    batches, release, cancelled = [], {}, []

    def start(groups):
        batches.append("".join(group.queries[0] for group in groups))
        release[len(batches)] = asyncio.Event()
        return [asyncio.ensure_future(predict(group, release[len(batches)])) for group in groups]

    async def predict(group, released):
        try:
            await released.wait()
        except asyncio.CancelledError:
            cancelled.append(group.queries[0])
            raise
        if "x" in group.queries:
            raise KeyError("x")
        return list(group.queries)

    def finish(queries, predictions):
        assert queries == predictions
        return [f"{query}!" for query in queries]

    async def submit(batcher, names):
        tasks = [
            asyncio.create_task(batcher.submit(SimpleNamespace(queries=[name]))) for name in names
        ]
        await asyncio.sleep(0.01)
        return tasks

    async def run():
        # Half a second is long compared to a few awaits on a busy machine.
        batcher = MicroBatcher(start, finish, seconds=0.5)
        first = await submit(batcher, "abcd")
        assert batches == ["abcd"]  # queries of one moment go together, at once
        late = await submit(batcher, "e")
        assert batches == ["abcd"]  # four are running, so one more waits for others
        release[1].set()
        assert await asyncio.gather(*first) == [["a!"], ["b!"], ["c!"], ["d!"]]
        late += await submit(batcher, "fgx")
        assert batches == ["abcd", "efgx"]  # as many as last time: no timer was needed
        late[0].cancel()
        await asyncio.sleep(0.01)
        assert cancelled == ["e"]  # the model works for those who are still there
        release[2].set()
        results = await asyncio.gather(*late, return_exceptions=True)
        assert results[1:3] == [["f!"], ["g!"]]
        assert isinstance(results[0], asyncio.CancelledError) and isinstance(results[3], KeyError)
        (alone,) = await submit(batcher, "h")
        assert len(batches) == 2  # four came last time, and may come again
        await asyncio.sleep(0.6)
        assert batches[2] == "h"  # the wait is bounded, and from now on one query is enough
        (other,) = await submit(batcher, "i")
        await asyncio.sleep(batcher.last_duration + 0.1)
        assert batches[3] == "i"  # a busy model: wait at most as long as the last batch took
        (gone,) = await submit(batcher, "j")
        gone.cancel()
        release[3].set()
        release[4].set()
        assert [await alone, await other] == [["h!"], ["i!"]]
        await asyncio.sleep(0.6)
        assert len(batches) == 4 and not batcher.waiting  # who left before the start is not asked

    asyncio.run(run())


def test_queries_beyond_the_limit_are_refused_at_once():
    service = lying_service(ServeSettings.Config(max_waiting=3))
    service.waiting.questions = 2
    assert ask("POST", "/predict", {"questions": [question()] * 2}, service=service).status == 503
    assert service.waiting.questions == 2
    service.waiting.questions = 3
    app = make_app(service, TOKEN)
    for path, body in (("/reset", {}), ("/v1/chat/completions", CHAT)):
        assert asyncio.run(call(app, "POST", path, body)).status == 503, path


def test_an_http_session_plays_an_episode_and_ends_with_it():
    app = make_app(lying_service(lies=0.0), TOKEN)

    async def step(session_id, action):
        body = {"session_id": session_id, "action": {"action": action}}
        return await call(app, "POST", "/step", body)

    async def play():
        begun = (await call(app, "POST", "/reset", {"seed": 3, "split": "test"})).json()
        session_id, done, steps = begun["session_id"], False, 0
        while not done:
            reply = (await step(session_id, "Right")).json()
            done, steps = reply["done"], steps + 1
            assert {"risk", "depth", "trust", "safe_horizon"} <= set(reply["metadata"])
        assert 1 <= steps <= 6
        assert (await step(session_id, "Up")).status == 404
        metrics = (await call(app, "GET", "/metrics")).body
        assert b'terrella_requests_total{route="/step",status="200"}' in metrics

    asyncio.run(play())


def test_a_session_is_not_stepped_before_its_reset_or_after_its_end():
    app = make_app(lying_service(lies=0.0), TOKEN)
    sessions = app.app.router.routes[-1].endpoint.__self__.sessions

    async def check():
        session = sessions.open()
        with pytest.raises(RequestError, match="reset first"):
            await session.step({"action": "Up"})
        await session.reset({"seed": 3})
        while not session.over:
            await session.step({"action": "Right"})
        with pytest.raises(RequestError, match="reset first"):
            await session.step({"action": "Up"})

    asyncio.run(check())


def test_an_idle_session_is_reaped():
    limits = ServeSettings.Config(idle_seconds=0.05, max_sessions=1)
    app = make_app(lying_service(limits), TOKEN)

    async def forget():
        session_id = (await call(app, "POST", "/reset", {})).json()["session_id"]
        await asyncio.sleep(0.1)
        assert (await call(app, "POST", "/reset", {})).status == 200  # the only place is free again
        body = {"session_id": session_id, "action": "Up"}
        assert (await call(app, "POST", "/step", body)).status == 404
        assert b"terrella_sessions_reaped_total 1" in (await call(app, "GET", "/metrics")).body

    asyncio.run(forget())


def test_a_model_that_hangs_or_raises_gives_an_error_without_a_traceback(caplog):
    service = lying_service(ServeSettings.Config(request_seconds=0.1))
    app = make_app(service, TOKEN)

    async def hang(queries):
        await asyncio.sleep(60)

    async def fail(queries):
        raise KeyError("/secret/path")

    for broken, status in ((hang, 504), (fail, 500)):
        service.batcher._start_groups = lambda groups, run=broken: [
            asyncio.ensure_future(run(group.queries)) for group in groups
        ]
        reply = asyncio.run(call(app, "POST", "/predict", {"questions": [question()]}))
        assert reply.status == status
        assert b"Traceback" not in reply.body and b"secret" not in reply.body
    assert "secret" in caplog.text  # the log has it


def test_malformed_requests_are_refused_and_nothing_breaks():
    """A sample of what benchmarks/serve.py sends to a real server."""
    app, rng = make_app(lying_service(), TOKEN), random.Random(0)

    async def send_all():
        for _ in range(1500):
            method, path, headers, body = malformed(rng)
            reply = await call(app, method, path, body, headers=headers)
            shown = (method, path, body[:300], reply.body)
            assert 200 <= reply.status < 500 or reply.status in (501, 503), shown
            assert b"Traceback" not in reply.body and b".py" not in reply.body
            if reply.body and not reply.body.startswith((b"#", b"data:")):
                json.loads(reply.body)

    asyncio.run(send_all())


def test_metrics_are_in_prometheus_form():
    metrics = Metrics()
    metrics.count("requests", route="/x", status=200)
    metrics.time("/x", 0.02)
    metrics.gauges["sessions"] = lambda: 3
    lines = metrics.text().splitlines()
    assert 'terrella_requests_total{route="/x",status="200"} 1' in lines
    assert "terrella_sessions 3" in lines
    assert 'terrella_request_seconds_bucket{route="/x",le="0.01"} 0' in lines
    assert 'terrella_request_seconds_bucket{route="/x",le="+Inf"} 1' in lines


def test_short_tokens_taken_ports_and_zero_limits_are_refused(monkeypatch):
    limits = ServeSettings.Config()
    monkeypatch.delenv("TERRELLA_TOKEN", raising=False)
    assert len(serve_token(limits)) >= 40 and serve_token(limits) != serve_token(limits)
    monkeypatch.setenv("TERRELLA_TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16"):
        serve_token(limits)
    taken = listen("127.0.0.1", 0)
    taken.listen()
    with pytest.raises(ConfigError, match="cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])
    taken.close()
    with pytest.raises(ConfigError, match="above 0"):
        ServeSettings.Config(max_body=0)


def test_large_counters_keep_all_their_digits():
    metrics = Metrics()
    metrics.count("tokens", by=12_345_681)
    assert "terrella_tokens_total 12345681\n" in metrics.text()
