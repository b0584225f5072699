"""Rows of docs/numbers.md, one function per result file: what was measured, and the figure.

rows = PARTS["spa_sokoban"](common.read_results("spa_sokoban"))
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial

import common
import engine_rows
from common import interval, mean_row
from families import ONE_BASE, decide_family

from terrella.recipes import find_recipe
from terrella.trust.risk import FIT_SHARE


def foundation(record):
    splits, collect, kills = record["splits"], record["collect"], record["kills"]
    worlds = [
        row for row in splits.values() if isinstance(row, Mapping) and "train_and_test" in row
    ]
    million = collect["1000000"]
    shared = sum(world["train_and_test"] for world in worlds)
    fuzz, checks = record["fuzz"], record["checks"]
    return [
        (
            "worlds and presets checked, broken properties",
            f"{checks['worlds_and_presets']}, {checks['broken_properties']}",
        ),
        (
            "instances in both train and test",
            f"{shared} ({len(worlds)} worlds, {worlds[0]['train_draws']:,} train and "
            f"{worlds[0]['test_draws']:,} test draws each)",
        ),
        (
            "`collect frozen_lake`, 10^6 transitions",
            f"{million['seconds']:.0f} s, {million['bytes_per_transition']} bytes each, "
            f"peak {million['peak_mib']} MiB ({collect['peak_ratio_1e6_to_1e5']} x that of 10^5)",
        ),
        (
            f"killed by SIGKILL {kills['kills']} times and resumed",
            "byte-identical" if kills["byte_identical"] else "NOT identical",
        ),
        (
            f"{fuzz['replies_per_verifier']:,} fuzzed replies per verifier",
            "no crash, nothing outside [0, 1], battery wins 0" if fuzz["passed"] else "FAILED",
        ),
    ]


def engine(record):
    """The comparisons with the bare engine."""
    rows = []
    for part, what in (
        ("ratio", "GRPO step, bare engine / ours"),
        ("prefix", "the same, long shared prompt"),
    ):
        for shape in record.get(part, {}).get("shapes", []):
            rows.append((f"{what}: {shape['model']}, {shape_size(shape)}", shape_cell(shape)))
    if "interleaving" in record:
        cost = record["interleaving"]["cost"]
        rows.append(
            ("8 turns with forced world tokens / the same tokens in one go", f"{cost} x the time")
        )
    if "kills" in record:
        same = "bit-identical weights" if record["kills"]["passed"] else "NOT identical"
        rows.append((f"RLVR killed by SIGKILL {record['kills']['kills']} times and resumed", same))
    return rows


def teaching(record):
    """The recipes that teach, on fresh seeds: the bar was stated before."""
    rows = []
    for name, recipe in record["recipes"].items():
        held = sum(seed["held"] for seed in recipe["seeds"].values())
        seeds = recipe["seeds"].values()
        cell = f"{held} of {counted(seeds, 'seed')}; after {spread(recipe['after'])}"
        if len(seeds) > 1:
            cell += f", the worst {min(seed['after'] for seed in seeds):.3f}"
        least = min(seed["n"] for seed in seeds)
        highest = max(seed["baseline"] for seed in seeds)
        cell += f"; n >= {least}; without a model at most {highest:.3f}"
        cell += f"; {time_taken([seed['seconds'] for seed in seeds])}"
        rows.append((f"`terrella rlvr {name}`: {record['bar']}", cell))
    return rows


def time_taken(seconds):
    """The slowest seed. None is a seed that was not timed, which shows nothing about its time."""
    known = [each for each in seconds if each is not None]
    if not known:
        return "not timed"
    missing = len(seconds) - len(known)
    return f"at most {max(known)} s" + (f", {missing} not timed" if missing else "")


def shape_size(shape):
    answers = f"{shape['groups']} x {shape['group_size']} answers"
    return f"{answers} of {shape['answer']} tokens to {shape['prompt']}"


def shape_cell(shape):
    bare = f"{shape['bare_generate_s']} + {shape['bare_train_s']} s"
    return f"{shape['ratio']} x ({bare} / {shape['our_step_s']} s)"


def verl(record):
    rows = []
    for part, what in (
        ("curve", "tiny_counter, GRPO"),
        ("lake", "tiny_lake_agent, PPO with a critic"),
    ):
        rise = record[part]["last_ten_minus_first_ten"]
        cell = f"{interval(rise, sign='+')} reward in {record[part]['steps']} steps"
        name = f"`--set engine=verl`: {what}, last ten steps minus first ten"
        rows.append((name, f"{cell} (1 run; the interval is over steps)"))
    worst = max(record[part]["mismatch_max"] for part in ("curve", "lake"))
    rows.append(
        ("verl: sampler and trainer differ at most by (log-probability of a token)", f"{worst:.1e}")
    )
    lost = record["nodes"]
    what = f"verl: a node lost while {lost['episodes']:,} episodes are collected"
    rows.append((what, f"{lost['lost']} lost, {lost['duplicated']} doubled"))
    return rows + engine_rows.verl_share(record)


def coverage(record):
    """From validation to test: one row per world, its models as the unit.

    The promise is for each policy, so the figure of a model is that of its worst one.
    """
    rows = []
    for name, world in record["worlds"].items():
        promised = f"worst policy of each model, {record['level']:g} promised"
        what = f"{name}: results inside their prediction set on test instances, {promised}"
        models = counted(world["models"], "model")
        cell = f"{spread(world['coverage'])}, {models}; {beside_coverage(name, world)}"
        rows.append((what, f"{world['claim']['verdict']}: {cell}"))
    return rows


def beside_coverage(name, world):
    """What coverage alone does not say: which policy it is of, and whether a model is of use."""
    models = world["models"].values()
    worst = Counter(model["worst_policy"] for model in models)
    trusting = sum(model["trusted_share"] > 0 for model in models)
    parts = [
        f"worst policy {', '.join(f'{policy} ({count})' for policy, count in worst.most_common())}",
        set_shares(world),
        f"trusts a step in {trusting} of {counted(models, 'model')}",
    ]
    if certificate := common.read_results("trust_certificates").get("models", {}).get(name):
        certified = certificate["certified"]
        parts.append("seed 0 certified" if certified else "certificate of seed 0 refused")
    if any(calibrated_earlier(model) for model in models):
        parts.append("earlier calibration")
    return "; ".join(parts)


def set_shares(world):
    """The prediction sets that say nothing: those without a result, and those with all results."""
    return f"empty sets {world['empty_sets']:.3f}, sets of all results {world['whole_sets']:.3f}"


def calibrated_earlier(model):
    """Whether its certificate was made in another way than today's.

    Since rows keep the lengths of episodes, steps are counted by them and less goes into the fit.
    Since they say `shuffled`, what is fitted is not of the instances that are drawn most often.
    """
    other_share = model.get("fit_share", FIT_SHARE) != FIT_SHARE
    return not model["has_lengths"] or other_share or not model.get("shuffled", False)


def gate(record, world, certificate=None):
    """Learners that were trained behind the gate of one world model repeat the learner alone.

    A refused certificate closes the gate. What is trained behind it is trained for real, so such
    a seed says nothing about success; its real steps count.
    `certificate`: of the same world in results/trust_certificates.json, with every section.
    """
    seeds = record["seeds"].values()
    held = [row for row in seeds if row.get("certified")]
    models = [model_of(row) for row in held]
    differences = [row["gated"] - row["real"] for row in held]
    instances = record.get("n") or int(record["evaluated_on"].split()[0])
    (claim,) = decide_family([differences], not_below=[True], grids=[1 / instances], bases=models)
    factors = mean_row([row["factor"] for row in seeds])
    certified = f"certified {len(set(models))} of {len(set(map(model_of, seeds)))}"
    shown = f"{spread(claim, sign='+', digits=4)}, {learners(held)}" if held else "no learner"
    what_counts = record.get("not_counted", "all counted, a certificate of risk and horizon")
    return [
        (
            f"the gate on {world}: success not {-claim['threshold']:g} below that of real training",
            f"{claim['verdict']}: {shown}, {certified}",
        ),
        (
            f"the gate on {world}: times fewer real steps, {what_counts}",
            f"{spread(factors)}, {learners(seeds)}, {certified}{with_all_of(certificate, seeds)}",
        ),
    ]


def with_all_of(certificate, seeds):
    """The factor with the certificate that `terrella certify` makes, which ranks policies, too."""
    if certificate is None:
        return ""
    models = common.read_results("trust_certificates")["models"]
    steps = sum(models[certificate]["real_steps"].values())
    factors = [
        row["factor"]
        * row["real_steps_gated"]
        / (row["real_steps_gated"] - row["paid"]["certificate"] + steps)
        for row in seeds
    ]
    paid = [row["paid"]["certificate"] for row in seeds]
    return (
        f"; with all sections of a certificate ({steps:,} steps in place of {min(paid):,} to "
        f"{max(paid):,}) {spread(mean_row(factors), digits=1)}"
    )


def learners(seeds):
    return f"{counted(seeds, 'seed')}, {counted(set(map(model_of, seeds)), 'model')}"


def model_of(seed):
    """The world model behind which a seed was trained: earlier files have one for all."""
    return seed.get("model", "the only one")


def arms(record, name):
    """A reproduction: random and optimal play, one row per arm, then the claims."""
    rows = []
    if reference := record.get("reference_scores"):
        cell = f"{reference['random']['1']:.3f}, {reference['optimal']:.3f}"
        rows.append((f"{name}: random, optimal (exact)", cell))
    for arm, metrics in record["arms"].items():
        kinds = [kind for kind in ("pass@1", "pass@8") if kind in metrics]
        cell = ", ".join(f"{kind} {over_seeds(metrics[kind])}" for kind in kinds)
        rows.append((f"{name}: {arm}", f"{cell} ({runs_of(metrics)})"))
    rows += [
        claim_row(claim, name, record.get("looks", 1))
        for claim in record["claims"]
        if claim["seeds"]
    ]
    if missing := [statement(claim) for claim in record["claims"] if not claim["seeds"]]:
        rows.append((f"{name}: not run, but in the correction", "; ".join(missing)))
    if any(record.get("unseen_families", {}).values()):
        unseen = record["unseen_families"]
        cells = [f"{arm} {sum(values) / len(values):.3f}" for arm, values in unseen.items()]
        rows.append((f"{name}: families neither shown nor practised", ", ".join(cells)))
    return rows


def web_test_pages(record):
    """How many of the tested pages differ, and how many of them practice may show as well."""
    rows = []
    for unseen, kind in ((False, "practised"), (True, "unseen")):
        families = [each for each in record["families"].values() if each["unseen"] is unseen]
        asked, different, shown = (
            sum(each[name] for each in families) for name in ("asked", "different", "also_train")
        )
        what = f"MiniWoB++, {len(families)} {kind} families: test pages that begin differently"
        train = record["train_instances"]
        cell = f"{different} of {asked}; {shown} are also among {train} train instances"
        rows.append((what, f"{cell} of their family"))
    return rows


def runs_of(metrics):
    """Seeds, and how many of them are different runs: an arm that is never trained is one run."""
    kinds = [kind for kind in metrics if kind.startswith("pass@")]
    different = metrics.get("runs") or len(
        set(zip(*(metrics[kind]["per_seed"] for kind in kinds), strict=True))
    )
    seeds = counted(metrics["seeds"], "seed")
    return seeds if different == len(metrics["seeds"]) else f"{seeds}, {different} different"


def claim_row(claim, name, looks=1):
    return f"{name}: {statement(claim)}", outcome(claim, looks=looks)


def statement(claim):
    on = claim.get("on") or f"pass@{claim['k']}"
    return f"{claim['better']} {relation(claim)} {claim['worse']}, {on}"


def relation(claim):
    return f"not {-claim['threshold']:g} below" if claim["not_below"] else "above"


def outcome(claim, unit="seed", looks=1):
    """`holds: +0.482 [0.439, 0.519], p = 0.0001, 5 seeds, the worst +0.431`."""
    looked = f" ({looks} looks)" if looks > 1 else ""
    units = f"p = {claim['p']:.3g}{looked}, {counted(claim['per_seed'], unit)}"
    if claim.get("bases", 0) < len(claim["per_seed"]) and "bases" in claim:
        units += f" of {counted(range(claim['bases']), 'base')}"
    if len(claim["per_seed"]) > 1:
        units += f", the worst {min(claim['per_seed']):+.3f}"
    return f"{claim['verdict']}: {spread(claim, sign='+')}, {units}"


def over_seeds(scores):
    low, high = scores["interval"] or (None, None)
    return spread({"mean": scores["mean"], "low": low, "high": high})


def counted(items, unit):
    return f"1 {unit}" if len(items) == 1 else f"{len(items)} {unit}s"


def spread(metric, *, digits=3, sign=""):
    """`0.545 [0.308, 0.781]`; the mean alone where nothing shows a spread."""
    if metric["low"] is None:
        return f"{metric['mean']:{sign}.{digits}f}"
    return interval(metric, digits=digits, sign=sign)


def serve(record):
    rows = []
    for part, each in (("load", "one question"), ("load_of_eight", "eight questions")):
        if part in record:
            load = record[part]
            low, high = load["ratio_interval"]
            clients = f"{load['clients']} clients for 60 s, {each} a request"
            errors = f"{load['errors']} errors in {load['requests']:,} requests"
            what = f"`terrella serve`, {clients}: served / bare predictions"
            rows.append((what, f"{load['ratio']} [{low}, {high}]; {errors}"))
    if "malformed" in record:
        wrong = record["malformed"]
        leaked = f"{wrong['tracebacks_leaked']} tracebacks leaked"
        cell = f"{wrong['server_errors']} server errors, {leaked}"
        rows.append((f"{wrong['requests']:,} malformed requests to a server", cell))
    return rows


def miniwob(record):
    sweep, rate, kill, rest = (record[part] for part in ("sweep", "rate", "kill", "leftovers"))
    one = rate["one_browser_in_place"]["per_second"]
    two = rate["two_browsers_in_place"]["per_second"]
    return [
        (
            f"MiniWoB++ in Chromium, {sweep['episodes']} episodes of {sweep['families']} families",
            f"{sweep['harness_errors']} errors of ours; "
            f"{one:.0f} episodes/s with one browser, {two:.0f} with two",
        ),
        (
            f"a browser killed in {kill['kills']} of {kill['episodes']} episodes",
            f"{kill['succeeded']} succeed, {kill['masked']} masked, {kill['scored_0']} scored 0; "
            f"{rest['leftover_processes']} processes left after {rest['episodes']:,} episodes",
        ),
    ]


def browsers(record):
    kill = record["browser_kills"]
    return [
        (
            f"a browser killed every {kill['settings']['every']:g} s on average, {kill['kills']} "
            "times, with several episodes in it",
            f"of {kill['attempts']} attempts {kill['masked']} masked, {kill['as_without_kills']} "
            f"end as without kills, {kill['scored_differently']} scored differently",
        )
    ]


def pages(record):
    rows = []
    for part, result in record.items():
        scores = {
            "no change": result["baselines"]["no_change"],
            "SFT": result["sft"],
            "RLVR": result["rlvr"],
        }
        cells = [f"{name} {interval(score['changed']['f1'])}" for name, score in scores.items()]
        cells.append(f"n = {result['sft']['changed']['n']}")
        about = part.replace("--", "").split(maxsplit=1)[1]  # "seed 0"
        what = f"page model ({result['model']}), unseen MiniWoB++ families: F1 of what changes"
        rows.append((f"{what}, {about}", ", ".join(cells)))
    return rows


def look_ahead(record):
    cells = [
        f"{arm} {interval({**row, 'mean': row['success']}, digits=2)}"
        for arm, row in record["mpc"]["arms"].items()
    ]
    return [("web agent, 100 held-out seeds: success by depth of looking ahead", ", ".join(cells))]


SMALL_POLICY = "the small policy proposes, depths 0 1"
"""The part of results/web_plan_parts.json in which nothing was named on the command line."""


def plan_parts(record):
    """A planning web agent with learnt parts and oracles: what looking ahead gains in each arm."""
    rows, played = [], common.read_rows("web_plan_parts")
    for part, found in record.items():
        gains = {claim["arm"]: claim for claim in found["claims"]}
        for arm, depths in found["arms"].items():
            runs = played[part][arm].values()
            scores = ", ".join(
                f"{depth} {depth_cell(depth, row, runs)}" for depth, row in depths.items()
            )
            said = f"; gain {outcome(gains[arm])}, n = {gains[arm]['n']}" if arm in gains else ""
            rows.append((f"web agent ({part}), {arm}: success", scores + said))
    return rows


def depth_cell(depth, row, runs):
    """Seeds that agree on every instance are one run, and have no interval."""
    number = depth.removeprefix("depth ")
    if len(runs) > 1 and len({tuple(run[number]) for run in runs}) == 1:
        return f"{row['mean']:.2f} ({len(runs)} seeds, 1 different)"
    return spread(row, digits=2)


def viewer(record):
    page = record["open"]
    seconds = f"{page['seconds']['median']} s (median of 10; worst {page['seconds']['worst']})"
    return [(f"`terrella view`, {page['episodes']:,} episodes opened in Chromium", seconds)]


SAID = {
    "bytesized32_tiny": "1.2M parameters: % right of changed / all official test rows",
    "bytesized32_smollm2": "SmolLM2-135M: % right of changed / all questions of unseen games",
}
TEXT_ARMS = {
    "sft": "SFT",
    "exact": "RLVR (exact)",
    "task_specific": "RLVR (task-specific)",
    "sft_all": "SFT on all data",
    "nearest_neighbour": "the nearest neighbour",
}
NO_CLAIM = (
    ("sft", "nearest_neighbour", "overall"),
    ("exact", "sft", "overall"),
    ("task_specific", "sft", "overall"),
    ("sft_all", "nearest_neighbour", "dedup_overall"),
    ("sft_all", "nearest_neighbour_inside_tables", "dedup_overall"),
)
"""Differences over other rows than those that the recipe's claims are about."""


def text_games(record, name):
    """Arms, the claims of the recipe, and what it claims nothing about."""
    arms = {key: arm for key, arm in record["arms"].items() if is_arm(arm)}
    cells = [
        f"{key} {100 * arm['changed']['mean']:.1f} / {100 * arm['overall']['mean']:.1f}"
        for key, arm in arms.items()
    ]
    seeds = ", ".join(f"{key} {arm['seeds']}" for key, arm in arms.items())
    rows = [(f"{name}, {SAID[name]} (seeds: {seeds})", "; ".join(cells))]
    rows += [
        (f"{name}: {text_statement(claim)}", outcome(claim))
        for claim in text_claims(record, name)
        if claim["per_seed"]
    ]
    beside = [
        f"{better} - {worse}, {chosen.replace('_', ', ')} {100 * difference:+.1f}"
        for better, worse, chosen in NO_CLAIM
        if (difference := text_difference(arms, better, worse, chosen)) is not None
    ]
    return [*rows, (f"{name}: points over other rows, no claim of the recipe", "; ".join(beside))]


def is_arm(part):
    return isinstance(part, Mapping) and "changed" in part and "seeds" in part


def text_statement(claim):
    better, worse = (TEXT_ARMS.get(claim[key], claim[key]) for key in ("better", "worse"))
    return f"{better} {relation(claim)} {worse}, rows in which something changes"


def text_claims(record, name):
    """The claims of the recipe, scored as `terrella reproduce` does: by what changes.

    A baseline or base that was run once is paired with every seed.
    """
    config, arms = find_recipe(name)(), record["arms"]
    claims = [claim[:2] for claim in config.claims]
    differences = [text_differences(arms, *claim, "changed") for claim in claims]
    not_below = [claim[3] for claim in config.claims]
    shared = arms.get("one_base") and [ONE_BASE] * max(map(len, differences))
    decided = decide_family(
        differences,
        not_below=not_below,
        grids=[1 / arms["n"]["changed"]] * len(claims),
        margin=config.margin,
        looks=config.looks,
        bases=shared or None,
    )
    return [
        {"better": better, "worse": worse, "not_below": below, **claim}
        for (better, worse), below, claim in zip(claims, not_below, decided, strict=True)
    ]


def text_differences(arms, better, worse, chosen):
    """Seed by seed; none where an arm was not run."""
    if better not in arms or worse not in arms or chosen not in arms[better]:
        return []
    first, second = (arms[name][chosen]["per_seed"] for name in (better, worse))
    second = second * len(first) if len(second) == 1 else second
    return [one - other for one, other in zip(first, second, strict=False)]


def text_difference(arms, better, worse, chosen):
    values = text_differences(arms, better, worse, chosen)
    return sum(values) / len(values) if values else None


def game_baselines(record):
    cells = [
        f"{name.replace('_', ' ')} {100 * row['nearest_neighbour']['overall']['share']:.1f}"
        for name, row in record.items()
    ]
    still = 100 * record["official"]["no_change"]["overall"]["share"]
    cell = f"{', '.join(cells)} (no change: {still:.1f})"
    return [("bytesized32, no model: nearest neighbour, % of rows", cell)]


def unseen_games(record):
    runs = [record[f"seed {seed}, other games"] for seed in range(3)]
    cells = []
    for name in ("model", "verb_habit", "no_change"):
        means = []
        for group in ("changed", "overall"):
            shares = [run["accuracy"][group][name]["share"] for run in runs]
            means.append(f"{sum(shares) / len(shares):.3f}")
        cells.append(f"{name.replace('_', ' ')} {' / '.join(means)}")
    games = runs[0]["test games"]
    what = f"textworld, {games} unseen games, 3 seeds: share right of what changes / all"
    return [(what, "; ".join(cells))]


EARLIER_REWARD = "the earlier reward 1 - (MAE + LPIPS) / 2"


VIDEO_CLAIMS = (("lpips", "lowers", -1.0), ("ssim", "raises", 1.0), ("psnr", "raises", 1.0))
"""Shown together, so decided together: a figure, what RLVR is to do to it, and the better sign."""


def video(record):
    seeds = counted(record["seeds"], "seed")
    about = f"video on the tabletop, 7 frames ahead, {seeds}, with {EARLIER_REWARD}"
    rows = [
        (f"{about}: RLVR {what} {name.upper()}", outcome(claim))
        for (name, what, _), claim in zip(VIDEO_CLAIMS, video_claims(record), strict=True)
    ]
    still = record["baselines"]["still"]
    after = {name: record["all"][name]["after"] for name in ("lpips", "ssim", "psnr")}
    beside = ", ".join(
        f"{name.upper()} {mean:.3f} (the last frame for ever: {still[name]['mean']:.3f})"
        for name, mean in after.items()
    )
    return [*rows, ("the same, after RLVR", beside)]


def video_claims(record):
    """What RLVR improves, seed by seed. `fit_seed`: all seeds go on from one fitted model."""
    seeds = record["seeds"]
    differences = [
        [sign * seed["figures"][name]["difference"]["mean"] for seed in seeds]
        for name, _, sign in VIDEO_CLAIMS
    ]
    bases = [ONE_BASE] * len(seeds) if "fit_seed" in record else None
    return decide_family(differences, bases=bases)


CONTACT = "video fitted to films of contact"


def contact(record):
    """RLVR with today's reward, and policies in the model before it and after."""
    ranked = {
        when: ", ".join(
            low_high(part["pearson"]) for name, part in record.items() if name.startswith(start)
        )
        for when, start in (
            ("before RLVR, seed by seed", "policies contact fitted push"),
            ("after, seed 0", "policies contact model push"),
        )
    }
    return [
        (
            f"{CONTACT}, {TODAYS_REWARD}: reward on held-out clips; LPIPS (intervals over clips)",
            "; ".join(rewards_of(record["arm contact seed 0"])),
        ),
        (
            f"{CONTACT}: eight policies of push, Pearson r",
            "; ".join(f"{when} {cell}" for when, cell in ranked.items()),
        ),
    ]


TODAYS_REWARD = "RLVR with today's reward, seed 0"


def rewards_of(arm):
    """What RLVR does to its reward and to LPIPS, with intervals over clips."""
    cells = []
    for name in ("value", "lpips"):
        before, after = (arm["means"][when][name] for when in ("before", "after"))
        change = spread(arm["after_minus_before"][name], sign="+")
        cells.append(f"{before:.3f} -> {after:.3f} ({change})")
    return cells


def low_high(found):
    return f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def listening(record):
    worse = [row["figures"]["psnr"]["difference"] for row in record["seeds"]]
    cell = ", ".join(interval(difference, digits=2, sign="+") for difference in worse)
    return [("the same clips told the actions of other clips: PSNR, seed by seed", cell)]


def ladder(record):
    tasks = {
        task: [row["pearson"]["value"] for row in record["runs"] if row["task"] == task]
        for task in ("push", "reach")
    }
    cell = "; ".join(
        f"{task} {', '.join(f'{value:.2f}' for value in values)}" for task, values in tasks.items()
    )
    pooled = ", ".join(
        f"{value:.2f}" for value in record["pearson_over_both_tasks"].values() if value is not None
    )
    return [
        (
            "eight policies in the video model and in the simulator: Pearson r, seed by seed",
            f"{cell}; both {pooled}",
        )
    ]


def arena(record):
    found = record["arena"]
    cell = f"script {found['oracle']}, null agent {found['null']} of {found['tasks']}; "
    return [
        (
            "mini-arena of three real applications",
            f"{cell}reset {found['reset_seconds_median']:.2f} s (median)",
        )
    ]


def judge(record):
    """Means over seeds; one seed shows its interval over attempts."""
    seeds, sets = list(record["seeds"].values()), ("test", "held_out_families")

    def mean(model, figure, digits=3):
        values = [[seed[model][name][figure] for seed in seeds] for name in sets]
        return [f"{sum(each) / len(each):.{digits}f}" for each in values]

    def right(model):
        parts = mean(model, "accuracy")
        if len(seeds) == 1:
            rows = [seeds[0][model][name] for name in sets]
            pairs = zip(parts, rows, strict=True)
            parts = [f"{part} [{row['low']:.3f}, {row['high']:.3f}]" for part, row in pairs]
        return "; ".join(parts)

    def turned(kind):
        flips = [seed[kind] for seed in record["flips"].values()]
        asked, by_claims, by_harmless = (
            sum(each[name] for each in flips) for name in ("asked", "turned", "by_harmless")
        )
        return f"{by_claims} of {asked} (harmless lines {by_harmless})"

    n = seeds[0]["fitted"]["test"]["n"]
    guess = "; ".join(mean("fitted", "majority_of_family"))
    missed = "; ".join(mean("fitted", "false_success", digits=2))
    kinds = ("claims_of_success_on_failures", "claims_of_failure_on_successes")
    fitted = f"SmolLM2 as an outcome model, fitted to {record['settings']['attempts']} attempts"
    return [
        (
            f"{fitted} on MiniWoB++: right about other instances of its families; about five "
            f"families never seen (n = {n} each, seeds: {len(seeds)})",
            f"{right('fitted')} (before: {right('untrained')}; what is more common: {guess}); "
            f"failures that it calls a success: {missed}",
        ),
        (
            "the same model, pages with a line that claims the opposite of the truth: verdicts "
            "turned on failures; on successes",
            "; ".join(map(turned, kinds)),
        ),
    ]


GATES = {
    "trust_gate": partial(gate, world="frozen_lake", certificate="lake"),
    "trust_gate_sokoban": partial(gate, world="sokoban"),
    "trust_gate_elevator": partial(gate, world="the elevator"),
}
REPRODUCTIONS = (
    "spa_frozen_lake",
    "spa_sokoban",
    "spa_sokoban_one_base",
    "spa_sudoku",
    "webrl_sokoban",
    "webrl_miniwob",
    "webrl_miniwob_unseen",
    "webrl_smollm2_miniwob",
    "webrl_smollm2_arena",
)
PARTS = {
    "foundation": foundation,
    "engine": engine,
    "teaching": teaching,
    "engine_verl": verl,
    "engine_matrix": engine_rows.matrix,
    "engine_vllm": engine_rows.vllm,
    "engine_fsdp2": engine_rows.ranks,
    "engine_async": engine_rows.asynchronous,
    "engine_memory": engine_rows.memory,
    "engine_tinker": engine_rows.tinker,
    "trust_coverage": coverage,
    **GATES,
    **{name: partial(arms, name=name) for name in REPRODUCTIONS},
    "bytesized32_baselines": game_baselines,
    **{name: partial(text_games, name=name) for name in SAID},
    "textworld_unseen_games": unseen_games,
    "video_model": video,
    "video_listens": listening,
    "video_policies": ladder,
    "video_contact": contact,
    "web_arena": arena,
    "webrl_browsers": browsers,
    "web_miniwob": miniwob,
    "web_pages": pages,
    "web_mpc": look_ahead,
    "web_plan_parts": plan_parts,
    "webrl_pages": web_test_pages,
    "webrl_judge": judge,
    "serve_load": serve,
    "viewer": viewer,
}
"""Result files and the rows made from each; a file that does not exist gives no rows."""
SECTIONS = {
    "Worlds and data": ("foundation",),
    "Engine": (
        "engine",
        "teaching",
        "engine_verl",
        "engine_matrix",
        "engine_vllm",
        "engine_fsdp2",
        "engine_async",
        "engine_memory",
        "engine_tinker",
    ),
    "Trust": ("trust_coverage", "trust_gate", "trust_gate_sokoban", "trust_gate_elevator"),
    "SPA": ("spa_frozen_lake", "spa_sokoban", "spa_sokoban_one_base", "spa_sudoku"),
    "Text games": (
        "bytesized32_baselines",
        "bytesized32_tiny",
        "bytesized32_smollm2",
        "textworld_unseen_games",
    ),
    "Video": ("video_model", "video_listens", "video_policies", "video_contact"),
    "Web": (
        "web_arena",
        "web_miniwob",
        "webrl_browsers",
        "web_pages",
        "web_mpc",
        "web_plan_parts",
    ),
    "WebRL": (
        "webrl_sokoban",
        "webrl_miniwob",
        "webrl_miniwob_unseen",
        "webrl_pages",
        "webrl_smollm2_miniwob",
        "webrl_smollm2_arena",
        "webrl_judge",
    ),
    "Served and shown": ("serve_load", "viewer"),
}
