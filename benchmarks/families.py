"""The claims of a published table, decided together.

A recipe states its claims, and a table shows them. Seeds that share a base model (or a world model)
repeat only what comes after it: they count as one.
    decide_family([[0.3, 0.1, 0.2]], bases=["a", "a", "a"])[0]["verdict"]  # undecided: one base
"""

import math
from dataclasses import asdict

from common import mean_row

from terrella.core.claims import MARGIN, decide, pass_grid, threshold

UNSEEN_FAMILIES = "unseen families"
REMEDIES = ("rehearse", "near_imitation")
"""Arms of `webrl_miniwob_unseen`."""
ONE_BASE = "one base for all seeds"


def decide_family(differences, *, not_below=None, grids=None, margin=MARGIN, bases=None, looks=1):
    """Decide all claims of a table together; a claim is the differences of its seeds.

    `bases` names the base of each seed: its seeds are averaged, and bases are the unit. The row
    still shows every seed.
    """
    not_below = not_below or [False] * len(differences)
    decided = decide(
        [by_base(values, bases) for values in differences],
        thresholds=[threshold(not_below=each, margin=margin) for each in not_below],
        grids=grids or [0.0] * len(differences),
        looks=looks,
    )
    rows = [asdict(claim) for claim in decided]
    if bases is None:
        return rows
    return [
        {**row, "per_seed": list(values), "bases": len(set(bases[: len(values)])), **spread}
        for row, values in zip(rows, differences, strict=True)
        for spread in [mean_row(values) if values else {}]
    ]


def by_base(values, bases):
    """The mean of each base's seeds; the values themselves where each seed has its own base."""
    if bases is None:
        return values
    groups = {}
    for base, value in zip(bases, values, strict=False):
        groups.setdefault(base, []).append(value)
    return [math.fsum(group) / len(group) for group in groups.values()]


def decide_table(record):
    """The claims of a comparison from their differences seed by seed."""
    claims = record["claims"]
    seeds = max((len(claim["per_seed"]) for claim in claims), default=0)
    decided = decide_family(
        [claim["per_seed"] for claim in claims],
        not_below=[claim["not_below"] for claim in claims],
        grids=[claim_grid(record, claim) for claim in claims],
        margin=record["margin"],
        looks=record.get("looks", 1),
        bases=[ONE_BASE] * seeds if record.get("one_base") else None,
    )
    return [{**claim, **row} for claim, row in zip(claims, decided, strict=True)]


def claim_grid(record, claim):
    """The step between two scores; an arm's largest k is as many samples as it had."""
    samples = [
        max(int(key.removeprefix("pass@")) for key in record["arms"][arm] if "pass@" in key)
        for arm in (claim["better"], claim["worse"])
        if arm in record["arms"]
    ]
    if not claim["n"]:
        return 0.0
    return pass_grid(instances=claim["n"], samples=min(samples), k=claim["k"])


def unseen_claims(record):
    """WebRL's claims about families that were neither shown nor practised.

    Practice does no harm, and each remedy does better than practice without it. None where they
    were not tested.
    """
    unseen = record.get("unseen_families", {})
    remedies = [arm for arm in REMEDIES if arm in record["arms"]]
    stated = [(arm, "webrl_paper", False) for arm in remedies]
    stated += [(arm, "sft", True) for arm in remedies or ["webrl_paper"]]
    return [
        unseen_claim(record, better, worse, not_below)
        for better, worse, not_below in stated
        if unseen.get(better) and unseen.get(worse)
    ]


def unseen_claim(record, better, worse, not_below):
    unseen = record["unseen_families"]
    pairs = zip(unseen[better], unseen[worse], strict=False)
    per_seed = [one - other for one, other in pairs]
    return {
        "better": better,
        "worse": worse,
        "k": 1,
        "not_below": not_below,
        "on": UNSEEN_FAMILIES,
        "seeds": len(per_seed),
        "n": record["unseen_attempts"],
        "per_seed": per_seed,
    }
