"""What the README tells people to paste works as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.e2e.labs import RunningLab
from tests.repository import ROOT

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


def test_the_calls_of_the_api_work_from_top_to_bottom(start_lab: Callable[..., RunningLab]) -> None:
    [block] = re.findall(r"```sh\n(api=.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = block.replace("http://127.0.0.1:8080", start_lab().ready.api)
    done = subprocess.run(["bash", "-eu", "-c", script], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "HTTP/1.1 202" in out
    # In the order of the block.
    for told in (
        '"result":{"text":"Say hello."',
        '"text":" five"',
        '"status":"cancelled"',
        '"outcome":"crash"',
        '"status":"failed"',
        '"cause":"error"',
        '"new_job_id":"',
    ):
        assert told in out, told
        out = out[out.index(told) :]
