"""One project of the Compose file on the engine of this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from tests.repository import ROOT

#: What the stack is made of without any profile.
CORE = ("redis", "api", "worker", "scaler")


class CommandFailed(AssertionError):
    """A command ended with another exit code than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    id: str
    service: str
    user: str
    running: bool
    exit_code: int
    started_at: datetime
    restarts: int
    restart_policy: str
    memory: int
    init: bool
    read_only: bool
    #: Linux capabilities taken away, and given back.
    dropped: tuple[str, ...]
    added: tuple[str, ...]
    security: tuple[str, ...]
    #: Addresses of this machine on which its ports are published.
    published: frozenset[str]

    @classmethod
    def of(cls, found: Any) -> Container:
        """From `docker inspect`."""
        host, state = found["HostConfig"], found["State"]
        return cls(
            id=found["Id"],
            service=found["Config"]["Labels"]["com.docker.compose.service"],
            user=found["Config"]["User"],
            running=state["Running"],
            exit_code=state["ExitCode"],
            started_at=datetime.fromisoformat(state["StartedAt"]),
            restarts=found["RestartCount"],
            restart_policy=host["RestartPolicy"]["Name"],
            memory=host["Memory"],
            init=host["Init"] or False,
            read_only=host["ReadonlyRootfs"],
            dropped=tuple(host["CapDrop"] or ()),
            added=tuple(host["CapAdd"] or ()),
            security=tuple(host["SecurityOpt"] or ()),
            published=frozenset(_addresses(host["PortBindings"] or {})),
        )


def _addresses(bindings: dict[str, list[dict[str, str]]]) -> Iterator[str]:
    for published in bindings.values():
        yield from (each["HostIp"] for each in published)


class Stack:
    def __init__(self, project: str, variables: Mapping[str, str]) -> None:
        """`variables` of the Compose file; the user's own, and a .env file, do not count."""
        self._project = project
        self.image, self._cli_image = f"{project}:services", f"{project}:cli"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("IWL_", "COMPOSE_"))}
        images = {"LAB_IMAGE": self.image, "CLI_IMAGE": self._cli_image}
        self._environment = {**kept, **variables, **images}

    async def compose(self, *arguments: str, within: float = 120, file: str = "") -> str:
        """The standard output of `docker compose`. `file` is laid over the Compose file."""
        files = ("-f", "docker-compose.yml", *(("-f", file) if file else ()))
        options = ("--env-file", os.devnull, "--progress", "quiet", "-p", self._project)
        return await self.docker("compose", *files, *options, *arguments, within=within)

    async def up(self, *services: str, workers: int = 2) -> None:
        """Starts what is not running, and waits until all of it is healthy."""
        named = services or CORE
        scale = ("--scale", f"worker={workers}") if "worker" in named else ()
        await self.compose("up", "--detach", "--wait", "--no-build", *scale, *named)

    async def containers(self, *services: str) -> list[Container]:
        """Running or not, as they were created."""
        ids = (await self.compose("ps", "--all", "--quiet", *services)).split()
        found: Sequence[Any] = msgspec.json.decode(await self.docker("inspect", *ids)) if ids else []
        return sorted(map(Container.of, found), key=lambda container: container.started_at)

    async def docker(self, *arguments: str, within: float = 60) -> str:
        """Raises CommandFailed with what the command said."""
        process = await asyncio.create_subprocess_exec(
            "docker",
            *arguments,
            cwd=ROOT,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(within):
                stdout, stderr = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
            raise
        if process.returncode:
            said = (stderr or stdout).decode().strip()
            raise CommandFailed(f"docker {' '.join(arguments)}: exit code {process.returncode}\n{said}")
        return stdout.decode()

    async def remove(self) -> list[str]:
        """Takes everything down that was started, with its data and images. What is left, if anything."""
        await self.compose("--profile", "*", "down", "--volumes", "--timeout", "10")
        for image in (self.image, self._cli_image):
            if await self.docker("image", "ls", "--quiet", image):
                await self.docker("image", "rm", image)
        own = ("--quiet", "--filter", f"label=com.docker.compose.project={self._project}")
        kinds = (("ps", "--all"), ("network", "ls"), ("volume", "ls"), ("image", "ls"))
        return [name for kind in kinds for name in (await self.docker(*kind, *own)).split()]
