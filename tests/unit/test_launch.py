"""Launch files.

They parse, they say nothing untrue, and their scripts start what they claim to (on stubs).
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
YAMLS = sorted(LAUNCH.rglob("*.yaml"))
SCRIPTS = [
    LAUNCH / name for name in ("node.sh", "slurm.sbatch", "verl_node.sh", "verl_slurm.sbatch")
]

STUB = """#!{python}
import json, os, subprocess, sys, time
command_name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
names = ("RAY_AUTH_MODE", "RAY_ADDRESS", "SLURM_NODEID", "DEVICES", "SHARDING")
names += ("SRUN_CPUS_PER_TASK",)
kept = {{name: os.environ.get(name) for name in names}}
with open("{log}", "a") as log:
    log.write(json.dumps({{"name": command_name, "words": words, "env": kept}}) + "\\n")
if command_name == "terrella" and "--cluster" in words:  # the real one waits for Ray
    deadline = time.monotonic() + 30
    while '"name": "ray"' not in open("{log}").read() and time.monotonic() < deadline:
        time.sleep(0.02)
if command_name == "scontrol":
    print("node-a\\nnode-b")
if command_name == "srun":
    first = next(i for i, word in enumerate(words) if not word.startswith("-"))
    command = words[first:]
    nodes = 1 if "--nodes=1" in words else int(os.environ["SLURM_JOB_NUM_NODES"])
    for node in range(nodes):
        subprocess.run(command, check=True, env=os.environ | {{"SLURM_NODEID": str(node)}})
"""


@pytest.fixture
def stubs(tmp_path):
    """A PATH on which every command only notes that it was called, and how."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    for name in ("accelerate", "ray", "scontrol", "srun", "terrella"):
        (folder / name).write_text(STUB.format(python=sys.executable, log=log))
        (folder / name).chmod(0o755)

    def run(*command, fails=False, **env):
        base = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        done = subprocess.run(
            command, env=base | env, cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode != 0) is fails, done.stderr
        if fails:
            return done.stderr
        return [json.loads(line) for line in log.read_text().splitlines()]

    return run


def named(calls, name):
    return [call["words"] for call in calls if call["name"] == name]


def option(words, name):
    return words[words.index(name) + 1]


def terrella_words(words):
    return words[words.index("terrella.cli") + 1 :]


def document(name, kind=None):
    found = list(yaml.safe_load_all((LAUNCH / name).read_text()))
    return next(d for d in found if d.get("kind") == kind)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.name)
def test_every_yaml_parses(path):
    assert all(isinstance(found, dict) for found in yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize(
    "path", [p for p in LAUNCH.rglob("*") if p.is_file()], ids=lambda path: path.name
)
def test_no_file_opens_a_door_or_names_a_place_that_is_not_the_users(path):
    text = path.read_text()
    assert not re.search(
        r"https?://|pypi|docker\.io|ghcr|quay|gcr\.io|0\.0\.0\.0|/work/|/tmp/|LoadBalancer|NodePort",
        text,
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_bash_and_can_be_run(path):
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)


def test_the_readme_lists_every_file():
    text = (LAUNCH / "README.md").read_text()
    for path in LAUNCH.rglob("*"):
        assert (
            path.is_dir() or path.name == "README.md" or f"`{path.relative_to(LAUNCH)}`" in text
        ), path


def test_the_ray_job_has_what_its_kind_needs():
    job = document("kuberay.yaml", "RayJob")
    assert job["apiVersion"] == "ray.io/v1" and job["metadata"]["name"]
    cluster = job["spec"]["rayClusterSpec"]
    assert (
        cluster["authOptions"] == {"mode": "token"}
        and cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    )
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["metadata"]["labels"] == {"app": "terrella"}
        assert group["template"]["spec"]["containers"][0]["image"]


def test_only_the_operator_and_the_cluster_reach_its_pods():
    policy = document("kuberay.yaml", "NetworkPolicy")["spec"]
    own, operator = policy["ingress"]
    assert own["from"] == [{"podSelector": policy["podSelector"]}]
    assert [port["port"] for port in operator["ports"]] == [8265]


def test_the_ray_jobs_worlds_fit_on_its_workers():
    job = document("kuberay.yaml", "RayJob")["spec"]
    cluster = job["rayClusterSpec"]
    env = {
        e["name"]: e["value"]
        for e in cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    }
    wanted = int(re.search(r"env_pool\.workers=(\d+)", job["entrypoint"])[1]) * int(env["DEVICES"])
    pods = [
        (g["replicas"], g["template"]["spec"]["containers"][0]["resources"])
        for g in cluster["workerGroupSpecs"]
    ]
    assert wanted <= sum(replicas * int(resources["limits"]["cpu"]) for replicas, resources in pods)


def test_the_skypilot_task_has_what_it_needs():
    task = document("skypilot.yaml")
    assert {"resources", "run", "setup", "num_nodes", "volumes"} <= task.keys()
    assert task["resources"]["accelerators"] == "H100:8"


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_accelerate_reads_its_configs(name):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    config = config_args.load_config_from_file(str(LAUNCH / "accelerate" / f"{name}.yaml"))
    assert config.distributed_type == {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}[name]
    known = {action.dest for action in accelerate_parser()._actions}
    assert config.fsdp_config.keys() <= known


def accelerate_parser():
    return pytest.importorskip("accelerate.commands.launch").launch_command_parser()


# --- scripts on stubs -----------------------------------------------------------------------------


def test_one_device_needs_no_launcher(stubs):
    calls = stubs("launch/node.sh", "rlvr", "tiny_counter", "--dry-run", DEVICES="1")
    assert [call["name"] for call in calls] == ["terrella"]
    assert named(calls, "terrella") == [["rlvr", "tiny_counter", "--dry-run"]]


def test_a_node_of_gpus(stubs):
    (words,) = named(
        stubs("launch/node.sh", "rlvr", "tiny_counter", DEVICES="8", SHARDING="fsdp2"),
        "accelerate",
    )
    parsed = accelerate_parser().parse_args(words[1:])
    assert (words[0], parsed.num_processes, parsed.num_machines, parsed.machine_rank) == (
        "launch",
        8,
        1,
        0,
    )
    assert (
        ROOT / parsed.config_file
    ).name == "fsdp2.yaml" and parsed.main_process_ip == "127.0.0.1"
    assert parsed.module and parsed.training_script == "terrella.cli"
    assert parsed.training_script_args == ["rlvr", "tiny_counter"]


def test_a_node_refuses_what_cannot_be(stubs):
    assert "DEVICES" in stubs("launch/node.sh", "rlvr", "tiny_counter", fails=True)
    assert "SHARDING=zero3" in stubs(
        "launch/node.sh", "rlvr", "tiny_counter", fails=True, DEVICES="2", SHARDING="zero3"
    )
    assert "NODE_RANK=2" in stubs(
        "launch/node.sh", "rlvr", "x", fails=True, DEVICES="2", NODES="2", NODE_RANK="2"
    )
    assert "which command" in stubs("launch/node.sh", "tiny_counter", fails=True, DEVICES="2")


def test_a_comparison_hands_out_devices_and_its_jobs_come_back_with_ranks(stubs):
    words = ("reproduce", "spa_sokoban", "--out", "runs/x")
    (call,) = stubs("launch/node.sh", *words, DEVICES="8", SHARDING="fsdp2")
    assert call["name"] == "terrella" and call["words"] == [*words, "--devices", "8"]
    assert call["env"]["SHARDING"] == "fsdp2" and call["env"]["DEVICES"] == "8"
    calls = stubs("launch/node.sh", *words, "--only", "spa-0", DEVICES="2")
    assert terrella_words(named(calls, "accelerate")[0]) == [*words, "--only", "spa-0"]


SLURM = {
    "SLURM_SUBMIT_DIR": str(ROOT),
    "SLURM_JOB_ID": "412345",
    "SLURM_JOB_NODELIST": "node-[a-b]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_GPUS_ON_NODE": "8",
}


def test_slurm_starts_one_launcher_per_node_that_meet_on_the_first(stubs):
    calls = stubs("launch/slurm.sbatch", "rlvr", "tiny_counter", "--out", "/shared/x", **SLURM)
    launches = named(calls, "accelerate")
    assert [option(words, "--machine_rank") for words in launches] == ["0", "1"]
    for words in launches:
        assert option(words, "--num_processes") == "16" and option(words, "--num_machines") == "2"
        assert (
            option(words, "--main_process_ip") == "node-a"
            and option(words, "--main_process_port") == "22345"
        )
        assert terrella_words(words) == ["rlvr", "tiny_counter", "--out", "/shared/x"]
    assert not named(calls, "ray")


def test_slurm_with_worlds_on_ray_asks_for_a_token_and_shows_no_dashboard(stubs):
    ray = {"RAY_WORLDS": "16", "RAY_SECONDS": "1"}
    calls = stubs("launch/slurm.sbatch", "rlvr", "tiny_counter", **ray, **SLURM)
    started = [call for call in calls if call["name"] == "ray"]
    heads = [call["words"] for call in started if "--head" in call["words"]]
    assert len(started) == 2 and len(heads) == 1 and "--include-dashboard=false" in heads[0]
    assert all(
        call["env"]["RAY_AUTH_MODE"] == "token"
        for call in calls
        if call["name"] in ("ray", "accelerate")
    )
    assert all(
        "--set env_pool.place=ray --set env_pool.workers=2" in " ".join(w)
        for w in named(calls, "accelerate")
    )
    assert not list(ROOT.glob(".ray-token-*"))


@pytest.mark.parametrize("script", ["slurm.sbatch", "verl_slurm.sbatch"])
def test_a_step_of_a_slurm_job_has_the_cores_that_sbatch_asked_for(script, stubs):
    """srun itself gives a step one core per task."""
    words = (f"launch/{script}", "rlvr", "tiny_counter")
    stubs(*words, **SLURM)  # a job that asked for none
    calls = stubs(*words, SLURM_CPUS_PER_TASK="32", **SLURM)
    steps = [call["env"]["SRUN_CPUS_PER_TASK"] for call in calls if call["name"] == "srun"]
    assert steps == [None, "32"]


def test_slurm_says_what_is_missing(stubs):
    assert "recipe" in stubs("launch/slurm.sbatch", fails=True, **SLURM)
    assert "sbatch" in stubs("launch/slurm.sbatch", "rlvr", "tiny_counter", fails=True)


def test_skypilot_runs_the_same_node_script(stubs):
    task = document("skypilot.yaml")
    sky = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
    }
    (words,) = named(stubs("bash", "-euc", task["run"], **task["envs"], **sky), "accelerate")
    assert (
        option(words, "--main_process_ip") == "10.0.0.4" and option(words, "--machine_rank") == "1"
    )
    assert terrella_words(words)[:4] == ["rlvr", "tiny_counter", "--out", "/runs/tiny_counter"]


def test_verl_runs_the_command_on_the_head_and_serves_on_the_others(stubs, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    two = {"NODES": "2", "DEVICES": "8", "HEAD": "10.0.0.4", "RAY_AUTH_TOKEN_PATH": str(token)}
    words = ("train-world-model", "textworld_model", "--out", "/shared/x")
    calls = stubs("launch/verl_node.sh", *words, NODE_RANK="0", **two)
    (started,) = named(calls, "ray")  # ended by its process id: no `ray stop` of every Ray there is
    assert "--head" in started and "--include-dashboard=false" in started and "--block" in started
    doctor, command = named(calls, "terrella")
    assert doctor[:2] == ["doctor", "--cluster"] and command[:4] == list(words)
    assert command[4:] == [
        "--set",
        "engine=verl",
        "--set",
        "verl.nodes=2",
        "--set",
        "verl.devices=8",
    ]
    *_, worker = stubs("launch/verl_node.sh", *words, NODE_RANK="1", **two)
    assert worker["name"] == "ray" and "--address=10.0.0.4:6379" in worker["words"]


# --- `terrella launch` ----------------------------------------------------------------------------


def launched(*words, cwd=ROOT):
    command = [sys.executable, "-m", "terrella", "launch", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=200)
    return done.returncode, done.stdout, done.stderr


def test_a_slurm_file_that_launch_writes_starts_every_node(stubs, tmp_path):
    words = ("tiny_counter", "--devices", "4", "--nodes", "3", "--on", "slurm")
    code, shown, error = launched(*words, "--set", "rlvr.groups=36", cwd=tmp_path)
    assert code == 0 and "sbatch runs/tiny_counter.slurm.sbatch" in shown, error
    file = tmp_path / "runs/tiny_counter.slurm.sbatch"
    text = file.read_text()
    assert "#SBATCH --nodes=3\n" in text and "#SBATCH --gpus-per-node=4\n" in text
    calls = stubs("bash", str(file), **{**SLURM, "SLURM_GPUS_ON_NODE": "4"})
    assert len(named(calls, "accelerate")) == 2
    for call in named(calls, "accelerate"):
        expected = ["rlvr", "tiny_counter", "--out", "runs/tiny_counter"]
        assert terrella_words(call) == [*expected, "--set", "rlvr.groups=36"]


def test_a_skypilot_file_that_launch_writes_starts_a_comparison(stubs, tmp_path):
    words = ("spa_sokoban", "--devices", "2", "--on", "skypilot", "--jobs", "2")
    code, shown, error = launched(*words, cwd=tmp_path)
    assert code == 0 and "sky launch -c terrella-spa-sokoban" in shown, error
    task = yaml.safe_load((tmp_path / "runs/spa_sokoban.skypilot.yaml").read_text())
    assert task["resources"]["accelerators"] == "H100:2" and task["num_nodes"] == 1
    sky = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.4"}
    sky["SKYPILOT_NUM_GPUS_PER_NODE"] = "2"
    (call,) = stubs("bash", "-euc", task["run"], **task["envs"], **sky)
    expected = "reproduce spa_sokoban --out /runs/spa_sokoban --jobs 2 --devices 2"
    assert call["name"] == "terrella" and call["words"] == expected.split()


def test_a_kuberay_file_that_launch_writes_has_the_counts_and_the_command(tmp_path):
    words = ("tiny_counter", "--devices", "4", "--on", "kuberay", "--dry-run")
    code, shown, error = launched(*words)
    assert code == 0 and "submit it" not in shown, error  # there is no file to submit
    job, _ = yaml.safe_load_all(shown)
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert "node.sh rlvr tiny_counter --out /runs/tiny_counter" in job["spec"]["entrypoint"]
    code, _, error = launched(*words, "--nodes", "2")
    assert code == 2 and "engine=verl" in error
    code, shown, error = launched(*words, "--nodes", "3", "--set", "engine=verl")
    job, _ = yaml.safe_load_all(shown)
    assert job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 2
    assert "--set engine=verl --set verl.nodes=3" in job["spec"]["entrypoint"]


def test_launch_says_what_it_would_start_and_what_it_cannot():
    code, shown, _ = launched("textworld_model", "--devices", "2", "--dry-run")
    assert code == 0 and "node.sh train-world-model textworld_model" in shown.replace("\n", " ")
    code, _, error = launched("tiny_counter", "--nodes", "2", "--devices", "8")
    assert code == 2 and "NODE_RANK" in error
    served = ("tiny_counter", "--nodes", "2", "--on", "slurm", "--dry-run")
    code, _, error = launched(*served, "--set", "sampler=vllm")
    assert code == 2 and "serves one machine, not 2" in error
    assert launched(*served)[0] == 0
    code, _, error = launched("tiny_counter", "--on", "slurn")
    assert code == 2 and "is not a scheduler" in error


ARMS = """
from terrella.recipes.spa.tiny import spa_frozen_lake
from terrella.recipes.text_games import bytesized32_tiny


def small_spa():
    arm = spa_frozen_lake().arms["spa"]
    sft = arm.format_sft.replace(batch_size=8)
    return arm.replace(
        format_examples=32,
        format_sft=sft,
        self_play=arm.self_play.replace(trajectories=16, keep="all", sft=sft),
        rlvr=arm.rlvr.replace(steps=3, groups=4, group_size=4, save_every=1),
        max_env_steps=150,
        test=arm.test.replace(instances=4, samples=1),
        validation=arm.validation.replace(instances=0),
    )


def small_games():
    comparison = bytesized32_tiny()
    arm = comparison.arms["exact"]
    arm = arm.replace(
        model="tiny-0.3m",
        states=12,
        actions=4,
        sft=arm.sft.replace(batch_size=2),
        rlvr=arm.rlvr.replace(steps=1, groups=2, group_size=4),
        test_records=8,
    )
    return comparison.replace(arms={"exact": arm}, first=("exact",), claims=(), seeds=1)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("recipe", "manifest"),
    [("small_spa", "small_spa"), ("small_games", "small_games/exact-0")],
)
def test_two_processes_of_a_real_launcher_run_a_pipeline_to_its_end(tmp_path, recipe, manifest):
    """Real accelerate, two ranks on loopback: self-play, warm-up, RL with a budget, evaluation."""
    pytest.importorskip("trl")
    (tmp_path / "small_arms.py").write_text(ARMS)
    command = [sys.executable, "-m", "terrella", "launch", f"small_arms.{recipe}"]
    command += ["--devices", "2"]
    if recipe == "small_spa":
        command += ["--set", "base_cache=runs/bases"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=840)
    logs = "".join(path.read_text()[-3000:] for path in tmp_path.rglob("*.log"))
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:] + logs
    assert (tmp_path / "runs" / manifest / "manifest.json").exists()
    if recipe == "small_spa":
        assert done.stdout.count("test pass@1") == 1  # of two ranks only the first prints


# --- the commands inside --------------------------------------------------------------------------


def commands():
    """Every `terrella rlvr` command of every file, as words."""
    pods = ("kuberay.yaml", "verl_kuberay.yaml")
    jobs = [document(name, "RayJob")["spec"]["entrypoint"].split()[1:] for name in pods]
    clouds = ("skypilot.yaml", "verl_skypilot.yaml")
    tasks = [document(name)["envs"]["COMMAND"].split() for name in clouds]
    texts = [path.read_text() for path in (*SCRIPTS, LAUNCH / "README.md")]
    shown = [
        m.split()
        for text in texts
        for m in re.findall(r'(?:node\.sh|slurm\.sbatch) (rlvr tiny_\w+[^\n`|"]*)', text)
    ]
    return [*jobs, *tasks, *shown]


def test_every_command_is_one_that_terrella_takes():
    """In a process of its own.

    What torch and its friends warn about on import is not what is asked here.
    """
    pytest.importorskip("trl")
    assert len(commands()) >= 5
    code = (
        "import json, sys; from terrella.cli import app; "
        "[app.cli(args=words) for words in json.loads(sys.argv[1])]"
    )
    asked = json.dumps([[*words, "--dry-run"] for words in commands()])
    done = subprocess.run(
        [sys.executable, "-c", code, asked], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count('"class": "terrella.pipelines.rlvr:Rlvr"') == len(commands())


@pytest.mark.slow
def test_two_nodes_on_loopback_really_meet(tmp_path):
    """The Slurm script with real launchers.

    Two 'nodes' of one process here, gloo's rendezvous, a dry run on each.
    """
    pytest.importorskip("trl")
    if not shutil.which("accelerate", path=str(Path(sys.executable).parent)):
        pytest.skip("no accelerate beside this Python")
    scontrol, srun = tmp_path / "scontrol", tmp_path / "srun"
    scontrol.write_text("#!/bin/sh\necho 127.0.0.1\n")
    srun.write_text(
        '#!/bin/bash\nwhile [[ "$1" == -* ]]; do shift; done\n'
        'SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@" || exit 1; wait $!\n'
    )
    for stub in (scontrol, srun):
        stub.chmod(0o755)
    env = (
        os.environ
        | SLURM
        | {
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DEVICES": "1",
            "PORT": "29571",
        }
    )
    done = subprocess.run(
        ["launch/slurm.sbatch", "rlvr", "tiny_counter", "--dry-run"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count('"class": "terrella.pipelines.rlvr:Rlvr"') == 2


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_verl_node_starts_a_real_ray_runs_the_command_and_leaves_nothing_behind(tmp_path):
    """The script, Ray and the doctor as they are. (Ray on loopback alone takes no second node.)"""
    pytest.importorskip("ray")
    token = tmp_path / "token"
    token.write_text("a secret that is long enough for Ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DEVICES": "0",  # the doctor would miss a GPU that is only claimed
        "PORT": port,
        "RAY_AUTH_TOKEN_PATH": str(token),
        "SHARED": str(tmp_path / "shared"),
    }
    words = ["launch/verl_node.sh", "rlvr", "tiny_counter", "--dry-run"]
    done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "reaches every node" in done.stdout and '"engine": "verl"' in done.stdout
    left = subprocess.run(["pgrep", "-f", f"127.0.0.1:{port}"], capture_output=True, text=True)
    assert left.stdout == ""


@pytest.mark.parametrize("on", [(), ("--on", "slurm")])
def test_settings_that_the_devices_cannot_run_are_refused_before_any_process_starts(on, tmp_path):
    code, shown, error = launched("tiny_counter", "--devices", "3", *on, cwd=tmp_path)
    assert code == 2 and "groups: 32 tasks cannot be shared by 3 processes" in error, shown
    assert "Traceback" not in error and not list(tmp_path.iterdir())
