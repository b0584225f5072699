"""The in-process sampler: continuous batching, cached sessions, shared prefills.

The model object is the trainer's own, so weights are never copied and never stale. The sample of a
request depends on its ids and its seed, not on the other requests in the batch. Requests with the
same prompt are computed once for as long as they sample the same tokens.
    sampler = LocalSampler(model)
    sampled = await sampler.sample(TokenRequest(prompt_ids=(1, 2), max_new_tokens=8, seed=1))
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from terrella.core.errors import ConfigError
from terrella.core.tokens import Sampled, TokenRequest
from terrella.engines.configs import LARGEST_MODEL
from terrella.engines.local.rows import Row, batches_of, common_prefix, is_long, next_piece
from terrella.engines.local.sample_tokens import sample_tokens
from terrella.engines.local.slot_cache import SlotCache
from terrella.models.device import default_device
from terrella.models.grouped_attention import use_grouped_attention

KEPT_BYTES = 2**25
"""A cache that is larger than this is freed when nothing is left to sample."""


def local_sampler(model: Any, **options: Any) -> LocalSampler:
    """A sampler for a model that no trainer holds, on this process's GPU if there is one.

    Models above `LARGEST_MODEL` are refused.
    """
    check_size(model)
    return LocalSampler(model.to(default_device()).eval(), **options)


def _positions(model: Any) -> int:
    """The longest sequence of a model; 0 if its config does not say."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 0))


def check_size(model: Any) -> None:
    """Refuse a model that is too large to be sampled in-process."""
    parameters = sum(weight.numel() for weight in model.parameters())
    if parameters > LARGEST_MODEL:
        raise ConfigError(
            "sampler",
            f"the model has {parameters / 1e6:.0f}M parameters, and the in-process sampler is for "
            f"up to {LARGEST_MODEL / 1e6:.0f}M",
            "set sampler=vllm",
        )


class LocalSampler:
    """Serves any number of concurrent requests; each step is one forward pass over all of them."""

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int = 512,
        beat: Callable[[], None] = lambda: None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`max_rows` bounds the sequences held at once, idle sessions included.

        `beat` is called after each pass. `device` and `dtype` are those of keys and values, by
        default those of the weights. A trainer says them, because it moves and casts its weights:
        under autocast the dtype is bf16.
        """
        self.model = model
        self.max_rows = max_rows
        self.context_tokens = _positions(model)
        self.beat = beat
        use_grouped_attention(model)
        weight = next(model.parameters())
        self.device = torch.device(device or weight.device)
        self.cache = SlotCache(model.config, device=self.device, dtype=dtype or weight.dtype)
        self.rows: list[Row] = []  # rows[i].slot == i
        self.sessions: dict[str, Row] = {}
        self.waiting: deque[tuple[TokenRequest, asyncio.Future[Sampled]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self.prefilled = 0
        """Prompt tokens read; a prompt that several requests share counts once."""
        self.decoded = 0
        """Tokens sampled."""
        self.passes = 0
        """Forward passes."""

    async def sample(self, request: TokenRequest) -> Sampled:
        """One continuation; concurrent calls share forward passes.

        A caller that is cancelled leaves the batch before the next pass.
        """
        done: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, done))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._serve())
        return await done

    def release(self, session: str) -> None:
        """Forget a session and free its slot."""
        row = self.sessions.pop(session, None)
        if row is not None and not row.busy:
            self._drop(row)
        elif row is not None:
            row.session = None
        if not self.rows and not self.waiting:
            self.cache.free()

    def forget(self) -> None:
        """Forget all sessions and free the cache. Call it before training and on new weights."""
        for session in list(self.sessions):
            self.release(session)
        if not self.rows:
            self.cache.free()

    async def _serve(self) -> None:
        try:
            while self.waiting or self._busy():
                # Callers that are ready to run can add requests before the next pass, which keeps
                # batches full.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                self._drop_cancelled()
                self._admit()
                if self._busy():
                    self._step()
            if not self.rows and self.cache.nbytes > KEPT_BYTES:
                self.cache.free()
        except Exception as error:  # noqa: BLE001  the callers that wait get it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Pass the error to all waiting requests, and drop all rows and sessions."""
        for done in [*(row.done for row in self._busy()), *(done for _, done in self.waiting)]:
            if not done.done():
                done.set_exception(error)
        self.rows, self.waiting = [], deque()
        self.sessions.clear()
        self.cache.free()

    # --- slots ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting requests a row; evict idle sessions when there is no room.

        Thousands may wait, so a pass looks only at those that could get a row.
        """
        next_ones = itertools.islice(self.waiting, self.max_rows)
        new = sum(request.session not in self.sessions for request, _ in next_ones)
        self.cache.reserve(min(len(self.rows) + new, self.max_rows), 1)
        while self.waiting and len(self._busy()) < self.max_rows:
            request, done = self.waiting.popleft()
            if done.cancelled():
                continue
            row = self.sessions.get(request.session) if request.session else None
            if row is None or row.busy:
                row = self._new_row(request, done)
            self._start(row, request, done)

    def _new_row(self, request: TokenRequest, done: asyncio.Future[Sampled]) -> Row:
        if len(self.rows) >= self.max_rows:
            # An evicted session is read again in full at its next turn.
            idle = next(row for row in self.rows if not row.busy)
            self.sessions.pop(idle.session or "", None)
            self._drop(idle)
        # A session whose row is busy gets a second one, which is forgotten after this request.
        session = None if request.session in self.sessions else request.session
        row = Row(slot=len(self.rows), session=session, request=request, done=done)
        self.rows.append(row)
        if session:
            self.sessions[session] = row
        return row

    def _start(self, row: Row, request: TokenRequest, done: asyncio.Future[Sampled]) -> None:
        """Start a request on a row: keep the cached prefix, read the rest."""
        common = common_prefix(row.cached, request.prompt_ids)
        # The last token is read again for its logits.
        common = min(common, len(request.prompt_ids) - 1)
        del row.cached[common:]
        row.request = request
        row.done = done
        row.busy = True
        row.pending = list(request.prompt_ids[common:])
        row.fresh = common == 0
        row.uniforms = np.random.default_rng(request.seed).random(request.max_new_tokens)
        row.tokens = []
        row.logprobs = []

    def _drop_cancelled(self) -> None:
        """Free the rows of callers that are gone."""
        for row in [row for row in self._busy() if row.done.cancelled()]:
            followers = [other for other in self._busy() if other.leader is row]
            for follower in followers:  # the first takes the lead, with a copy of the cache
                follower.leader = followers[0]
            if followers:
                self._detach(followers[0], row)
                followers[0].pending = list(row.pending)
            row.leader = None
            row.busy = False
            if row.session is None:
                self._drop(row)

    def _busy(self) -> list[Row]:
        return [row for row in self.rows if row.busy]

    def _to_front(self, rows: Sequence[Row]) -> list[Row]:
        """Move these rows to the first slots with the fewest swaps; return them in slot order."""
        wanted = {id(row) for row in rows}
        late = [row for row in rows if row.slot >= len(rows)]
        holes = [row for row in self.rows[: len(rows)] if id(row) not in wanted]
        for row, hole in zip(late, holes, strict=True):
            self._exchange(row, hole)
        return self.rows[: len(rows)]

    def _exchange(self, row: Row, other: Row) -> None:
        self.cache.swap(row.slot, other.slot, max(len(row.cached), len(other.cached)))
        self.rows[row.slot], self.rows[other.slot] = other, row
        row.slot, other.slot = other.slot, row.slot

    def _finish(self, row: Row, stopped: bool) -> None:
        if not row.done.done():
            row.done.set_result(
                Sampled(token_ids=tuple(row.tokens), logprobs=tuple(row.logprobs), stopped=stopped)
            )
        row.busy = False
        if row.session is None:
            self._drop(row)

    def _drop(self, row: Row) -> None:
        last = self.rows[-1]
        if last is not row:
            self.cache.copy(last.slot, row.slot, len(last.cached))
            self.rows[row.slot], last.slot = last, row.slot
        self.rows.pop()

    # --- passes -----------------------------------------------------------------------------------

    def _step(self) -> None:
        """Read new prompts (each distinct one once), then sample one token for every read row."""
        reading = [row for row in self._busy() if not row.tokens]
        if reading:
            self._follow(reading)
            self._read_ahead([row for row in reading if row.leader is None])
            self._read([row for row in reading if not is_long(row.leader or row)])
        rows = self._to_front([row for row in self._busy() if row.leader is None and row.tokens])
        if rows:
            logits = self._forward(rows)
            for row in rows:
                row.cached.extend(row.pending)
            self._write([row for row in self._busy() if row.tokens], rows, logits)

    def _follow(self, reading: list[Row]) -> None:
        """Let rows with the same uncached prompt follow a leader, which reads it once."""
        leaders: dict[tuple[int, ...], Row] = {}
        # One that has begun to read stays the leader.
        for row in sorted(reading, key=lambda row: -len(row.cached)):
            first = leaders.setdefault(row.request.prompt_ids, row) if row.fresh else row
            row.leader = None if first is row else first

    def _read_ahead(self, rows: list[Row]) -> None:
        """Read the next piece of one long prompt: the one with the least left to read."""
        long = [row for row in rows if is_long(row)]
        if not long:
            return
        row = min(long, key=lambda row: len(row.pending))
        row.pending, rest = next_piece(row.pending)
        self.prefilled += len(row.pending)
        self._forward(self._to_front([row]))
        row.cached.extend(row.pending)
        row.pending = rest

    def _read(self, reading: list[Row]) -> None:
        """Read the (rest of the) prompts of these rows, and sample their first tokens."""
        read: list[Row] = []
        logits: list[Tensor] = []
        computed = [row for row in reading if row.leader is None]
        by_length = sorted(computed, key=lambda row: len(row.pending))
        for rows in batches_of(by_length, on_cpu=self.device.type == "cpu"):
            batch = self._to_front(rows)
            self.prefilled += sum(len(row.pending) for row in batch)
            logits.append(self._forward(batch))
            for row in batch:
                # Now, not later: the next batch may swap slots together with their columns.
                row.cached.extend(row.pending)
            read += batch
        if read:
            self._write(reading, read, torch.cat(logits))

    def _forward(self, rows: Sequence[Row]) -> Tensor:
        """Logits after the last pending token of each row. Adds the tokens to the cache."""
        counts = torch.tensor([len(row.pending) for row in rows], device=self.device)
        starts = torch.tensor([len(row.cached) for row in rows], device=self.device)
        longest = int(counts.max())
        ids = torch.tensor(
            [row.pending + [0] * (longest - len(row.pending)) for row in rows], device=self.device
        )
        # Padding is written behind each row's tokens, where it is masked, and where the next real
        # tokens overwrite it.
        columns = starts[:, None] + torch.arange(longest, device=self.device)
        self.cache.reserve(len(self.rows), int(columns.max()) + 1)
        self.cache.write_at(columns)
        self.passes += 1
        positions, which = torch.unique(counts - 1, return_inverse=True)
        with torch.inference_mode():
            logits: Tensor = self.model(
                input_ids=ids,
                position_ids=columns,
                attention_mask=self.cache.mask(),
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=positions,
            ).logits
            last = logits[torch.arange(len(rows), device=self.device), which].float()
        self.beat()
        return last

    def _write(self, rows: Sequence[Row], computed: Sequence[Row], logits: Tensor) -> None:
        """Sample one token per row, from its own logits or its leader's; finish rows that end."""
        index = {id(row): position for position, row in enumerate(computed)}
        scores = logits[[index[id(row.leader or row)] for row in rows]]
        tokens, logprobs = sample_tokens(
            scores, [row.request for row in rows], [row.uniforms[len(row.tokens)] for row in rows]
        )
        self.decoded += len(rows)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.pending = [token]
        self._split(rows)
        for row in rows:
            if row.ended:
                self._finish(row, row.stopped)

    def _split(self, rows: Sequence[Row]) -> None:
        """Separate rows whose last token differs from their leader's.

        The first row with a new token becomes the leader of the others with the same token.
        """
        first: dict[tuple[int, int], Row] = {}
        for row in rows:
            leader = row.leader
            if leader is None:
                continue
            if row.ended and row.session:
                self._detach(row, leader)  # its next turn starts from these columns
            elif not row.ended and (leader.ended or row.tokens[-1] != leader.tokens[-1]):
                row.leader = first.setdefault((id(leader), row.tokens[-1]), row)
                if row.leader is row:
                    self._detach(row, leader)

    def _detach(self, row: Row, leader: Row) -> None:
        """Give a row its own copy of its leader's cache."""
        self.cache.copy(leader.slot, row.slot, len(leader.cached))
        row.cached = list(leader.cached)
        row.leader = None


class CopySampler(LocalSampler):
    """A sampler on a copy of the trained model, for episodes that are played beside training."""

    is_local = True
    """Each process fills its own copy."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over the trainer's weights; what is cached is stale then."""
        own = self.model.state_dict()
        with torch.no_grad():
            for name, weight in weights:
                own[name].copy_(weight)
        self.forget()
