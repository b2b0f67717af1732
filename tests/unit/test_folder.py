"""The folder of a lab: its name, and folders that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import SettingsError
from common.settings import Settings
from lab.folder import Folder


def name_of(path: Path) -> str:
    folder = Folder(path)
    folder.close()
    return folder.name


def test_a_name_stays_with_the_data(tmp_path: Path) -> None:
    assert name_of(tmp_path) == name_of(tmp_path)


@pytest.mark.parametrize(
    "damaged", [b"", b"\xff\xfe", b"lab-12", b"lab-123abc\n", b"a name", b"x" * 99, b"\0" * 10]
)
def test_a_damaged_name_is_replaced_by_one_that_workers_can_carry(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "name").write_bytes(damaged)
    name = name_of(tmp_path)
    assert Settings(instance=f"{name}-worker-64").instance
    assert name_of(tmp_path) == name


def test_a_name_is_whole_whenever_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up leaves no half of one."""

    def half(path: Path, text: str) -> None:
        path.write_bytes(text.encode()[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(SettingsError, match="No space left"):
        Folder(tmp_path)
    assert not (tmp_path / "name").exists()


def test_a_name_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    with pytest.raises(SettingsError, match=f"--data: cannot use {tmp_path}: "):
        Folder(tmp_path)
