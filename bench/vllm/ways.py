"""The two ways to an answer: a client of vLLM, and a client of the gateway."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from common.job import JobRequest
from common.settings import Settings
from lab.client import Api
from lab.records import JobRecord
from worker.backends.base import Completion
from worker.backends.vllm import VllmBackend


@dataclass(frozen=True, slots=True)
class Answered:
    """One request, as the client saw it."""

    seconds: float
    tokens: int
    #: What became of it in the queue; None when there was none.
    job: JobRecord | None = None


class Way(Protocol):
    async def answer(self, prompt: str) -> Answered: ...


class Straight:
    """The worker's own client of vLLM, so that nothing but the queue makes the difference."""

    def __init__(self, url: str, model: str | None, params: Mapping[str, object]) -> None:
        self.backend = VllmBackend(Settings(vllm_url=url, vllm_model=model))
        self._params = dict(params)

    async def answer(self, prompt: str) -> Answered:
        began = time.perf_counter()
        tokens = 0
        async for piece in self.backend.generate(JobRequest(prompt=prompt, params=self._params), 1):
            if isinstance(piece, Completion):
                tokens = piece.usage.completion_tokens
        return Answered(time.perf_counter() - began, tokens)


class Queued:
    """Submit over HTTP, then wait for the end of the job."""

    def __init__(self, api: Api, model: str | None, params: Mapping[str, object]) -> None:
        self._api = api
        self._body = {"model": model, "params": dict(params)}

    async def answer(self, prompt: str) -> Answered:
        began = time.perf_counter()
        job_id = (await self._api.submit(self._body | {"prompt": prompt})).value.job_id
        job = (await self._api.ended(job_id)).value
        seconds = time.perf_counter() - began
        assert job.result, f"a job did not succeed: {job}"
        assert len(job.attempts) == 1, f"a job was tried again: {job}"
        return Answered(seconds, job.result.usage.completion_tokens, job)
