"""OpenAI's chat completions, from the sampler that also predicts.

A model with a chat template is prompted through it. One without (a model trained from scratch) gets
the contents of the messages one after another, as they are: that is its own format,
`<obs>...<end><act>Up<end><obs>`.
    reply = await complete_chat(inference, {"messages": [{"role": "user", "content": "hello"}]})
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from terrella.codecs.chat_template import fixed_date
from terrella.core.tokens import Sampled, TokenRequest
from terrella.serve.inference import InferenceService
from terrella.serve.wire import RequestError, read_float, read_int, read_text

ROLES = ("system", "user", "assistant", "developer")
MAX_MESSAGES = 256
MAX_STOPS, MAX_STOP_TEXT = 4, 200
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""What clients may ask for and is not done here, with the values that ask for nothing."""


def read_messages(body: Mapping[str, Any], max_text: int) -> list[dict[str, str]]:
    """Read messages of text; parts of other kinds are refused, not dropped."""
    rows = body.get("messages")
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_MESSAGES:
        raise RequestError(422, f"`messages` must be a list of 1 to {MAX_MESSAGES} messages")
    messages = []
    for row in rows:
        if not isinstance(row, dict) or row.get("role") not in ROLES:
            raise RequestError(422, f"a message has a `role` ({', '.join(ROLES)}) and a `content`")
        messages.append({"role": row["role"], "content": read_text(row, "content", max_text)})
    return messages


def read_stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts at which the reply is cut off: one, or a few."""
    stops = body.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise RequestError(422, f"`stop` must be a text, or a list of at most {MAX_STOPS}")
    if not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_TEXT for stop in stops):
        raise RequestError(422, f"a text in `stop` has 1 to {MAX_STOP_TEXT} characters")
    return tuple(stops)


def refuse_other_sampling(body: Mapping[str, Any]) -> None:
    """Refuse what would be sampled in another way than is asked for."""
    for key, neutral in NEUTRAL.items():
        if key in body and body[key] not in neutral:
            raise RequestError(422, f"`{key}` is not supported here: leave it out")


def prompt_ids(inference: InferenceService, messages: list[dict[str, str]]) -> list[int]:
    """Return the token ids that the model continues."""
    tokenizer = inference.tokenizer
    if tokenizer is None:
        raise RequestError(501, "this model does not complete text", "NOT_SUPPORTED")
    if getattr(tokenizer, "chat_template", None):
        prompt = _templated(tokenizer, messages)
    else:
        prompt = "".join(message["content"] for message in messages)
    return list(tokenizer.encode(prompt, add_special_tokens=False))


def _templated(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """The messages in the model's template, which may refuse them: roles must alternate, say."""
    from jinja2 import TemplateError

    try:
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, strftime_now=fixed_date
        )
    except TemplateError as error:
        raise RequestError(422, f"the model's chat template refuses: {str(error)[:300]}") from error
    return str(prompt)


async def complete_chat(inference: InferenceService, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return one completion, as a whole."""
    limits = inference.limits
    # Clients send null for what is not given.
    body = {key: value for key, value in body.items() if value is not None}
    messages = read_messages(body, limits.max_text)
    if read_int(body, "n", 1, low=1, high=128) != 1:
        raise RequestError(422, "one completion at a time: ask again with another `seed`")
    refuse_other_sampling(body)
    stops = read_stops(body)
    inference.check_text(sum(len(message["content"]) for message in messages))
    with inference.waiting.place():
        ids = await inference.tokenize(
            inference.tokenizing, lambda: prompt_ids(inference, messages)
        )
        inference.check_prompt(ids)
        request = _request(inference, body, ids)
        return _reply(inference, request, await inference.complete(request), stops)


def _request(
    inference: InferenceService, body: Mapping[str, Any], ids: Sequence[int]
) -> TokenRequest:
    key = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    return TokenRequest(
        prompt_ids=tuple(ids),
        max_new_tokens=read_int(body, key, 128, low=1, high=inference.limits.max_new_tokens),
        seed=read_int(body, "seed", secrets.randbelow(2**31), low=0, high=2**62),
        temperature=read_float(body, "temperature", 1.0, low=0.0, high=2.0),
        stop_ids=_stop_ids(inference),
    )


def _stop_ids(inference: InferenceService) -> tuple[int, ...]:
    ends = (*inference.certified_model.stop_ids, inference.tokenizer.eos_token_id)
    return tuple(dict.fromkeys(end for end in ends if end is not None))


def _reply(
    inference: InferenceService, request: TokenRequest, sampled: Sampled, stops: Sequence[str]
) -> dict[str, Any]:
    text_ids = sampled.token_ids[:-1] if sampled.stopped else sampled.token_ids
    text = inference.tokenizer.decode(list(text_ids))
    ends = [text.index(stop) for stop in stops if stop in text]
    message = {"role": "assistant", "content": text[: min(ends)] if ends else text}
    reason = "stop" if sampled.stopped or ends else "length"
    prompt_tokens = len(request.prompt_ids)
    completion_tokens = len(sampled.token_ids)
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": inference.name,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


async def stream_chat(reply: Mapping[str, Any]) -> AsyncIterator[str]:
    """Send a reply as server-sent events: one with the text, one with the finish reason."""
    (choice,) = reply["choices"]
    head = {
        "id": reply["id"],
        "object": "chat.completion.chunk",
        "created": reply["created"],
        "model": reply["model"],
    }
    text = {"role": "assistant", "content": choice["message"]["content"]}
    for delta, reason in ((text, None), ({}, choice["finish_reason"])):
        chunk = {"index": 0, "delta": delta, "finish_reason": reason}
        yield f"data: {json.dumps({**head, 'choices': [chunk]})}\n\n"
    yield "data: [DONE]\n\n"
