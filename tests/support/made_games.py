"""Packed games in the official format of ByteSized32: whole states in every row."""


def official_rows(game):
    """Yield the split and the row of each transition in the official format: whole states."""
    for row in game["transitions"]:
        state = game["states"][row["s"]]
        objects = {obj["uuid"]: obj for obj in state["objects"]}
        acted = patched(objects, row["act"])
        ticked = patched(acted, row["tick"])
        yield (
            row["split"],
            {
                "game": game["game"],
                "state_id": str(row["id"]),
                "current_score_state": state["score"],
                "next_score_state": row["score"],
                "current_state": official_state(state, objects, state["last_action"]),
                "action_state": official_state(state, acted, row["a"]),
                "tick_state": official_state(state, ticked, row["a"]),
            },
        )


def patched(objects, patch):
    remaining = {uuid: obj for uuid, obj in objects.items() if uuid not in patch["removed"]}
    return remaining | {obj["uuid"]: obj for obj in patch["modified"]}


def official_state(state, objects, last_action):
    return {
        "taskDesc": state["task"],
        "max_UUID": state["max_uuid"],
        "look": "not used",
        "inventory": "",
        "lastAction": last_action,
        "objects": list(reversed(list(objects.values()))),
    }
