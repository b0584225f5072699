"""The server, asked in this process: who gets in, what is refused, what every reply says."""

import asyncio
import functools
import json
import random

import pytest

pytest.importorskip("starlette", reason="needs the extra: pip install 'terrella[serve]'")
pytest.importorskip("uvicorn", reason="needs the extra: pip install 'terrella[serve]'")

from tests.support.made_requests import malformed
from tests.support.served import LAKE, TOKEN, call, lying_oracle

from terrella.core.errors import ConfigError
from terrella.serve.app import make_app
from terrella.serve.gathering import Gathering
from terrella.serve.metrics import Metrics
from terrella.serve.settings import ServeSettings
from terrella.stages.serve import listen, serve_token

ROUTES = [("GET", p) for p in ("/metadata", "/schema", "/state", "/metrics", "/v1/models", "/", "/nowhere")]
ROUTES += [("POST", p) for p in ("/predict", "/reset", "/step", "/v1/chat/completions", "/health/../predict")]


@functools.cache
def one_app():
    return make_app(lying_oracle(), TOKEN)


def ask(*arguments, oracle=None, **options):
    return asyncio.run(call(make_app(oracle, TOKEN) if oracle else one_app(), *arguments, **options))


def question(**changes):
    world = LAKE.build()
    seen, _ = world.reset(seed=1)
    return {"observation": seen.text, "action": "Right", **changes}


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_without_the_token_every_route_is_closed(method, path, token):
    reply = ask(method, path, token=token)
    assert reply.status == 401 and reply.headers[b"www-authenticate"] == b"Bearer"


def test_health_is_open_and_says_nothing_else():
    assert ask("GET", "/health", token=None).json() == {"status": "healthy"}


def test_a_name_that_was_rebound_to_loopback_is_refused():
    headers = [(b"host", b"evil.example:80")]
    assert ask("GET", "/metadata", headers=headers).status == 421


def test_every_prediction_says_its_risk_and_the_safe_horizon():
    reply = ask("POST", "/predict", {"questions": [question(), question(action="Down", depth=9)]}).json()
    first, second = reply["predictions"]
    assert reply["certificate"]["safe_horizon"] == 4 and reply["certificate"]["certified"]
    assert 0.0 <= first["risk"] <= 1.0 and first["trust"] == "trusted" and first["safe_horizon"] == 4
    assert second["trust"] == "too_deep"  # deeper than was certified, whatever the risk
    assert first["observation"]["kind"] == "text" and first["probability"] == 1.0


def test_a_model_without_a_certificate_is_trusted_with_nothing():
    oracle = lying_oracle()
    object.__setattr__(oracle.imagination, "certificate", None)
    reply = ask("POST", "/predict", {"questions": [question()]}, oracle=oracle).json()
    assert reply["predictions"][0]["trust"] == "not_certified" and reply["predictions"][0]["safe_horizon"] == 0


def test_limits_are_kept():
    limits = ServeSettings.Config(max_batch=2, max_body=2000, max_sessions=1, max_text=50)
    app = make_app(lying_oracle(limits), TOKEN)

    async def several():
        yield 413, await call(app, "POST", "/predict", {"questions": [question()] * 3})
        yield 413, await call(app, "POST", "/predict", b" " * 2001)
        yield 413, await call(app, "POST", "/predict", b"{}", headers=[(b"content-length", b"999999999")])
        yield 413, await call(app, "POST", "/predict", {"questions": [question(observation="x" * 51)]})
        yield 200, await call(app, "POST", "/reset", {"seed": 1})
        yield 503, await call(app, "POST", "/reset", {"seed": 2})
        yield 501, await call(app, "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})

    async def check():
        async for wanted, reply in several():
            assert reply.status == wanted, reply.body

    asyncio.run(check())


def test_clients_who_come_back_go_together_and_nobody_waits_longer_than_the_last_group_took():
    groups, release = [], {}

    async def model(questions):
        groups.append("".join(questions))
        await release.setdefault(len(groups), asyncio.Event()).wait()
        if "x" in questions:
            raise KeyError("x")
        return [f"{question}!" for question in questions]

    async def asked(gathering, names):
        tasks = [asyncio.create_task(gathering.ask([name])) for name in names]
        await asyncio.sleep(0.01)
        return tasks

    async def ask():
        gathering = Gathering(model, seconds=0.5)  # long beside what a busy machine may take for a few awaits
        first = await asked(gathering, "abcd")
        assert groups == ["abcd"]  # those of one moment go together, at once
        late = await asked(gathering, "e")
        assert groups == ["abcd"]  # one beside four waits for them
        release[1].set()
        assert await asyncio.gather(*first) == [["a!"], ["b!"], ["c!"], ["d!"]]
        late += await asked(gathering, "fgx")
        assert groups == ["abcd", "efgx"]  # as many as last time: no timer was waited for
        late[0].cancel()
        release[2].set()
        told = await asyncio.gather(*late, return_exceptions=True)
        assert [type(one) for one in told] == [asyncio.CancelledError, KeyError, KeyError, KeyError]
        (alone,) = await asked(gathering, "h")
        assert len(groups) == 2  # four came last time: they may be about to
        await asyncio.sleep(0.6)
        assert groups[2] == "h"  # but not for longer than was promised, and after that one is enough
        (other,) = await asked(gathering, "i")
        await asyncio.sleep(gathering.took + 0.1)
        assert groups[3] == "i"  # the model is busy: no longer than the last group took
        release[3].set(), release[4].set()
        assert [await alone, await other] == [["h!"], ["i!"]]

    asyncio.run(ask())


def test_what_cannot_be_kept_up_with_is_refused_at_once():
    oracle = lying_oracle(ServeSettings.Config(max_waiting=3))
    oracle.waiting = 2
    assert ask("POST", "/predict", {"questions": [question()] * 2}, oracle=oracle).status == 503
    assert oracle.waiting == 2


def test_an_http_session_plays_an_episode_and_is_gone_after_it():
    app = make_app(lying_oracle(lies=0.0), TOKEN)

    async def play():
        begun = (await call(app, "POST", "/reset", {"seed": 3, "split": "test"})).json()
        name, done, steps = begun["session_id"], False, 0
        while not done:
            reply = (await call(app, "POST", "/step", {"session_id": name, "action": {"action": "Right"}})).json()
            done, steps = reply["done"], steps + 1
            assert {"risk", "depth", "trust", "safe_horizon"} <= set(reply["metadata"])
        assert 1 <= steps <= 6
        assert (await call(app, "POST", "/step", {"session_id": name, "action": {"action": "Up"}})).status == 404
        assert b'terrella_requests_total{route="/step",status="200"}' in (await call(app, "GET", "/metrics")).body

    asyncio.run(play())


def test_an_idle_session_is_reaped():
    app = make_app(lying_oracle(ServeSettings.Config(idle_seconds=0.05, max_sessions=1)), TOKEN)

    async def forget():
        name = (await call(app, "POST", "/reset", {})).json()["session_id"]
        await asyncio.sleep(0.1)
        assert (await call(app, "POST", "/reset", {})).status == 200  # the only seat is free again
        assert (await call(app, "POST", "/step", {"session_id": name, "action": "Up"})).status == 404
        assert b"terrella_sessions_reaped_total 1" in (await call(app, "GET", "/metrics")).body

    asyncio.run(forget())


def test_a_model_that_hangs_or_breaks_is_a_sentence_not_a_traceback(caplog):
    oracle = lying_oracle(ServeSettings.Config(request_seconds=0.1))
    app = make_app(oracle, TOKEN)

    async def hang(questions):
        await asyncio.sleep(60)

    async def break_(questions):
        raise KeyError("/secret/path")

    for breaking, status in ((hang, 504), (break_, 500)):
        oracle.gathering._ask = breaking
        reply = asyncio.run(call(app, "POST", "/predict", {"questions": [question()]}))
        assert reply.status == status and b"Traceback" not in reply.body and b"secret" not in reply.body
    assert "secret" in caplog.text  # the log has it


def test_malformed_requests_are_refused_and_nothing_breaks():
    """A share of what results/measure_serve.py sends to a real server."""
    app, rng = make_app(lying_oracle(), TOKEN), random.Random(0)

    async def all_of_them():
        for _ in range(1500):
            method, path, headers, body = malformed(rng)
            reply = await call(app, method, path, body, headers=headers)
            assert 200 <= reply.status < 500 or reply.status in (501, 503), (method, path, body[:300], reply.body)
            assert b"Traceback" not in reply.body and b".py" not in reply.body
            if reply.body and not reply.body.startswith((b"#", b"data:")):
                json.loads(reply.body)

    asyncio.run(all_of_them())


def test_metrics_are_in_prometheus_form():
    metrics = Metrics()
    metrics.count("requests", route="/x", status=200)
    metrics.time("/x", 0.02)
    metrics.gauges["sessions"] = lambda: 3
    lines = metrics.text().splitlines()
    assert 'terrella_requests_total{route="/x",status="200"} 1' in lines and "terrella_sessions 3" in lines
    assert 'terrella_request_seconds_bucket{route="/x",le="0.01"} 0' in lines
    assert 'terrella_request_seconds_bucket{route="/x",le="+Inf"} 1' in lines


def test_tokens_and_ports(monkeypatch):
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
