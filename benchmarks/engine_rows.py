"""Rows of docs/numbers.md about servers, slow worlds, memory and endpoints, for tables.py."""

from common import interval

COLUMNS = {"trl": "TRL in-process", "vllm": "TRL + vLLM", "verl": "verl"}
"""The columns of results/engine_matrix.json."""


def vllm(record):
    return [
        (
            f"tokens/s, our vLLM path / bare vLLM: {name}, {row['requests']} prompts of "
            f"{row['prompt']} tokens, answers of {row['answer']}",
            f"{interval(row['ratio'])} x ({row['rounds']} rounds)",
        )
        for name, part in record.items()
        for row in part["rows"]
    ]


def verl_share(record):
    if "share" not in record:
        return []
    share = record["share"]
    return [
        (
            f"our share of a verl step: tiny_counter, {share['episodes_per_step']} episodes",
            f"{share['share']:.1%} of {share['seconds_step']} s ({share['steps']} steps)",
        )
    ]


def asynchronous(record):
    setting, seeds = record["setting"], record["seeds"]
    where = f"{setting['world']}, {setting['model']}, {seeds} seeds"
    each = ", ".join(f"{ratio:.2f}" for ratio in speed_ups(record["arms"]))
    return [
        (
            f"`schedule=async`, times faster than sync: {where}",
            f"{interval(record['speed_up'], digits=2)} (by seed: {each})",
        ),
        (
            f"`schedule=async`, final reward minus that of sync: {where}",
            interval(record["reward_async_minus_sync"]),
        ),
        (
            f"`schedule=async`, oldest token in updates (bound {setting['staleness']})",
            f"{record['staleness_max']:.0f}",
        ),
    ]


def speed_ups(arms):
    seconds = {(arm["seed"], arm["schedule"]): arm["seconds"] for arm in arms}
    seeds = sorted({seed for seed, _ in seconds})
    return [seconds[seed, "sync"] / seconds[seed, "async"] for seed in seeds]


def memory(record):
    ratios = [row["ratio"] for row in record["rows"]]
    models = ", ".join(sorted({row["model"] for row in record["rows"]}))
    return [
        (
            f"peak memory, planned / measured: {models}; {len(ratios)} kinds of training",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        )
    ]


def matrix(record):
    """Cells that ran to their end, by column. A cell that fails is not written."""
    cells = {tuple(key.split("/")) for key in record}
    kinds = sorted({kind for kind, _ in cells})
    rows = []
    for column, name in COLUMNS.items():
        ran = [kind for kind in kinds if (kind, column) in cells]
        missing = [kind for kind in kinds if kind not in ran]
        not_yet = f"; not yet: {', '.join(missing)}" if missing else ""
        what = f"kinds of pipeline that ran on {name}, a few steps each"
        rows.append((what, ", ".join(ran) + not_yet))
    return rows


def ranks(record):
    """One process beside two with FSDP2."""
    rows = []
    for model, part in record.items():
        one, two = part["one_process"], part["two_ranks_fsdp2"]
        gap = max(abs(a - b) for a, b in zip(one["reward"], two["reward"], strict=True))
        mean, most = (max(*one[name], *two[name]) for name in ("mismatch/mean", "mismatch/max"))
        rows.append(
            (
                f"two ranks (FSDP2, bf16, vLLM) against one: {model}, {len(one['reward'])} steps",
                f"rewards differ by at most {gap:.3f}; sampler and trainer (log-probability of a "
                f"token, worst step of both) by {mean:.3f} on average, {most:.2f} at most",
            )
        )
    return rows


def tinker(record):
    rows = []
    for recipe, part in record.items():
        norms = part["gradient norm"]
        rows.append(
            (
                f"`--set engine=tinker`: {recipe}, LoRA, SFT and {len(part['reward'])} steps of "
                f"GRPO, held-out reward, n = {part['after']['n']}, 1 seed",
                f"{part['before']['mean']:.2f} -> {interval(part['after'], digits=2)}; first "
                f"gradient norm {norms['tinker']:.4f} (TRL {norms['trl']:.4f})",
            )
        )
    return rows
