"""The endpoint policy against a real HTTP server on loopback."""

import email.utils
import json
import threading
import time

import pytest
from tests.support.chat_server import ChatServer, completion, counter_state, towards_the_goal
from tests.support.dripping import ENDLESS, dripping

from terrella.core.episode import play
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.types import Stop
from terrella.policies.chat_client import Usage, read_reply
from terrella.policies.endpoint import Endpoint
from terrella.worlds.counter import Counter

ASK = [{"role": "user", "content": "hello"}]


def test_a_served_model_plays_and_wins(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret-1")
    with ChatServer(towards_the_goal) as server:
        policy = Endpoint.Config(url=server.url, model="m", key_variable="MY_KEY").build()
        episode = play(Counter.Config().build(), policy, seed=4)
    assert episode.success
    path, headers, body = server.requests[-1]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret-1"
    assert [message["role"] for message in body["messages"]] == [
        "system",
        *["user", "assistant"] * (len(server.requests) - 1),
        "user",
    ]
    assert "secret-1" not in str(policy.config)


def test_a_reply_without_an_action_is_an_invalid_step_not_an_error():
    world = Counter.Config(max_steps=2).build()
    with ChatServer(lambda *_: completion("I would rather not.")) as server:
        episode = play(world, Endpoint.Config(url=server.url).build(), seed=0)
    assert [step.info["valid"] for step in episode.transitions] == [False, False]
    assert episode.stop is Stop.OUT_OF_STEPS


def test_a_request_is_retried_until_the_server_recovers():
    def flaky(body, count):
        return (503, b"busy", {}) if count == 1 else towards_the_goal(body, count)

    with ChatServer(flaky) as server:
        policy = Endpoint.Config(url=server.url, backoff=0.01).build()
        assert play(Counter.Config().build(), policy, seed=4).success


@pytest.mark.parametrize(
    "respond",
    [
        lambda *_: (500, b"broken", {}),
        lambda *_: (401, b"no key", {}),
        lambda *_: (200, b"not json", {}),
        lambda *_: (200, b'{"choices": []}', {}),
        lambda *_: (302, b"", {"Location": "http://127.0.0.1:1/elsewhere"}),
    ],
)
def test_a_broken_server_masks_the_episode_and_is_named(respond):
    with ChatServer(respond) as server:
        policy = Endpoint.Config(url=server.url, model="m", backoff=0.01).build()
        episode = play(Counter.Config().build(), policy, seed=0)
    assert episode.stop is Stop.POLICY_ERROR and episode.outcome.value is None
    assert "endpoint(m)" in episode.error


def test_the_error_asks_whether_a_server_is_running():
    policy = Endpoint.Config(url="http://127.0.0.1:9", retries=1).build()
    episode = play(Counter.Config().build(), policy, seed=0)
    assert "is a server running at http://127.0.0.1:9" in episode.error


def test_only_http_addresses_are_accepted():
    with pytest.raises(ConfigError, match="not an http"):
        Endpoint.Config(url="file:///etc/passwd")


def test_an_address_with_a_password_is_refused():
    with pytest.raises(ConfigError, match="written into manifests"):
        Endpoint.Config(url="https://me:secret@host/v1")


def test_all_actions_of_a_reply_are_played():
    def two_at_a_time(body, _):
        state = counter_state(body)
        move = "up" if state["value"] < state["goal"] else "down"
        return completion(f"<answer>{move} || {move}</answer>")

    world = Counter.Config(max_steps=20)
    with ChatServer(two_at_a_time) as server:
        episode = play(world.build(), Endpoint.Config(url=server.url).build(), seed=4)
    steps = len(episode.transitions)
    assert episode.success and len(server.requests) == (steps + 1) // 2
    assert "up to 5 actions" in server.requests[0][2]["messages"][0]["content"]


def test_actions_beyond_the_limit_are_not_played():
    with ChatServer(lambda *_: completion("<answer>up || up || up</answer>")) as server:
        policy = Endpoint.Config(url=server.url, max_actions=2).build()
        play(Counter.Config(max_steps=4).build(), policy, seed=0)
    assert len(server.requests) == 2


# --- what an endpoint says beside the reply -------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_and_holds_no_action(field):
    thought = {field: "surely <answer>down</answer>"}
    with ChatServer(lambda *_: completion("<answer>up</answer>", **thought)) as server:
        policy = Endpoint.Config(url=server.url).build()
        reply = policy.chat(ASK, seed=0)
        episode = play(Counter.Config(max_steps=1).build(), policy, seed=0)
    assert reply.reasoning == thought[field] and reply.text == "<answer>up</answer>"
    assert [step.action for step in episode.transitions] == ["up"]


def test_a_reply_that_was_cut_off_does_nothing():
    """It may be a thought that the template opened and that the server did not take apart."""
    cut = completion("I could try <answer>up</answer>, but maybe", finish="length")
    with ChatServer(lambda *_: cut) as server:
        policy = Endpoint.Config(url=server.url).build()
        episode = play(Counter.Config(max_steps=1).build(), policy, seed=0)
    assert [step.action for step in episode.transitions] == [""]


def test_a_reply_that_ended_in_its_thought_is_empty_and_unfinished():
    payload = completion(None, finish="length", reasoning_content="let me see")[1]
    reply = read_reply(json.loads(payload))
    assert reply.text == "" and not reply.finished and reply.reasoning == "let me see"


@pytest.mark.parametrize("finish", ["stop", "content_filter", "tool_calls"])
def test_an_ended_reply_without_content_is_empty(finish):
    assert read_reply(json.loads(completion(None, finish=finish)[1])).text == ""
    with pytest.raises(ValueError, match="not a text reply"):
        read_reply(json.loads(completion(None, finish="error")[1]))


def test_tokens_are_counted_and_priced():
    reported = {
        "prompt_tokens": 1000,
        "completion_tokens": 200,
        "completion_tokens_details": {"reasoning_tokens": 150},
    }
    first = read_reply(json.loads(completion("a", usage=reported)[1])).usage
    total = first + read_reply(json.loads(completion("b")[1])).usage
    assert total == Usage(
        requests=2,
        prompt_tokens=1000,
        completion_tokens=200,
        reasoning_tokens=150,
        unreported=1,
    )
    assert total.cost(price_in=3.0, price_out=10.0) == pytest.approx(0.005)


@pytest.mark.parametrize(
    "count", [pytest.param(10**4290, id="huge"), 10**9 + 1, -1, 2.5, "7", None]
)
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_a_count_that_cannot_be_one_is_unreported(name, count):
    reported = {"prompt_tokens": 1, "completion_tokens": 2, name: count}
    usage = read_reply({"choices": [{"message": {"content": "a"}}], "usage": reported}).usage
    assert usage.unreported == 1 and max(usage.prompt_tokens, usage.completion_tokens) <= 2
    assert usage.cost(price_in=1.0, price_out=1.0) < 1


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_rate_limit_is_waited_for_and_costs_no_try(form):
    wait = "1" if form == "seconds" else email.utils.formatdate(time.time() + 1.5, usegmt=True)

    def limited(body, count):
        return (429, b"slow down", {"Retry-After": wait}) if count == 1 else completion("ok")

    with ChatServer(limited) as server:
        began = time.monotonic()
        reply = Endpoint.Config(url=server.url, retries=1).build().chat(ASK, seed=0)
    assert reply.text == "ok" and time.monotonic() - began >= 0.4


def test_one_rate_limit_holds_all_threads_back():
    times = []

    def limited(body, count):
        times.append(time.monotonic())
        return (429, b"", {"Retry-After": "1"}) if count == 1 else completion("ok")

    with ChatServer(limited) as server:
        policy = Endpoint.Config(url=server.url).build()
        first = threading.Thread(target=policy.chat, args=(ASK, 0))
        first.start()
        time.sleep(0.3)
        policy.chat(ASK, 1)  # another thread, which has met no limit
        first.join()
    assert min(times[1:]) - times[0] >= 0.9


def test_a_wait_beyond_the_patience_is_an_error_that_says_so():
    with ChatServer(lambda *_: (429, b"quota", {"Retry-After": "3600"})) as server:
        policy = Endpoint.Config(url=server.url, patience=10).build()
        with pytest.raises(PolicyError, match=r"429 \(asks to wait 3600 s\): quota"):
            policy.chat(ASK, seed=0)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "date",
    ["Mon, 99 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:00 +" + "9" * 22],
)
def test_a_date_that_is_none_is_an_error_of_the_endpoint(date):
    with ChatServer(lambda *_: (429, b"quota", {"Retry-After": date})) as server:
        policy = Endpoint.Config(url=server.url, retries=2, backoff=0.01).build()
        with pytest.raises(PolicyError, match="429: quota"):
            policy.chat(ASK, seed=0)
    assert len(server.requests) == 2


def test_a_server_that_drips_is_given_up_after_the_time_limit():
    began = time.monotonic()
    with dripping(*ENDLESS["head"]) as port:
        url = f"http://127.0.0.1:{port}/v1"
        with pytest.raises(PolicyError, match="time limit"):
            Endpoint.Config(url=url, timeout=1.0, retries=1).build().chat(ASK, seed=0)
    assert time.monotonic() - began < 5


def test_an_error_that_quotes_the_key_is_shown_without_it(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    with ChatServer(lambda *_: (401, b"wrong key sk-very-secret", {})) as server:
        policy = Endpoint.Config(url=server.url, key_variable="MY_KEY").build()
        with pytest.raises(PolicyError) as caught:
            policy.chat(ASK, seed=0)
    assert "sk-very-secret" not in str(caught.value) and "401" in str(caught.value)


@pytest.mark.parametrize("key", ["sk-secret\r", "sk-secret\n", " sk-secret"])
def test_space_around_a_key_is_not_part_of_it(key, monkeypatch):
    monkeypatch.setenv("MY_KEY", key)
    with ChatServer(lambda *_: completion("ok")) as server:
        Endpoint.Config(url=server.url, key_variable="MY_KEY").build().chat(ASK, seed=0)
    assert server.requests[0][1]["Authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize("key", ["sk-secret\u20ac", "sk-\rsecret", "sk- secret"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key, monkeypatch):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="MY_KEY") as caught:
        Endpoint.Config(key_variable="MY_KEY").build()
    assert "secret" not in str(caught.value)


def test_a_closed_client_stops_waiting():
    with ChatServer(lambda *_: (429, b"", {"Retry-After": "100"})) as server:
        policy = Endpoint.Config(url=server.url).build()
        threading.Timer(0.3, policy.client.close).start()
        began = time.monotonic()
        with pytest.raises(PolicyError, match="closed"):
            policy.chat(ASK, seed=0)
    assert time.monotonic() - began < 10
