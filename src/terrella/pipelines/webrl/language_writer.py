"""The actor as a writer: a question to it, outside of any episode.

with agent.writer(phase.previous.actor, reply_tokens=512) as writer:
    writer.complete("Write a task.", seed=0)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from terrella.codecs.chat_template import ChatTemplate, user
from terrella.codecs.web_prompt import WebCodec
from terrella.core.protocols import Sampler
from terrella.core.tokens import Sampled, TokenRequest


@dataclass(frozen=True)
class LanguageWriter:
    """See `agent.Writer`: a question to the actor, outside of any episode."""

    sampler: Sampler
    codec: WebCodec
    reply_tokens: int

    def complete(self, prompt: str, seed: int) -> str:
        template = self.codec.template
        asked = (
            template.prompt([user(prompt)])
            if isinstance(template, ChatTemplate)
            else tuple(template.write(prompt))
        )
        request = TokenRequest(
            prompt_ids=asked,
            max_new_tokens=self.reply_tokens,
            seed=seed,
            stop_ids=self.codec.stop_ids,
        )
        sampled = asyncio.run(_sample(self.sampler, request))
        return template.text(sampled.token_ids)


async def _sample(sampler: Sampler, request: TokenRequest) -> Sampled:
    return await sampler.sample(request)
