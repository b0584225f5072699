"""Examples about one state, which is read once: what their prompts have in common is the prompt.

examples = share_prompt(examples_of_one_page)  # one item of `engine.sft`
"""

from __future__ import annotations

from collections.abc import Sequence

from terrella.core.tokens import TrainExample


def share_prompt(examples: Sequence[TrainExample]) -> list[TrainExample]:
    """The same examples with one prompt; what each has of its own is no target."""
    shared = _shared_length([example.prompt_ids for example in examples])
    made = []
    for example in examples:
        own = tuple(example.prompt_ids[shared:])
        made.append(
            TrainExample(
                prompt_ids=tuple(example.prompt_ids[:shared]),
                completion_ids=(*own, *example.completion_ids),
                mask=((False,) * len(own)) + tuple(example.mask),
            )
        )
    return made


def _shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many first tokens all prompts share; each keeps at least one token of its own."""
    shortest = min(map(len, prompts)) - 1
    for index in range(shortest):
        if len({prompt[index] for prompt in prompts}) > 1:
            return index
    return shortest
