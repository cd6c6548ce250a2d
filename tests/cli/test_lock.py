"""One command at a time in a folder: the second is refused, and no dead one blocks."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("filelock")
pytest.importorskip("typer")
pytest.importorskip("matplotlib")

from typer.testing import CliRunner

from aliceopt.cli import build, lock
from aliceopt.cli.lock import FolderInUse, locked

HOLD = """
import pathlib, sys
from aliceopt.cli.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(folder):
    """Another process that holds the folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def content(folder):
    """Every file with what is in it."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path):
    """By name of the folder and of the holder; then the folder is free, and no file is left."""
    place = tmp_path / "a/b"
    with holder(place) as process:
        said = f"'{place}' is in use by process {process.pid}: wait .* another --out"
        with pytest.raises(FolderInUse, match=said), locked(place):
            pass
        process.communicate()
        assert process.returncode == 0
    with locked(place):
        assert (place / lock.NAME).read_text().split()[0] == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


def test_a_lock_left_by_a_killed_process_does_not_block(tmp_path):
    """Its file stays behind, the lock does not."""
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / lock.NAME).exists()
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_holder_on_another_machine_is_named_with_it(tmp_path, monkeypatch):
    """A number of a process means nothing on its own there."""
    with holder(tmp_path) as process:
        monkeypatch.setattr(lock.socket, "gethostname", lambda: "elsewhere")
        said = f"process {process.pid} on .*: wait"
        with pytest.raises(FolderInUse, match=said), locked(tmp_path):
            pass


def test_only_folders_that_were_made_for_it_and_are_empty_go(tmp_path):
    """What was there stays, and what was written stays; an error goes through."""
    (tmp_path / "there").mkdir()
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "there"):
        raise ZeroDivisionError
    with locked(tmp_path / "made/with"):
        (tmp_path / "made/notes.txt").write_text("mine")
    assert (tmp_path / "there").is_dir()
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["notes.txt"]


def test_a_lock_that_is_no_longer_held_is_not_removed(tmp_path):
    """Somebody deleted the file, and another process made the next: that one still keeps out."""
    with contextlib.ExitStack() as stack:
        with locked(tmp_path):
            (tmp_path / lock.NAME).unlink()
            process = stack.enter_context(holder(tmp_path))
        assert (tmp_path / lock.NAME).read_text().split()[0] == str(process.pid)
        with pytest.raises(FolderInUse, match=f"process {process.pid}"), locked(tmp_path):
            pass


def test_a_holder_that_ends_meanwhile_is_refused_for_by_no_name(tmp_path, monkeypatch):
    """It held the lock when asked, and had deleted the file when it was looked into."""

    def held(*arguments, **options):
        raise lock.Timeout(str(tmp_path / lock.NAME))

    monkeypatch.setattr(lock.FileLock, "acquire", held)
    with pytest.raises(FolderInUse, match="in use by another process: wait"), locked(tmp_path):
        pass


def test_where_nobody_may_look_into_a_locked_file_commands_work_all_the_same(tmp_path, monkeypatch):
    """As on Windows: the holder is not named, and that is all."""

    def denied(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("read_text", "write_text"):
        monkeypatch.setattr(lock.Path, name, denied)
    said = pytest.raises(FolderInUse, match="in use by another process: wait")
    with locked(tmp_path), said, locked(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_locks_is_worked_on_all_the_same(number, tmp_path, monkeypatch):
    """As if it had; the file is there, and goes. One that was left behind does not block."""

    def unsupported(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", unsupported)
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / lock.NAME).write_text("1 elsewhere\n")
    for name in ("out", "left"):
        with locked(tmp_path / name):
            assert (tmp_path / name / lock.NAME).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["left"]
    assert list((tmp_path / "left").iterdir()) == []


STUDY = ("study", "--epochs", "1", "--terms", "none", "--steps", "naq", "--baselines", "")


@pytest.mark.parametrize("command", [("run", "resnet18-methods", "--scale", "smoke"), STUDY])
def test_a_refused_command_changes_nothing(command, tmp_path):
    """Not even with --overwrite; a dry run writes nothing and is not refused."""
    (tmp_path / "notes.txt").write_text("mine")
    with holder(tmp_path) as process:
        before = content(tmp_path)
        for more in ((), ("--resume",), ("--overwrite",)):
            result = CliRunner().invoke(build(), [*command, "--out", str(tmp_path), *more])
            assert result.exit_code == 2, result.output
            said = f"aliceopt: '{tmp_path}' is in use by process {process.pid}: "
            assert result.stderr.startswith(said)
            assert len(result.stderr.strip().splitlines()) == 1
        result = CliRunner().invoke(build(), [*command, "--out", str(tmp_path), "--dry-run"])
        assert result.exit_code == 0, result.output
        assert content(tmp_path) == before


def test_a_file_is_no_folder_for_records(tmp_path):
    """It is said to be one, and stays as it is."""
    (tmp_path / "notes").write_text("mine")
    told = pytest.raises(ValueError, match="notes': it is a file; choose another --out")
    with told, locked(tmp_path / "notes"):
        pass
    assert (tmp_path / "notes").read_text() == "mine"
