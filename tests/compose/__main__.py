"""`make compose-test`: the Compose stack under faults, on the engine of this machine.

Without an engine it says so and is skipped; with CI=true that is a failure.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import traceback

from lab.client import Api
from lab.ports import free_port
from tests.compose.prometheus import Prometheus
from tests.compose.stack import Stack
from tests.compose.steps import PREPARATION, STEPS
from tests.compose.trial import Step, Trial

#: Of all steps; taking the stack down has its own limit.
WITHIN_S = 600
#: A killed worker's jobs go on elsewhere after this time.
CLAIM_IDLE_MS = 3_000


def missing() -> str:
    """Why the test cannot run here; empty when it can."""
    for command in (("docker", "compose", "version"), ("docker", "info")):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            return f"`{' '.join(command)}` fails"
    return ""


def say(line: str) -> None:
    print(line, flush=True)


async def run() -> int:
    """The exit code."""
    ports = {"API_PORT": str(free_port()), "PROMETHEUS_PORT": str(free_port())}
    stack = Stack(f"iwl-test-{os.getpid()}", {**ports, "IWL_CLAIM_IDLE_MS": str(CLAIM_IDLE_MS)})
    prometheus = Prometheus(f"http://127.0.0.1:{ports['PROMETHEUS_PORT']}")
    async with Api(f"http://127.0.0.1:{ports['API_PORT']}") as api:
        trial = Trial(stack=stack, api=api, prometheus=prometheus)
        try:
            async with asyncio.timeout(WITHIN_S):
                passed = await walk(trial)
        finally:
            await prometheus.aclose()
            await take_down(stack)
    return 0 if passed else 1


async def walk(trial: Trial) -> bool:
    """Whether every step passed. The first that fails is the last."""
    submitted = 0
    for step in (*PREPARATION, *STEPS):
        began = time.monotonic()
        try:
            seen = await step(trial)
            if step in STEPS:
                submitted = (await trial.settled()).submitted
        except Exception:
            say(f"{time.monotonic() - began:6.1f} s  FAILED {title(step)}")
            say(traceback.format_exc())
            say(await trial.stack.compose("logs", "--tail", "40"))
            return False
        say(f"{time.monotonic() - began:6.1f} s  {title(step)}: {seen}")
    say(f"{submitted} jobs accepted = {submitted} ended; unaccounted 0 after each step")
    return True


def title(step: Step) -> str:
    return step.__name__.replace("_", " ")


async def take_down(stack: Stack) -> None:
    began = time.monotonic()
    left = await stack.remove()
    assert not left, f"left behind: {left}"
    say(f"{time.monotonic() - began:6.1f} s  everything is taken down, nothing is left")


def interrupt(number: int, frame: object) -> None:
    signal.raise_signal(signal.SIGINT)


def main() -> int:
    if reason := missing():
        in_ci = os.environ.get("CI", "").lower() == "true"
        say(f"compose-test: {'FAILED' if in_ci else 'skipped'}, because no Docker engine is here: {reason}")
        return 1 if in_ci else 0
    # CI ends what takes too long with SIGTERM: what was started goes then, too.
    signal.signal(signal.SIGTERM, interrupt)
    began = time.monotonic()
    try:
        code = asyncio.run(run())
    except KeyboardInterrupt:
        say("compose-test: interrupted")
        return 130
    except TimeoutError:
        say(f"compose-test: not done within {WITHIN_S} s")
        return 1
    if code == 0:
        say(f"compose-test: {len(PREPARATION) + len(STEPS)} steps passed in {time.monotonic() - began:.0f} s")
    else:
        say("compose-test: FAILED")
    return code


if __name__ == "__main__":
    sys.exit(main())
