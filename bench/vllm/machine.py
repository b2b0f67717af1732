"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import httpx
import msgspec

from lab.server import server_binary
from worker.backends.openai import first_model


class Version(msgspec.Struct):
    version: str = "unknown"


def facts(url: str, model: str | None, about: str | None, load: float) -> dict[str, str]:
    """Name -> value, in the order in which they are shown. `load` is the average of the last minute."""
    cores, ours = os.cpu_count(), len(os.sched_getaffinity(0))
    return {
        "CPU": f"{cores} x {_cpu()}",
        "cores": f"{ours} of {cores} for clients, gateway, store and worker",
        "GPU": _gpu(),
        "model": ": ".join(filter(None, (model or _first_served(url), about))),
        "vLLM": f"{_vllm(url)}, {'on the same machine' if _local(url) else 'on another machine'}",
        "lab": f"{version('inference-worker-lab')}, Python {platform.python_version()}, {_store()}",
        # What the other programs of this machine take away from both ways.
        "load before": f"{load:.1f} of {cores} cores",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }


def _cpu() -> str:
    name = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return name[1].strip() if name else platform.processor() or "unknown"


def _gpu() -> str:
    """Of this machine; what a remote vLLM runs on cannot be asked."""
    if shutil.which("nvidia-smi") is None:
        return "none on this machine"
    command = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return ", ".join(subprocess.run(command, capture_output=True, text=True).stdout.split("\n")).strip(", ")


def _vllm(url: str) -> str:
    try:
        answer = httpx.get(f"{url.removesuffix('/v1')}/version", timeout=10, trust_env=False)
        return msgspec.json.decode(answer.content, type=Version).version
    except (httpx.HTTPError, msgspec.DecodeError):
        return "unknown version"


def _first_served(url: str) -> str:
    return first_model(httpx.get(f"{url}/models", timeout=10, trust_env=False).content) or "unknown"


def _store() -> str:
    said = subprocess.run((server_binary(), "--version"), capture_output=True, text=True).stdout
    number = re.search(r"\bv=(\S+)", said)
    return f"Valkey {number[1] if number else ''}".strip()


def _local(url: str) -> bool:
    return httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")
