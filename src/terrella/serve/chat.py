"""Completions as OpenAI's clients ask for them, from the sampler that also predicts.

A model with a chat template is spoken to through it. One without (ours from scratch) is given the contents one after
another, as they are: that is its own format, `<obs>...<end><act>Up<end><obs>`.
    reply = await complete_chat(oracle, {"messages": [{"role": "user", "content": "hello"}]})
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from terrella.core.protocols import TokenRequest
from terrella.serve.oracle import Oracle, in_thread
from terrella.serve.wire import RequestError, read_number, read_text, read_whole

ROLES = ("system", "user", "assistant", "developer")
MOST_MESSAGES = 256
MOST_PROMPT = 8192
"""Tokens."""


def read_messages(body: Mapping[str, Any], most_text: int) -> list[dict[str, str]]:
    """Messages of text; parts of other kinds are refused, not dropped."""
    rows = body.get("messages")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_MESSAGES:
        raise RequestError(422, f"`messages` must be a list of 1 to {MOST_MESSAGES} messages")
    found = []
    for row in rows:
        if not isinstance(row, dict) or row.get("role") not in ROLES:
            raise RequestError(422, f"a message has a `role` ({', '.join(ROLES)}) and a `content`")
        found.append({"role": row["role"], "content": read_text(row, "content", most_text)})
    return found


def prompt_ids(oracle: Oracle, messages: list[dict[str, str]]) -> list[int]:
    """The ids that the model continues."""
    tokenizer = oracle.tokenizer
    if tokenizer is None:
        raise RequestError(501, "this model does not complete text", "NOT_SUPPORTED")
    if getattr(tokenizer, "chat_template", None):
        asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(tokenizer.encode(asked, add_special_tokens=False))
    return list(tokenizer.encode("".join(row["content"] for row in messages), add_special_tokens=False))


async def complete_chat(oracle: Oracle, body: Mapping[str, Any]) -> dict[str, Any]:
    """One completion, whole."""
    limits = oracle.limits
    body = {key: value for key, value in body.items() if value is not None}  # null is how clients say "not given"
    messages = read_messages(body, limits.max_text)
    if read_whole(body, "n", 1, low=1, high=128) != 1:
        raise RequestError(422, "one completion at a time: ask again with another `seed`")
    ids = await in_thread(None, lambda: prompt_ids(oracle, messages))
    if not 0 < len(ids) <= MOST_PROMPT:
        raise RequestError(422, f"the prompt has {len(ids)} tokens; 1 to {MOST_PROMPT} are served")
    most = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    request = TokenRequest(
        prompt_ids=tuple(ids), max_new_tokens=read_whole(body, most, 128, low=1, high=limits.max_new_tokens),
        seed=read_whole(body, "seed", secrets.randbelow(2**31), low=0, high=2**62),
        temperature=read_number(body, "temperature", 1.0, low=0.0, high=2.0), stop_ids=_stop_ids(oracle),
    )  # fmt: skip
    sampled = await oracle.complete(request)
    written = sampled.token_ids[:-1] if sampled.stopped else sampled.token_ids
    return _reply(oracle, oracle.tokenizer.decode(list(written)), len(ids), len(sampled.token_ids), sampled.stopped)


def _stop_ids(oracle: Oracle) -> tuple[int, ...]:
    codec = getattr(oracle.imagination.assessor.model, "codec", None)
    ends = (*getattr(codec, "stop_ids", ()), oracle.tokenizer.eos_token_id)
    return tuple(dict.fromkeys(end for end in ends if end is not None))


def _reply(oracle: Oracle, text: str, prompt: int, written: int, stopped: bool) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}", "object": "chat.completion", "created": int(time.time()),
        "model": oracle.name,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop" if stopped else "length"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }  # fmt: skip


async def stream_chat(reply: Mapping[str, Any]) -> AsyncIterator[str]:
    """The same reply as server-sent events: one with the text, one with the reason it ended."""
    (choice,) = reply["choices"]
    head = {"id": reply["id"], "object": "chat.completion.chunk", "created": reply["created"], "model": reply["model"]}
    for delta, reason in (
        ({"role": "assistant", "content": choice["message"]["content"]}, None),
        ({}, choice["finish_reason"]),
    ):
        yield f"data: {json.dumps({**head, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': reason}]})}\n\n"
    yield "data: [DONE]\n\n"
