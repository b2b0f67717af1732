"""`python -m api` as a child process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

from common.settings import child_environment


class GatewayProcess:
    def __init__(self, **settings: str) -> None:
        self.url = ""
        self.log: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "api"],
            env=child_environment(port="0", **settings),
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_url(self, timeout: float = 15) -> None:
        """Returns once it listens."""
        deadline = time.monotonic() + timeout
        while not self.url:
            assert self._process.poll() is None, f"the gateway ended: {self.log}"
            assert time.monotonic() < deadline, f"the gateway does not listen: {self.log}"
            time.sleep(0.01)

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, timeout: float = 15) -> int:
        """The exit status."""
        status = self._process.wait(timeout)
        self._reader.join(timeout)
        return status

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        assert self._process.stderr
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self.log.append(line.rstrip())
            if '"listening"' in line:
                self.url = json.loads(line)["url"]
