"""A client whose every script arrives twice, as when a reply is lost and the library sends it again (P4)."""

from __future__ import annotations

from collections.abc import Awaitable

from common.redis_store import loader
from common.redis_store.wire import Argument, Client, Pipeline, PubSub, Reply

#: Scripts that answer how much they did: the second time that is nothing, so their first answer counts.
COUNTING = ("drop", "expire", "promote", "prune", "reconcile")


class TwiceClient:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.response_callbacks = client.response_callbacks

    def execute_command(self, *command: Argument) -> Awaitable[Reply]:
        return self._client.execute_command(*command)

    def pipeline(self, transaction: bool) -> Pipeline:
        return TwicePipeline(self._client.pipeline(transaction=transaction))

    def pubsub(self) -> PubSub:
        return self._client.pubsub()

    def aclose(self) -> Awaitable[None]:
        return self._client.aclose()


class TwicePipeline:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        #: For each command, which of the replies is its own.
        self._answers: list[int] = []
        self._sent = 0

    def execute_command(self, *command: Argument) -> object:
        twice = command[0] == "EVALSHA"
        for _ in range(2 if twice else 1):
            self._pipeline.execute_command(*command)
            self._sent += 1
        first_counts = twice and command[1] in _COUNTING_SHAS
        self._answers.append(self._sent - (2 if first_counts else 1))
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Reply]:
        replies = await self._pipeline.execute(raise_on_error=raise_on_error)
        return [replies[i] for i in self._answers]


_COUNTING_SHAS = {loader.load(name, shebang=shebang).sha for name in COUNTING for shebang in (True, False)}
