"""The folder in which a lab keeps its server's data and its children's logs."""

from __future__ import annotations

import fcntl
import re
import shutil
import tempfile
from pathlib import Path
from uuid import uuid4

from common.errors import SettingsError

TAIL_LINES = 5
#: Any other was damaged, and would not do as the beginning of an instance's.
NAME = re.compile("lab-[0-9a-f]{6}")


class Folder:
    """A fresh folder goes with the lab; one that was named stays, and serves one lab at a time."""

    def __init__(self, named: Path | None) -> None:
        """Raises SettingsError when the folder cannot be used."""
        #: Whether it goes with the lab.
        self.fresh = named is None
        try:
            self.path = Path(tempfile.mkdtemp(prefix="iwl-")) if named is None else named.resolve()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("w")
            # Two servers appending to one file would destroy each other's data.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"--data: another lab is using {named}") from None
        except OSError as error:
            raise SettingsError(f"--data: cannot use {named}: {error.strerror}") from None
        try:
            self.name = self._own_name()
        except OSError as error:
            self.close()
            raise SettingsError(f"--data: cannot use {self.path}: {error.strerror}") from None

    def _own_name(self) -> str:
        """Kept with the data, so that the next lab on it takes its workers' slots back at once."""
        path, new = self.path / "name", self.path / "name.new"
        if path.exists() and NAME.fullmatch(name := path.read_text(errors="replace")):
            return name
        name = f"lab-{uuid4().hex[:6]}"
        new.write_text(name)
        new.replace(path)
        return name

    def log(self, child: str) -> Path:
        return self.path / f"{child}.log"

    def tail(self, child: str) -> str:
        """The last lines this child wrote."""
        return "\n".join(last_lines(self.log(child), TAIL_LINES))

    def close(self) -> None:
        self._lock.close()
        if self.fresh:
            shutil.rmtree(self.path, ignore_errors=True)


def last_lines(path: Path, count: int) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text(errors="replace").splitlines() if line.strip()][-count:]
