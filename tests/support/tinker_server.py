"""SkyRL's open Tinker server on loopback, from a plain virtual environment.

Its own entry point wants `uv run` as its parent, and fails on Python 3.11's TypedDict. This file is
run by the server's Python, which has neither terrella nor its tests:
    python tinker_server.py MODEL_FOLDER PORT WORK_FOLDER '{"max_lora_adapters": 6}'
"""

import json
import runpy
import sys
import typing

import typing_extensions

# pydantic refuses `typing.TypedDict` before Python 3.12, and skyrl uses it.
typing.TypedDict = typing_extensions.TypedDict


def engine() -> None:
    """The process that computes; the API starts it."""
    sys.argv = ["engine", *sys.argv[2:]]
    runpy.run_module("skyrl.tinker.engine", run_name="__main__")


def serve(model: str, port: int, work: str, settings: dict) -> None:
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    api._build_uv_run_cmd_engine = lambda parent, config: [
        sys.executable,
        __file__,
        "engine",
        *config_to_argv(config),
    ]
    api.app.state.engine_config = EngineConfig(
        base_model=model,
        backend="jax",
        backend_config={"max_lora_rank": 16, **settings},
        checkpoints_base=f"{work}/checkpoints",
        database_url=f"sqlite:///{work}/tinker.db",
    )
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        engine()
    else:
        model, port, work, settings = sys.argv[1:]
        serve(model, int(port), work, json.loads(settings))
