"""One agent evaluated in three ways, on the same instances: results/evaluate_samplers.json.

    OMP_NUM_THREADS=1 python benchmarks/evaluate.py [--instances 75] [--samples 16]
The agent is a small chat model that was taught to play the counter. It is sampled in this process,
by a vLLM server through the engine, and as an OpenAI-compatible endpoint (the server's chat route).
Differences are paired by instance. Needs the environment of `.ci/verl`.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import common


def evaluated(chosen, agent, out, **changes):
    from tests.support import chat_models

    from terrella.pipelines.evaluate.agents import AgentEvaluation
    from terrella.show.progress import SilentProgress

    settings = {
        "model": str(agent),
        "worlds": {"counter": chat_models.WORLD},
        "instances": chosen.instances,
        "samples": chosen.samples,
        "turn_tokens": 12,
        "concurrency": 32,
        "out": out,
    }
    began = time.perf_counter()
    config = AgentEvaluation.Config(**{**settings, **changes})
    scores = config.build().run(SilentProgress()).worlds["counter"]
    return scores, time.perf_counter() - began


def at_an_endpoint(chosen, agent, scratch, vllm):
    from terrella.engines.vllm.sampler import SERVED_NAME
    from terrella.engines.vllm.server import VllmServer
    from terrella.policies.endpoint import Endpoint

    with VllmServer(vllm, agent / "model", log=scratch / "vllm.log") as server:
        os.environ["KEY_OF_THE_BENCHMARK"] = server.key
        url = f"{server.url}/v1"
        endpoint = Endpoint.Config(url=url, model=SERVED_NAME, key_variable="KEY_OF_THE_BENCHMARK")
        return evaluated(chosen, url, scratch / "endpoint", endpoint=endpoint, concurrency=16)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, default=75)
    parser.add_argument("--samples", type=int, default=16)
    chosen = parser.parse_args()
    common.quiet_trl()
    from tests.support import chat_models, vllm_cpu

    os.environ.update(vllm_cpu.environment())
    from terrella.core.instances import plain
    from terrella.engines.configs import VllmConfig
    from terrella.evals.agent_scores import compare_passes

    vllm = VllmConfig(**vllm_cpu.settings(dtype="float32", max_model_len=2048))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        agent = chat_models.chat_agent(scratch / "agent", "tiny-0.3m-vllm", examples=768)
        measured = {
            "in-process": evaluated(chosen, agent, scratch / "local", sampler="local"),
            "vllm": evaluated(chosen, agent, scratch / "vllm", sampler="vllm", vllm=vllm),
            "endpoint": at_an_endpoint(chosen, agent, scratch, vllm),
        }
    here = measured["in-process"][0]
    rows = {
        way: {
            "passes": plain(scores.passes),
            "well_formed": plain(scores.well_formed),
            "steps": plain(scores.steps),
            "seconds": round(seconds, 1),
            "minus in-process": {
                k: plain(compare_passes(scores, here, int(k))) for k in scores.passes
            },
        }
        for way, (scores, seconds) in measured.items()
    }
    common.write_part(
        "evaluate_samplers",
        "counter",
        {"rows": rows, "reference": plain(here.reference)},
        command=common.command(f"--instances {chosen.instances} --samples {chosen.samples}"),
        what="pass@k of one chat agent by three samplers; differences paired by instance",
    )


if __name__ == "__main__":
    main()
