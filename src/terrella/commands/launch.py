"""`terrella launch RECIPE --on slurm`: a job file for a scheduler, filled in from `launch/`.

The files in `launch/` are the single source: what is not named here stays as it is written there.
A template that has changed so that a blank is not found, or is found twice, is refused.
    text = job_file("slurm", Job(words=("rlvr", "tiny_counter"), name="x", launch=launch))
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from terrella.core.errors import ConfigError
from terrella.engines.launcher import Launch, launch_folder

Scheduler = Literal["slurm", "kuberay", "skypilot"]
SCHEDULERS: tuple[str, ...] = get_args(Scheduler)
SUFFIX = {"slurm": ".sbatch", "kuberay": ".yaml", "skypilot": ".yaml"}
SUBMIT = {
    "slurm": "sbatch {file}",
    "kuberay": "kubectl apply -f {file}",
    "skypilot": "sky launch -c {name} {file}",
}
SECRET = " --secret TOKEN=$(openssl rand -hex 32)"
WORLD_CPUS = 32
"""CPUs for worlds in `kuberay.yaml`: two pods of 16."""
Blank = tuple[str, str]
"""A pattern that occurs once in a template, and what takes its place."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command to be started by a scheduler."""

    words: tuple[str, ...]
    """After `terrella`: the command, the recipe and its options."""
    name: str
    launch: Launch
    gpu: str = "H100"
    worlds_on_ray: bool = False
    """The pipeline has an env pool, which may use CPUs of other pods."""


def job_file(scheduler: Scheduler, job: Job) -> str:
    """The text of the job file."""
    on_verl = job.launch.engine == "verl"
    template = launch_folder() / f"{'verl_' if on_verl else ''}{scheduler}{SUFFIX[scheduler]}"
    text = template.read_text("utf-8")
    for pattern, value in _blanks(scheduler, job):
        literal = value.replace("\\", "\\\\")
        text, found = re.subn(pattern, literal, text, flags=re.MULTILINE)
        if found != 1:
            raise ConfigError(
                str(template), f"has {found} places for {pattern!r}, not one", "mend the template"
            )
    return text


def submit_command(scheduler: Scheduler, job: Job, file: Path) -> str:
    """How to submit the file."""
    command = SUBMIT[scheduler].format(file=file, name=_job_name(job))
    needs_secret = scheduler == "skypilot" and job.launch.engine == "verl"
    return command + (SECRET if needs_secret else "")


def _blanks(scheduler: Scheduler, job: Job) -> list[Blank]:
    filled = {"slurm": _slurm, "kuberay": _kuberay, "skypilot": _skypilot}[scheduler]
    return filled(job)


def _slurm(job: Job) -> list[Blank]:
    launch = job.launch
    blanks = [
        (r"^#SBATCH --job-name=.*$", f"#SBATCH --job-name={_job_name(job)}"),
        (r"^#SBATCH --nodes=.*$", f"#SBATCH --nodes={launch.nodes}"),
        (r"^#SBATCH --gpus-per-node=.*$", f"#SBATCH --gpus-per-node={launch.devices}"),
        (r"^set -euo pipefail$", f"set -euo pipefail\nset -- {shlex.join(job.words)}"),
    ]
    if launch.engine == "trl":
        blanks.append((r"\$\{SHARDING:-\w+\}", f"${{SHARDING:-{launch.sharding}}}"))
    if not Path("launch/node.sh").exists():  # submitted from a folder that is no checkout
        script = "verl_node.sh" if launch.engine == "verl" else "node.sh"
        blanks.append((rf" launch/{script} \"\$@\"", f' {launch_folder() / script} "$@"'))
    return blanks


def _skypilot(job: Job) -> list[Blank]:
    launch = job.launch
    blanks = [
        (r"^name: .*$", f"name: {_job_name(job)}"),
        (r"^num_nodes: .*$", f"num_nodes: {launch.nodes}"),
        (r"^  accelerators: .*$", f"  accelerators: {job.gpu}:{launch.devices}"),
        (r"^  COMMAND: .*$", f"  COMMAND: {_plain(job.words)}"),
    ]
    if launch.engine == "trl":
        blanks.append((r"^  SHARDING: .*$", f"  SHARDING: {launch.sharding}"))
    return blanks


def _kuberay(job: Job) -> list[Blank]:
    launch, words = job.launch, _plain(job.words)
    gpus = (r'nvidia\.com/gpu: "\d+"', f'nvidia.com/gpu: "{launch.devices}"')
    if launch.engine == "verl":
        words += f" --set engine=verl --set verl.nodes={launch.nodes}"
        words += f" --set verl.devices={launch.devices}"
        counts = [
            (rf"^        {name}: .*$", f"        {name}: {launch.nodes - 1}")
            for name in ("replicas", "minReplicas", "maxReplicas")
        ]
        return [(r"^  entrypoint: .*$", f"  entrypoint: terrella {words}"), gpus, *counts]
    if launch.nodes > 1:
        raise ConfigError(
            "--nodes", "one pod trains on KubeRay", "set engine=verl, or use slurm or skypilot"
        )
    if job.worlds_on_ray:
        workers = max(1, WORLD_CPUS // launch.devices)
        words += f" --set env_pool.place=ray --set env_pool.workers={workers}"
    return [
        (r"^  entrypoint: .*$", f"  entrypoint: /terrella/launch/node.sh {words}"),
        (r'name: DEVICES, value: "\d+"', f'name: DEVICES, value: "{launch.devices}"'),
        (r"name: SHARDING, value: \w+", f"name: SHARDING, value: {launch.sharding}"),
        gpus,
    ]


def _job_name(job: Job) -> str:
    return "terrella-" + re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")


def _plain(words: tuple[str, ...]) -> str:
    """Words for a place where no shell removes quotes."""
    for word in words:
        if not re.fullmatch(r"[\w./:=,+\-\[\]]+", word):
            raise ConfigError(word, "cannot be written into a job file", "put it into a recipe")
    return " ".join(words)
