"""The vLLM sampler and server without vLLM: what they send, and what happens when it fails."""

import asyncio
import contextlib
import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from terrella.core.errors import ConfigError, EngineError, MissingExtraError
from terrella.core.protocols import Sampler
from terrella.core.tokens import Sampled, TokenRequest, TrainExample
from terrella.engines.configs import EngineConfig, LearnerConfig, RlvrConfig
from terrella.engines.engine import make_engine
from terrella.engines.vllm import sampler as vllm_sampler
from terrella.engines.vllm import server as vllm_server
from terrella.engines.vllm import weight_file
from terrella.engines.vllm.sampler import VllmSampler
from terrella.engines.vllm.server import VllmServer
from terrella.engines.vllm.worker import KEY_VARIABLE, KeyOnEveryRoute, WeightFiles

CHOICE = {
    "token_ids": [5, 6, 2],
    "logprobs": {"token_logprobs": [-0.5, -0.25, -0.125]},
    "prompt_logprobs": None,
}


class FakeServer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(self.server.health)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        status, reply = self.server.replies.pop(0)
        if status == "hang up":
            self.close_connection = True
            return self.connection.close()
        if status == "wait":  # as vLLM does while it generates; it aborts when the client is gone
            self.connection.settimeout(5.0)
            self.server.aborted.append(self.connection.recv(1) == b"")
            self.close_connection = True
            return None
        if status == "late":
            status = 200
            time.sleep(0.5)
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def fake():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeServer)
    server.daemon_threads = True
    server.requests = []
    server.replies = []
    server.aborted = []
    server.asked = []
    server.health = 200
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def sampler_of(fake, **options):
    options = {"seconds": 5.0, **options}
    return VllmSampler(f"http://127.0.0.1:{fake.server_address[1]}", "secret", **options)


def sample(sampler, **changes):
    request = {
        "prompt_ids": (1, 2),
        "max_new_tokens": 8,
        "seed": 2**62,
        "stop_ids": (2,),
        **changes,
    }
    return asyncio.run(sampler.sample(TokenRequest(**request)))


def test_a_caller_that_leaves_closes_its_request_and_no_other(fake):
    fake.replies = [("wait", {}), (200, {"choices": [CHOICE]})]
    sampler = sampler_of(fake)
    request = TokenRequest(prompt_ids=(1,), max_new_tokens=8, seed=1)

    async def leave():
        task = asyncio.create_task(sampler.sample(request))
        while not fake.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not fake.aborted:
            await asyncio.sleep(0.01)
        return await sampler.sample(request)

    assert asyncio.run(asyncio.wait_for(leave(), 4)).token_ids == (5, 6, 2)
    assert fake.aborted == [True] and len(fake.requests) == 2  # it was not repeated


def test_a_request_is_ids_and_the_reply_is_ids(fake):
    fake.replies = [(200, {"choices": [CHOICE]})]
    sampler = sampler_of(fake, logprobs="processed")
    assert isinstance(sampler, Sampler)
    assert sample(sampler, temperature=0.7) == Sampled(
        token_ids=(5, 6, 2), logprobs=(-0.5, -0.25, -0.125), stopped=True
    )
    path, headers, body = fake.requests[0]
    assert path == "/v1/completions" and headers["Authorization"] == "Bearer secret"
    expected = {
        "prompt": [1, 2],
        "max_tokens": 8,
        "seed": 2**62,
        "temperature": 0.7,
        "stop_token_ids": [2],
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": 0,
    }
    assert expected.items() <= body.items() and "allowed_token_ids" not in body


@pytest.fixture
def small(tmp_path):
    """A model folder with 512 positions."""
    pytest.importorskip("torch")
    from tests.support.tiny_model import tiny_model

    model, tokenizer = tiny_model()
    model.config.max_position_embeddings = 512
    model.save_pretrained(tmp_path / "small")
    tokenizer.save_pretrained(tmp_path / "small")
    return tmp_path / "small"


LOADED = (200, {"results": [{"stale": []}]})


def stub_server(fake, monkeypatch):
    """The fake in the place of servers that an engine starts; they are listed."""
    from terrella.engines import sampling

    started = []

    class Server:
        def __init__(self, config, folder, *, log):
            self.config, self.folder, self.url, self.key = config, folder, "", ""
            started.append(self)

        start = close = wait_until_healthy = lambda self: None

        def sampler(self):
            url = f"http://127.0.0.1:{fake.server_address[1]}"
            return vllm_server.sampler_of(self.config, url, "secret")

    monkeypatch.setattr(sampling, "VllmServer", Server)
    return started


def engine_with_learners(fake, monkeypatch, work, **server):
    """An engine of a pipeline whose learners and server take turns, and its server."""
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    from terrella.engines.trl import trl_engine

    monkeypatch.setattr(trl_engine, "require_vllm", lambda: None)
    config = EngineConfig(sampler="vllm", vllm=VllmServer.Config(**server))
    started = stub_server(fake, monkeypatch)
    return make_engine(config, work=work, learners=LearnerConfig(bf16=True)), started


def test_a_server_sleeps_while_a_learner_trains_and_wakes_for_the_next_sampler(
    fake, small, tmp_path, monkeypatch
):
    """WebRL on one GPU: without this, server and learner are in memory together."""
    engine, started = engine_with_learners(fake, monkeypatch, tmp_path, sleep=True)
    fake.replies = [(200, {"choices": [CHOICE]}), (200, {})]
    with engine:
        with engine.sampler(small) as sampler:
            sample(sampler)
        before = [path.partition("?")[0] for path, _, _ in fake.requests]
        with engine.learner(small, work=tmp_path / "learner") as learner:
            example = TrainExample(
                prompt_ids=[3, 4], completion_ids=[5], mask=[True], columns={"weight": [1.0]}
            )
            learner.forward_backward([example], "cross_entropy")
        assert before == ["/v1/completions", "/sleep"] and len(fake.requests) == 2
        fake.replies = [(200, {}), LOADED, (200, {}), (200, {}), (200, {"choices": [CHOICE]})]
        fake.replies += [(200, {})]
        with engine.sampler(small) as sampler:
            sample(sampler)
    again = [path.partition("&")[0] for path, _, _ in fake.requests[2:]]
    assert again == [
        "/wake_up?tags=weights",
        "/collective_rpc",
        "/wake_up?tags=kv_cache",
        "/reset_prefix_cache",
        "/v1/completions",
        "/sleep?level=2",
    ]
    # In the precision of the learners, and not with vLLM's default share of the GPU.
    assert [(each.config.dtype, each.config.memory) for each in started] == [("bfloat16", 0.4)]


def test_a_server_that_may_not_sleep_and_one_in_use_stay_awake(fake, small, tmp_path, monkeypatch):
    engine, _ = engine_with_learners(fake, monkeypatch, tmp_path)
    with engine, engine.sampler(small):
        pass
    assert not fake.requests
    engine, _ = engine_with_learners(fake, monkeypatch, tmp_path, sleep=True)
    fake.replies = [LOADED, (200, {}), (200, {})]
    with engine, engine.sampler(small):
        with engine.sampler(small):
            pass
        assert not any("sleep" in path for path, _, _ in fake.requests)
    assert "/sleep" in fake.requests[-1][0]


def test_a_hub_model_is_measured_then_trained_on_one_server(fake, small, tmp_path, monkeypatch):
    """The weights of a hub model are loaded again from its download."""
    import huggingface_hub

    from terrella.engines import sampling
    from terrella.models import presets

    name = "owner/model"
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(small))
    monkeypatch.setattr(presets, "refuse_code", lambda name: None)
    config = presets.load_config(small)
    monkeypatch.setattr(presets, "load_config", lambda name: config)
    started = stub_server(fake, monkeypatch)
    fake.replies = [LOADED, (200, {})] * 2
    with sampling.SamplerFactory(EngineConfig(sampler="vllm"), tmp_path / "work") as samplers:
        with samplers.open(name) as sampler:
            assert sampler.context_tokens == 512
        with samplers.for_training(name):
            pass
        with samplers.open(small):
            pass
    (server,) = started
    # Not 4096, which vLLM would refuse for this model.
    assert (server.folder, server.config.max_model_len) == (small, 512)
    loads = [body["kwargs"]["path"] for path, _, body in fake.requests if "rpc" in path]
    assert loads == [str(small)] * 2


def test_a_broken_connection_is_tried_again_and_a_refusal_is_not(fake):
    fake.replies = [("hang up", None), (200, {"choices": [CHOICE]})]
    assert sample(sampler_of(fake), stop_ids=()).stopped is False
    fake.replies = [(400, {"error": "too long"})]
    with pytest.raises(EngineError, match="too long"):
        sample(sampler_of(fake))
    fake.replies = [("hang up", None)] * 3
    with pytest.raises(EngineError, match="still running"):
        sample(sampler_of(fake))


def test_a_slow_request_is_waited_for_while_the_server_answers(fake, monkeypatch):
    monkeypatch.setattr(vllm_sampler, "ASK_SECONDS", 0.1)
    fake.replies = [("late", {"choices": [CHOICE]})]
    assert sample(sampler_of(fake)).token_ids == (5, 6, 2)
    assert len(fake.asked) >= 2 and len(fake.requests) == 1  # it was not sent again
    fake.replies = [("wait", {})]
    with pytest.raises(EngineError, match=r"in 0\.3 s, and the server still answers") as late:
        sample(sampler_of(fake, seconds=0.3))
    assert "vllm.request_seconds" in late.value.remedy and len(fake.requests) == 2
    _wait_for(lambda: fake.aborted == [True])


def test_a_server_that_no_longer_answers_is_named_long_before_the_limit(fake, monkeypatch):
    monkeypatch.setattr(vllm_sampler, "ASK_SECONDS", 0.1)
    fake.replies, fake.health = [("wait", {})], 503  # so vLLM says that its engine is dead
    with pytest.raises(EngineError, match="/health does not answer"):
        sample(sampler_of(fake, seconds=3600.0))
    assert len(fake.requests) == 1


def test_the_limits_of_a_sampler_are_those_of_its_config():
    config = VllmServer.Config(requests=7, request_seconds=90.0)
    made = vllm_server.sampler_of(config, "http://127.0.0.1:1", "secret")
    assert (made._threads._max_workers, made.seconds) == (7, 90.0)
    assert VllmServer.Config().request_seconds == 3600.0
    for wrong in ({"requests": 0}, {"request_seconds": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            VllmServer.Config(**wrong)


def test_allowed_ids_take_one_request_and_wrong_log_probs_are_refused(fake):
    fake.replies = [(200, {"choices": [CHOICE]})] * 2
    assert sample(sampler_of(fake), allowed_ids=(2, 5, 6)).token_ids == (5, 6, 2)
    (_, _, body) = fake.requests[0]
    assert body["allowed_token_ids"] == [2, 5, 6] and len(fake.requests) == 1
    sample(sampler_of(fake), temperature=0.0)  # greedy: log-probs at temperature 1, as in-process
    with pytest.raises(EngineError, match="at temperature 1, not"):
        sample(sampler_of(fake), temperature=0.5)
    with pytest.raises(EngineError, match="after the mask"):
        sample(sampler_of(fake, logprobs="processed"), allowed_ids=(5,))


def test_a_server_suits_its_trainer():
    config = VllmServer.Config()
    beside = config.beside_trainer(bf16=True, temperature=0.7)
    assert (beside.dtype, beside.logprobs, beside.memory) == ("bfloat16", "processed", 0.4)
    own = config.replace(devices=(4,), dtype="float16").beside_trainer(bf16=False, temperature=1.0)
    assert (own.dtype, own.logprobs, own.memory) == ("float16", "raw", 0.0)


def test_devices_memory_and_sleep_reach_the_server(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    shared = served(tmp_path, monkeypatch, "", sleep=True, memory=0.3)
    assert {"--enable-sleep-mode", "--gpu-memory-utilization=0.3"} <= set(shared._command(1))
    assert shared._environment()["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "LOCAL_RANK" not in shared._environment()  # the server is not one of the ranks
    own = served(tmp_path, monkeypatch, "", devices=(2, 3), tensor_parallel=2)
    assert own._environment()["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "--tensor-parallel-size=2" in own._command(1)
    assert any('"nccl"' in argument for argument in own._command(1))
    assert own.sampler().nccl.workers == 2 and shared.sampler().nccl is None
    assert own.sampler() is own.sampler()  # one NCCL group, and one state of sleep
    with pytest.raises(ConfigError, match="2 GPUs"):
        served(tmp_path, monkeypatch, "", devices=(2, 3)).start()


def test_copies_of_the_weights_take_gpus_of_their_own_or_shared_ones(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    four = {"devices": (4, 5, 6, 7), "tensor_parallel": 2, "data_parallel": 2}
    own = served(tmp_path, monkeypatch, "", **four)
    assert {"--tensor-parallel-size=2", "--data-parallel-size=2"} <= set(own._command(1))
    assert own.sampler().nccl.workers == 4  # vLLM numbers the workers of all copies through
    with pytest.raises(ConfigError, match="2 GPUs, but tensor_parallel x data_parallel is 4"):
        served(tmp_path, monkeypatch, "", **{**four, "devices": (6, 7)}).start()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="is 4, and this process sees 2 GPUs"):
        served(tmp_path, monkeypatch, "", data_parallel=4).start()
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_experts": 8}}))
    with pytest.raises(ConfigError, match="mixture of experts"):
        served(tmp_path, monkeypatch, "", data_parallel=2).start()
    with pytest.raises(ConfigError, match="data_parallel"):
        VllmServer.Config(data_parallel=0)


def test_a_server_sleeps_until_new_weights_come(fake, tmp_path):
    (tmp_path / "model.safetensors").touch()
    fake.replies = [(200, {})] * 2 + [(200, {"results": [{"stale": []}]})] + [(200, {})] * 2
    sampler = sampler_of(fake, sleeps=True)
    sampler.sleep()
    sampler.sleep()  # it is asleep already
    sampler.load_folder(tmp_path)
    paths = [path for path, _, _ in fake.requests]
    assert paths == [
        "/sleep?level=2&mode=wait",
        "/wake_up?tags=weights",
        "/collective_rpc",
        "/wake_up?tags=kv_cache",
        "/reset_prefix_cache",
    ]
    sampler_of(fake).sleep()
    assert len(fake.requests) == 5
    with pytest.raises(EngineError, match="no safetensors"):
        sampler.load_folder(tmp_path / "nothing")


def test_torch_gives_memory_back_before_a_server_takes_it(fake, tmp_path, monkeypatch):
    """Weights first, then the cache: what gathering the weights took must be free again."""
    torch = pytest.importorskip("torch")
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fake.requests.append(("empty", {}, {})))
    fake.replies = [(200, {})] * 2 + [LOADED] + [(200, {})] * 2
    sampler = sampler_of(fake, sleeps=True)
    sampler.sleep()
    sampler.load_folder(tmp_path)
    assert [path.partition("?")[0] for path, _, _ in fake.requests] == [
        "/sleep",
        "empty",
        "/wake_up",
        "/collective_rpc",
        "empty",
        "/wake_up",
        "/reset_prefix_cache",
    ]


def test_every_rank_gives_memory_back_before_a_sleeping_server_is_loaded(
    fake, small, tmp_path, monkeypatch
):
    from terrella.engines import sampling

    stub_server(fake, monkeypatch)
    order = []
    monkeypatch.setattr(sampling, "free_cached_memory", lambda: order.append("free"))
    monkeypatch.setattr(sampling, "barrier", lambda: order.append("all ranks"))
    config = EngineConfig(sampler="vllm", vllm=VllmServer.Config(sleep=True))
    fake.replies = [(200, {}), (200, {}), LOADED, (200, {}), (200, {})]
    with sampling.SamplerFactory(config, tmp_path / "work") as samplers:
        with samplers.open(small):
            pass
        with samplers.for_training(small):
            order += [path.partition("?")[0] for path, _, _ in fake.requests]
    assert order == [
        "free",
        "all ranks",
        "/sleep",
        "/wake_up",
        "/collective_rpc",
        "/wake_up",
        "/reset_prefix_cache",
    ]


def test_weights_are_sent_as_a_file_and_a_stale_weight_is_named(fake, tmp_path):
    torch = pytest.importorskip("torch")
    sampler = sampler_of(fake, sync_folder=tmp_path, dtype="bfloat16")
    fake.replies = [(200, {"results": [{"stale": []}]}), (200, {})]
    sampler.load_weights([("w", torch.ones(2, 3))])
    assert [path for path, _, _ in fake.requests] == ["/collective_rpc", "/reset_prefix_cache"]
    assert fake.requests[0][2]["method"] == "load_weight_file"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
    fake.replies = [(200, {"results": [{"stale": ["lm_head.weight"]}]})]
    with pytest.raises(EngineError, match=r"lm_head\.weight"):
        sampler.load_weights([("w", torch.ones(2, 3))])


def test_a_sync_without_room_names_the_size_the_folder_and_the_remedy(fake, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    usage = type(shutil.disk_usage("/"))(total=64 * 10**6, used=0, free=64 * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)  # as in a container
    large = [("w", torch.empty(10**8, device="cpu"))]  # 0.4 GB that are never touched
    with pytest.raises(ConfigError, match=r"0\.4 GB, and .* has 0\.064 GB left") as small:
        sampler_of(fake, sync_folder=tmp_path).load_weights(large)
    assert small.value.where == "vllm.sync_folder" and str(tmp_path) in str(small.value)
    monkeypatch.setattr(weight_file, "MEMORY_FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="--shm-size=1g"):
        sampler_of(fake).load_weights(large)
    assert not fake.requests and not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="processes are killed as on Linux")
def test_a_server_that_starts_removes_the_weights_of_killed_processes_only(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    program = (
        "import sys, time, torch; from pathlib import Path;"
        "from terrella.engines.vllm.weight_file import weight_file as file;"
        "opened = file(Path(sys.argv[1]), [('w', torch.ones(2))], 'auto');"
        "print(opened.__enter__(), flush=True); time.sleep(60)"
    )
    syncs = tmp_path / "syncs"
    syncs.mkdir()
    (syncs / "terrella-weights-new").mkdir()  # not locked yet
    command = [sys.executable, "-c", program, str(syncs)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        dead, living = (Path(each.stdout.readline().strip()) for each in writers)
        writers[0].kill()
        writers[0].wait()
        assert dead.exists() and living.exists()
        with contextlib.suppress(EngineError):  # it ends at once
            served(tmp_path, monkeypatch, "", sync_folder=syncs).__enter__()
        assert not dead.parent.exists() and living.exists()
        assert (syncs / "terrella-weights-new").exists()
    finally:
        for each in writers:
            each.kill()
            each.wait()
            each.stdout.close()
    with pytest.raises(ConfigError, match="no folder"):
        served(tmp_path, monkeypatch, "", sync_folder=tmp_path / "none").start()
    server = served(tmp_path, monkeypatch, "", sync_folder=syncs)
    assert server.sampler().sync_folder == syncs


def test_weights_over_nccl_go_through_vllms_routes_with_the_key(fake, monkeypatch):
    """What a CPU can show: the routes, the key, and shapes and dtypes that match what is sent."""
    torch = pytest.importorskip("torch")
    from terrella.models.export import MergedWeights

    nccl_engine = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    broadcast = []
    engine = nccl_engine.NCCLTrainerWeightTransferEngine
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: "group")
    monkeypatch.setattr(
        nccl_engine,
        "packed_nccl_broadcast_producer",
        lambda iterator, **_: broadcast.extend(iterator),
    )
    monkeypatch.setattr(engine, "_post_send_sync", lambda self: None)
    model = torch.nn.Linear(3, 2)
    sampler = sampler_of(fake, nccl_workers=2, dtype="bfloat16")
    for _ in range(2):
        fake.replies += [(200, {})] * (4 if fake.requests else 5)
        sampler.load_weights(MergedWeights(model))
    paths = [path for path, _, _ in fake.requests]
    update = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    once = [*update, "/reset_prefix_cache"]
    assert paths == ["/init_weight_transfer_engine", *once, *once]
    assert fake.requests[0][2]["init_info"]["world_size"] == 3
    assert {headers["Authorization"] for _, headers, _ in fake.requests} == {"Bearer secret"}
    assert fake.requests[2][2]["update_info"] == {
        "names": ["weight", "bias"],
        "dtype_names": ["bfloat16", "bfloat16"],
        "shapes": [[2, 3], [2]],
    }
    assert [name for name, _ in broadcast] == ["weight", "bias"] * 2
    assert broadcast[0][1].dtype == torch.bfloat16


def test_a_worker_reports_the_weights_that_a_file_did_not_contain(tmp_path):
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    model = torch.nn.Linear(3, 2)

    def load_weights(tensors):
        own = dict(model.named_parameters())
        return {name for name, tensor in tensors if own[name].data.copy_(tensor) is not None}

    model.load_weights = load_weights
    worker = WeightFiles()
    worker.model_runner = type("Runner", (), {"get_model": staticmethod(lambda: model)})
    save_file({"weight": torch.full((2, 3), 7.0)}, tmp_path / "w.safetensors")
    assert worker.load_weight_file(str(tmp_path / "w.safetensors")) == {"stale": ["bias"]}
    assert model.weight.eq(7.0).all()
    save_file({"bias": torch.zeros(2)}, tmp_path / "x.safetensors")
    assert worker.load_weight_file(str(tmp_path)) == {"stale": []}  # all files of a folder


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/collective_rpc", b"Bearer right", 200),
        ("/collective_rpc", b"Bearer wrong", 401),
        ("/v1/models", b"", 401),
        ("/health", b"", 200),
    ],
)
def test_every_route_but_health_requires_the_key(monkeypatch, path, key, status):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    sent = []

    async def send(message):
        sent.append(message)

    monkeypatch.setenv(KEY_VARIABLE, "right")
    scope = {"type": "http", "path": path, "headers": [(b"authorization", key)]}
    asyncio.run(KeyOnEveryRoute(app)(scope, None, send))
    assert sent[0]["status"] == status


def served(tmp_path, monkeypatch, program, **changes):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(vllm_server, "LAUNCH", ("-c", program))
    return VllmServer(VllmServer.Config(**changes), tmp_path, log=tmp_path / "vllm.log")


def test_a_server_that_ends_early_names_its_log(tmp_path, monkeypatch):
    server = served(tmp_path, monkeypatch, "import sys; sys.exit('no such model')")
    with pytest.raises(EngineError, match=r"code 1[\s\S]*vllm\.log[\s\S]*no such model"):
        server.__enter__()


def test_a_server_that_never_answers_is_ended_with_its_children(tmp_path, monkeypatch):
    program = (
        "import subprocess, sys; c = subprocess.Popen(['sleep', '60']);"
        "print(c.pid, flush=True); c.wait()"
    )
    server = served(tmp_path, monkeypatch, program, start_seconds=3.0)
    with pytest.raises(EngineError, match="not healthy after 3 s"):
        server.__enter__()
    child = int((tmp_path / "vllm.log").read_text())
    # Killed with its group; a busy machine may take a moment to reap it.
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


@pytest.mark.skipif(sys.platform != "linux", reason="uses prctl, which only Linux has")
def test_a_server_ends_with_a_trainer_that_is_killed(tmp_path):
    server = (
        "import os, time; from terrella.engines.vllm.launch import end_with_parent as end;"
        "end(os.getppid());"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    trainer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {server!r}])",
        ]
    )
    _wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    trainer.kill()
    trainer.wait()
    _wait_for(lambda: not _alive(int((tmp_path / "pid").read_text())))


def _wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_key_is_passed_by_environment_and_not_by_command_line(tmp_path, monkeypatch):
    server = served(tmp_path, monkeypatch, "")
    assert server.key not in " ".join(server._command(1))
    assert server._environment()[KEY_VARIABLE] == server.key
    assert server._command(1)[0] == sys.executable and KEY_VARIABLE not in os.environ


def test_without_vllm_the_error_says_what_to_install(tmp_path, monkeypatch):
    server = served(tmp_path, monkeypatch, "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="vllm"):
        server.__enter__()


@pytest.mark.parametrize(
    ("stored", "asked", "dtype"),
    [
        ("float32", "auto", "float32"),  # vLLM's own auto would take bfloat16
        ("bfloat16", "auto", "bfloat16"),
        ("float32", "float16", "float16"),
        (None, "auto", "auto"),
    ],
)
def test_a_folder_is_served_in_its_own_dtype(tmp_path, monkeypatch, stored, asked, dtype):
    (tmp_path / "config.json").write_text(json.dumps({"dtype": stored}))
    server = served(tmp_path, monkeypatch, "", dtype=asked)
    assert f"--dtype={dtype}" in server._command(1)


def test_other_ranks_wait_for_a_server_that_is_still_starting():
    class Starting:
        asked = 0

        def healthy(self):
            self.asked += 1
            return self.asked > 2

    starting = Starting()
    vllm_server.wait_until_healthy(starting, 30.0)
    assert starting.asked == 3
    with pytest.raises(EngineError, match="not healthy after 0 s"):
        vllm_server.wait_until_healthy(Starting(), 0.0)


def test_an_engine_says_at_once_that_vllm_is_missing(tmp_path, monkeypatch):
    """Not after the first stage, which may take hours."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="vllm"):
        make_engine(EngineConfig(sampler="vllm"), work=tmp_path)
    make_engine(EngineConfig(sampler="local"), work=tmp_path)


def test_an_engine_says_at_once_that_a_large_model_needs_vllm(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    large = transformers.LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16)
    large.save_pretrained(tmp_path / "large")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *package: None if name == "vllm" else find(name, *package),
    )
    with pytest.raises(MissingExtraError, match="vllm"):
        make_engine(EngineConfig(), work=tmp_path, rlvr=RlvrConfig(), model=str(tmp_path / "large"))
    make_engine(EngineConfig(), work=tmp_path, model=str(tmp_path / "large"))  # SFT only
