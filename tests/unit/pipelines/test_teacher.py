"""The teacher against a real server on loopback that misbehaves; what is kept is verified."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.teacher_server import TeacherServer, chat, completion, slow

from terrella.core.errors import ConfigError, PolicyError
from terrella.core.run_folder import RunFolder
from terrella.core.types import Split
from terrella.data.row_journal import UNFINISHED, RowJournal
from terrella.pipelines.text_games.pipeline import TextGameModel
from terrella.pipelines.text_games.reasoning import reply_text, teacher_questions
from terrella.pipelines.text_games.teacher import (
    KEY,
    REPLIES,
    Question,
    Teacher,
    TeacherReply,
    read_replies,
    teacher_report,
    verified,
)
from terrella.policies.chat_client import ChatReply, Usage
from terrella.show.progress import SilentProgress
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.sources import VARIABLE


@pytest.fixture(scope="module")
def world():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        return ByteSized32.Config(focus="varying").build()


def records(world, count=12):
    return [record for record in world.pools[Split.TRAIN] if record.changed][:count]


def ask(world, url, folder, *, count=12, **settings):
    config = Teacher.Config(url=url, backoff=0.01, timeout=5.0, **settings)
    questions = teacher_questions(world, records(world, count), ask_for_thought=True)
    return config.build().ask(questions, world.verifier, folder, SilentProgress())


def test_a_server_that_misbehaves_is_asked_again_and_everything_is_kept(world, tmp_path):
    faults = {
        1: (429, b"slow down", {"Retry-After": "0.05"}),
        2: (500, b"oops", {}),
        3: (200, b"not json", {}),
        4: (200, b'{"choices": []}', {}),
        5: (503, b"busy", {}),
    }

    def behave(count, answer):
        return faults.get(count) or slow(0.05, completion(answer))

    with TeacherServer(world, behave) as server:
        assert ask(world, server.url, tmp_path, concurrency=4) == 0
    replies = read_replies(tmp_path)
    assert [reply.number for reply in replies] == list(range(12))
    assert {reply.kind for reply in replies} == {"right"}
    assert {reply.thought for reply in replies} == {"It follows."}
    assert 2 <= server.most_at_once <= 4
    told = teacher_report(replies, records=12, failed=0)
    assert told.usage.prompt_tokens == 1200 and told.usage.completion_tokens == 120
    assert len({body["seed"] for body in server.requests}) == 12
    assert "think" in server.requests[0]["messages"][0]["content"]


def test_a_request_that_fails_for_good_costs_one_record_and_is_asked_at_the_next_start(
    world, tmp_path
):
    def refuse(count, answer):
        return (400, b"no", {}) if count == 3 else completion(answer)

    with TeacherServer(world, refuse) as server:
        with pytest.raises(PolicyError, match=r"1 of 12 records; the last error: HTTP 400") as told:
            ask(world, server.url, tmp_path, concurrency=1)
        assert "the same command again: it asks only for these" in told.value.remedy
        assert len(read_replies(tmp_path)) == 11
        server.behave = lambda count, answer: completion(answer)
        assert ask(world, server.url, tmp_path, concurrency=1) == 0
    assert len(server.requests) == 13 and len(read_replies(tmp_path)) == 12


def model_of_games(server, folder, **settings):
    teacher = Teacher.Config(
        url=server.url, backoff=0.01, retries=1, tries=1, concurrency=1, **settings
    )
    world = ByteSized32.Config(focus="varying")
    return TextGameModel(
        TextGameModel.Config(
            world=world, teacher=teacher, thinking="auto", base_cache=folder, out=folder / "run"
        )
    )


def taught(model, world):
    """Ask the teacher of a model about twelve records; returns the report."""
    config, quiet = model.config, SilentProgress()
    with RunFolder(config.out, config, ignored=model.ignored, progress=quiet) as run:
        model.ask_teacher(run, model.config.teacher, world, records(world))
    return model.read_teacher_report()


def test_a_teacher_that_failed_has_not_reported_and_is_asked_for_the_rest(world, tmp_path):
    def fail(count, answer):
        return (500, b"out of memory", {}) if count in (3, 7) else completion(answer)

    with TeacherServer(world, fail) as server:
        model = model_of_games(server, tmp_path)
        with pytest.raises(PolicyError, match=r"failed on 2 of 12 records.*out of memory"):
            taught(model, world)
        assert not (model.teacher_folder()[0] / "report.json").exists()
        report = taught(model, world)
        assert report.failed == 0 and report.replies == {"right": 12}
        assert len(server.requests) == 14


def test_a_stated_share_may_be_given_up_and_who_allows_less_asks_again(world, tmp_path):
    def fail(count, answer):
        return (500, b"out of memory", {}) if count in (3, 13) else completion(answer)

    with TeacherServer(world, fail) as server:
        assert taught(model_of_games(server, tmp_path, may_fail=0.1), world).failed == 1
        assert taught(model_of_games(server, tmp_path, may_fail=0.1), world).failed == 1
        assert len(server.requests) == 12
        with pytest.raises(PolicyError, match="failed on 1 of 12"):
            taught(model_of_games(server, tmp_path), world)
        assert taught(model_of_games(server, tmp_path), world).failed == 0
        assert len(server.requests) == 14


def test_a_server_that_only_fails_is_given_up_with_a_sentence_and_nothing_is_lost(world, tmp_path):
    def die(count, answer):
        return completion(answer) if count <= 3 else (500, b"down", {})

    with TeacherServer(world, die) as server, pytest.raises(PolicyError, match="down"):
        ask(world, server.url, tmp_path, concurrency=2, retries=2)
    with RowJournal(tmp_path, REPLIES, key=KEY) as journal:
        assert len(journal.rows) == 3
    assert len(server.requests) < 3 + 2 * 12


def test_a_slow_reply_is_cut_off_by_the_time_limit(world, tmp_path):
    def hang(count, answer):
        return slow(1.0 if count == 1 else 0.0, completion(answer))

    with TeacherServer(world, hang) as server:
        assert ask(world, server.url, tmp_path, count=2, concurrency=1, retries=2) == 0
        config = Teacher.Config(url=server.url, timeout=0.2, backoff=0.01, retries=2)
        server.requests.clear()
        questions = teacher_questions(world, records(world, 1), ask_for_thought=False)
        folder = tmp_path / "again"
        assert config.build().ask(questions, world.verifier, folder, SilentProgress()) == 0
    assert len(server.requests) == 2 and len(read_replies(folder)) == 1


CHILD = """
import sys
from pathlib import Path
from tests.unit.pipelines.test_teacher import ask
from terrella.worlds.bytesized32 import ByteSized32
ask(ByteSized32.Config(focus="varying").build(), sys.argv[1], Path(sys.argv[2]), concurrency=2)
"""


def test_a_killed_teacher_asks_only_what_is_missing(world, tmp_path):
    with TeacherServer(world, lambda count, answer: slow(0.2, completion(answer))) as server:
        root = Path(__file__).parents[3]
        path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path}
        env.pop(VARIABLE, None)
        child = subprocess.Popen([sys.executable, "-c", CHILD, server.url, tmp_path], env=env)
        deadline = time.monotonic() + 60
        file = tmp_path / f"{REPLIES}{UNFINISHED}"
        while not (file.exists() and file.read_bytes().count(b"\n") >= 3):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        with file.open("ab") as torn:
            torn.write(b'{"number": 11, "att')
        known = file.read_bytes().count(b"\n")
        time.sleep(0.3)  # the server finishes what the child had asked
        server.requests.clear()
        server.behave = lambda count, answer: completion(answer)
        assert ask(world, server.url, tmp_path, concurrency=2) == 0
    assert len(server.requests) == 12 - known
    assert [reply.number for reply in read_replies(tmp_path)] == list(range(12))


def test_only_right_answers_with_a_thought_are_kept_and_tries_are_bounded(world, tmp_path):
    def wrong(count, answer):
        return completion("=")

    with TeacherServer(world, wrong) as server:
        assert ask(world, server.url, tmp_path, count=2, tries=3, concurrency=1) == 0
        assert len(server.requests) == 6
        assert ask(world, server.url, tmp_path, count=2, tries=3, concurrency=1) == 0
        assert len(server.requests) == 6
    replies = read_replies(tmp_path)
    assert teacher_report(replies, records=2, failed=0).replies == {"wrong": 6}
    assert all(reply.thought == reply.answer == "" for reply in replies)


def question_of(world):
    record = records(world, 1)
    return next(iter(teacher_questions(world, record, ask_for_thought=False)))


@pytest.mark.parametrize(
    ("message", "finish", "kind", "thought"),
    [
        (
            {"content": "<think>so <answer>=</answer></think><answer>{}</answer>"},
            "stop",
            "right",
            "so",
        ),
        ({"content": "It opens. <answer>{}</answer>"}, "stop", "right", "It opens."),
        ({"content": "<answer>{}</answer>", "reasoning": "hm"}, "stop", "right", "hm"),
        ({"content": "<answer>{}</answer>"}, "stop", "no_thought", ""),
        ({"content": "<think>on and on <answer>{}</answer>"}, "length", "truncated", ""),
        ({"content": None, "reasoning_content": "on and on"}, "length", "truncated", ""),
        ({"content": "I do not know."}, "stop", "unreadable", ""),
        ({"content": "So: <answer>what?</answer>"}, "stop", "unreadable", ""),
        ({"content": "So: <answer>=</answer>"}, "stop", "wrong", ""),
    ],
)
def test_a_reply_is_taken_apart_and_only_its_answer_is_verified(
    world, tmp_path, message, finish, kind, thought
):
    def say(count, answer):
        filled = {
            key: value.replace("{}", answer) if value else value for key, value in message.items()
        }
        return chat({"role": "assistant", **filled}, finish)

    with TeacherServer(world, say) as server:
        assert ask(world, server.url, tmp_path, count=1, tries=1) == 0
    (reply,) = read_replies(tmp_path)
    assert reply.kind == kind
    assert reply.thought.startswith(thought) and (reply.answer != "") == (kind == "right")


def test_published_answers_are_read(world):
    question = question_of(ByteSized32.Config(view="json").build())
    truth = question.truth.text
    reply = ChatReply(text=f"The final answer is: {truth}", reasoning="r", usage=Usage(requests=1))
    assert verified(reply, question, 0, world.verifier).kind == "right"


def test_a_thought_that_the_prompt_has_opened_is_not_opened_twice():
    reply = TeacherReply(number=0, attempt=0, kind="right", thought="so", answer="=")
    assert reply_text(reply, opened=True) == "so\n</think>\n\n<answer>\n=\n</answer>"
    assert reply_text(reply, opened=False).startswith("<think>\nso\n</think>")


def test_settings_that_ask_nothing_are_refused():
    for name in ("tries", "concurrency", "longest"):
        with pytest.raises(ConfigError, match=name):
            Teacher.Config(**{name: 0})
    with pytest.raises(ConfigError, match="may_fail"):
        Teacher.Config(may_fail=1.0)
    assert isinstance(Question(number=0, messages=[], before=None, truth=None), Question)
