"""The README's table: the first claim of every recipe that was run, won or lost.

The rule leaves nothing to choose: a recipe is in `FIRST_CLAIMS`, or `NOT_RUN` says why it has no
claim yet; a test compares both with the recipes that exist. Each row has its setting, and the
setting of the paper beside it.
    lines = first_claim_lines()
"""

from dataclasses import dataclass

import common
from families import decide_family
from table_rows import (
    EARLIER_REWARD,
    SMALL_POLICY,
    TODAYS_REWARD,
    beside_coverage,
    outcome,
    rewards_of,
    statement,
    text_claims,
    text_statement,
    video_claims,
)
from table_rows import teaching as teaching_rows

from terrella.core.claims import LEAST_SEEDS, Decision
from terrella.recipes import find_recipe

RULE = (
    "The first claim of every recipe that was run, won or lost. It `holds`, `fails` (the "
    "opposite is shown) or is `undecided`, by one of two bars. A comparison is tested: seeds of"
    " the whole arm (or models) are the unit, instances are paired inside a seed, one-sided "
    "t-test at 0.025 with Holm's correction for the claims of its table, intervals 95% over "
    "seeds. A recipe that teaches has a bar that was stated before. It holds if each of ten "
    "fresh seeds passes; one seed below it, and it fails, and no more are run. Fewer than three"
    " seeds or models show nothing, and seeds that share a base or a model count as one. Few "
    "seeds cannot show a rare collapse: the worst seed is in the row. All claims, arm by arm, "
    "and every other number: [docs/numbers.md](docs/numbers.md). Words such as `several alike` "
    "stand in the [glossary](docs/glossary.md)."
)
NO_PAPER = "no paper"


@dataclass(frozen=True)
class FirstClaim:
    """What one row says, and where it comes from."""

    claim: str
    measured: str
    setting: str
    paper: str = NO_PAPER


def reproduction(name, setting):
    record = common.read_results(name)
    claim = record["claims"][0]
    paper = "; ".join(f"{key}: {value}" for key, value in find_recipe(name)().paper.items())
    looks = record.get("looks", 1)
    return FirstClaim(statement(claim), outcome(claim, looks=looks), setting, paper or NO_PAPER)


TINY = "0.3M parameters from scratch"


def view_alone():
    """RL without self-play on what SPA sees: how much of its gain the view is."""
    arms = common.read_results("spa_sokoban_one_base")["arms"]
    state, vanilla, spa = (
        f"{arms[arm]['pass@1']['mean']:.3f}" for arm in ("state", "vanilla", "spa")
    )
    seeds = len(arms["state"]["pass@1"]["per_seed"])
    told = f"on SPA's view alone RL has {state}, beside vanilla {vanilla} and SPA {spa}"
    return f"; {told} ({seeds} seeds that share another base)"


def teaching(name, setting):
    """The stated bar on ten fresh seeds; undecided with fewer."""
    record = common.read_results("teaching")
    ((_, measured),) = teaching_rows({**record, "recipes": {name: record["recipes"][name]}})
    seeds = record["recipes"][name]["seeds"].values()
    enough = "holds" if len(seeds) >= record["least_seeds"] else "undecided"
    verdict = enough if all(seed["held"] for seed in seeds) else "fails"
    return FirstClaim(record["bar"], f"{verdict}: {measured}", setting)


def coverage(name, setting):
    record = common.read_results("trust_coverage")
    world = record["worlds"][name]
    measured = f"{outcome(world['claim'], 'model')}; {beside_coverage(name, world)}"
    promised = f"{record['level']:g}"
    claim = f"coverage of prediction sets above the promised {promised}, worst policy of each model"
    return FirstClaim(claim, measured, setting)


def certificate(name, setting):
    """For the model that is under-trained on purpose: it must be refused."""
    refused = [not common.read_results("trust_certificates")["models"][name]["certified"]]
    verdict = Decision.HOLDS if all(refused) else Decision.FAILS
    if all(refused) and len(refused) < LEAST_SEEDS:
        verdict = Decision.UNDECIDED
    measured = f"{verdict}: {sum(refused)} of {len(refused)} model refused"
    return FirstClaim("is refused a certificate", measured, setting)


RLVR_WORLD = "R1-Distill-Qwen-1.5B, changed rows: SFT 24.21, RLVR 33.14 (no seeds)"


def text_game(name, setting):
    """The recipe's own first claim, with its other ones in the correction."""
    claim = text_claims(common.read_results(name), name)[0]
    return FirstClaim(text_statement(claim), outcome(claim), setting, RLVR_WORLD)


def textworld():
    record = common.read_results("textworld_unseen_games")
    runs = [record[f"seed {seed}, other games"]["accuracy"]["overall"] for seed in range(3)]
    differences = [run["model"]["share"] - run["verb_habit"]["share"] for run in runs]
    grid = max(1 / run["model"]["n"] for run in runs)
    (claim,) = decide_family([differences], grids=[grid])
    return FirstClaim(
        "share right above a habit per verb, all questions",
        outcome(claim),
        f"TextWorld, {TINY}, SFT alone, 34 unseen games",
    )


def video():
    claim = video_claims(common.read_results("video_model"))[0]
    today = f"reward {rewards_of(common.read_results('video_contact')['arm contact seed 0'])[0]}"
    return FirstClaim(
        "RLVR lowers LPIPS, 7 frames ahead",
        outcome(claim),
        "tabletop in MuJoCo, tokenizer and transformer from scratch, 40 GRPO steps; one fit for "
        f"all seeds; with {EARLIER_REWARD}; {TODAYS_REWARD} on films of contact: {today}",
        "RT-1 robot videos: LPIPS 0.148 before RLVR, 0.134 after (no seeds)",
    )


def page_model():
    record = common.read_results("web_pages")["pages --seed 0"]
    change = record["rlvr"]["changed"]["f1"]["mean"] - record["sft"]["changed"]["f1"]["mean"]
    (claim,) = decide_family([[change]])
    setting = "pages of unseen MiniWoB++ families, small model from scratch"
    return FirstClaim("RLVR above SFT, F1 of what changes", outcome(claim), setting)


def web_policy():
    parts = common.read_results("web_plan_parts")
    claim = parts[SMALL_POLICY]["claims"][0]
    setting = (
        "MiniWoB++, held-out seeds of its families, small policy and page model, "
        f"n = {claim['n']}, the same for all seeds"
    )
    return FirstClaim("looking one step ahead above not looking", outcome(claim), setting)


LAKE = "frozen_lake 3x3, firm ice"
FIRST_CLAIMS = {
    "tiny_counter": lambda: teaching("tiny_counter", f"counter, 10 goals, {TINY}, 120 GRPO steps"),
    "tiny_lake_model": lambda: teaching("tiny_lake_model", f"{LAKE}, {TINY}, 100 GRPO steps"),
    "tiny_lake_agent": lambda: teaching(
        "tiny_lake_agent",
        f"{LAKE}, 10% holes, {TINY}, 100 GRPO steps after 64,000 episodes of warm-up",
    ),
    "lake_model": lambda: coverage("lake", f"{LAKE}, {TINY}, 12,000 env steps"),
    "counter_model": lambda: coverage("counter", f"counter, {TINY}, 12,000 env steps"),
    "sokoban_model": lambda: coverage("sokoban", f"sokoban 6x6, {TINY}, 24,000 env steps"),
    "lake_slip_model": lambda: coverage(
        "lake_slip", f"frozen_lake 3x3, a third of the steps slip, {TINY}, 24,000 env steps"
    ),
    "lake_thin_model": lambda: certificate("lake_thin", f"{LAKE}, {TINY}, 800 env steps"),
    "spa_frozen_lake": lambda: reproduction(
        "spa_frozen_lake",
        f"{LAKE}, 5 steps, {TINY}, 110,000 env steps; vanilla sees the raw board",
    ),
    "spa_sokoban": lambda: reproduction(
        "spa_sokoban",
        f"sokoban 6x6, rooms of at most 3 steps, {TINY}, 140,000 env steps; vanilla sees the raw "
        f"board{view_alone()}",
    ),
    "spa_sudoku": lambda: reproduction(
        "spa_sudoku", f"sudoku 4x4, 2 blanks, {TINY}, 60,000 env steps"
    ),
    "bytesized32_tiny": lambda: text_game(
        "bytesized32_tiny",
        "ByteSized32, 1.2M parameters from scratch, a quarter of the SFT data, 100 GRPO steps; one "
        "base for all seeds",
    ),
    "bytesized32_smollm2": lambda: text_game(
        "bytesized32_smollm2", "ByteSized32, eight unseen games, SmolLM2-135M-Instruct"
    ),
    "textworld_model": textworld,
    "video_table": video,
    "page_model": page_model,
    "web_policy": web_policy,
    "webrl_sokoban": lambda: reproduction(
        "webrl_sokoban", "sokoban 5x5 by families of rooms, pointer model from scratch"
    ),
    "webrl_miniwob": lambda: reproduction(
        "webrl_miniwob", "13 MiniWoB++ families in Chromium, pointer model from scratch"
    ),
    "webrl_smollm2_miniwob": lambda: reproduction(
        "webrl_smollm2_miniwob", "13 MiniWoB++ families in Chromium, SmolLM2-135M"
    ),
}
"""In the order of the table."""
NOT_RUN = {
    "tiny_mixed": "one seed, in docs/recipes.md",
    "gated_lake_agent": "one seed (results/trust_gated_agent.json)",
    "textworld_smollm2": "not measured yet",
    "webrl_miniwob_unseen": "being measured",
    "spa_smollm2_lake": "being measured",
    "smollm2_counter_model": "one seed, in docs/real_model.md",
    "pages_smollm2_miniwob": "one seed, in docs/page_models.md",
    "pages_smollm2_arena": "not measured yet",
    "web_policy_smollm2": "not measured yet",
    "webrl_smollm2_miniwob_run": "one arm of webrl_smollm2_miniwob",
    "webrl_smollm2_arena": "one arm of two with seed 0: results/jobs",
    "webrl_smollm2_arena_run": "one arm of webrl_smollm2_arena",
    "video_quick": "a test that every part runs",
    "webrl_sokoban_run": "one arm of webrl_sokoban",
    "webrl_miniwob_run": "one arm of webrl_miniwob",
    "webrl_textworld_run": "a test that it runs",
}
"""Recipes without a claim yet. Those whose `expect` says "never run here" need no entry."""


def first_claim_lines():
    """The rule, then a row for each recipe."""
    lines = [RULE, "", "| recipe: claim | measured | setting | the paper's setting |"]
    lines.append("|---|---|---|---|")
    for name, make in FIRST_CLAIMS.items():
        row = make()
        cells = (f"`{name}`: {row.claim}", row.measured, row.setting, row.paper)
        lines.append(f"| {' | '.join(cells)} |")
    return lines
