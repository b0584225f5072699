"""Results that do not name the commit that made them, or name a script that moved.

without_commit()  ->  ["spa_sokoban", "engine: sizes", ...]
"""

import common


def without_commit():
    """Results made before commits were recorded; of those made in parts, the parts."""
    found = []
    for path in sorted(common.RESULTS.glob("*.json")):
        record = common.read_results(path.stem)
        parts = {name: part for name, part in record.items() if has_provenance(part)}
        if record.get("commit") or not record:
            continue
        missing = [name for name, part in parts.items() if not part.get("commit")]
        if parts and len(missing) < len(parts):
            found += [f"{path.stem}: {name}" for name in missing]
        else:
            found.append(path.stem)
    return found


def naming_moved_scripts():
    """Files whose commands are of a script that was in `results/` when they were written."""
    paths = sorted(common.RESULTS.glob("*.json"))
    return [path.stem for path in paths if "results/measure_" in path.read_text("utf-8")]


def has_provenance(part):
    """Whether this is a part that a command of its own made."""
    return isinstance(part, dict) and ("command" in part or "commit" in part)
