"""Downloads from a server on this machine: resumed, checked, put in place whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import re
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from aliceopt.lab.data import DATASETS, DataError, download, generate, load
from aliceopt.lab.data.registry import Source
from aliceopt.lab.writing import WriteError

CONTENT = bytes(range(256)) * 4000


@dataclass
class Site:
    """What the server has, how it behaves, and what it was asked."""

    files: dict[str, bytes]
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)  # bytes sent before hanging up, per answer
    asked: list[str | None] = field(default_factory=list)
    length: str | None = None  # what it says of it, if that is not true
    address: str = ""


class Handler(http.server.BaseHTTPRequestHandler):
    """Files from memory, with or without byte ranges, cutting connections on demand."""

    site: Site

    def log_message(self, *args):
        pass

    def do_GET(self):
        site = self.site
        wanted = self.headers.get("Range")
        site.asked.append(wanted)
        content = site.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and site.ranges else 0
        if start >= len(content) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        said = str(len(content) - start) if site.length is None else site.length
        self.send_header("Content-Length", said)
        self.end_headers()
        cut = site.cut_after.pop(0) if site.cut_after else len(content)
        with contextlib.suppress(OSError):
            self.wfile.write(content[start : start + cut])


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site():
    site = Site({"/file": CONTENT})
    handler = type("BoundHandler", (Handler,), {"site": site})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        site.address = f"http://127.0.0.1:{server.server_address[1]}"
        yield site
        server.shutdown()
        thread.join()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_a_file_arrives_whole_with_progress(site, tmp_path):
    """The last report says all of all; no part is left."""
    seen = []
    target = tmp_path / "deep/file"
    download.fetch(
        f"{site.address}/file", target, md5=md5(CONTENT), progress=lambda *p: seen.append(p)
    )
    assert target.read_bytes() == CONTENT
    assert seen[-1] == ("downloading", len(CONTENT), len(CONTENT))
    assert [p.name for p in target.parent.iterdir()] == ["file"]


def test_a_part_is_continued_where_it_ended(site, tmp_path):
    """Only the missing bytes are asked for."""
    target = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    download.fetch(f"{site.address}/file", target, md5=md5(CONTENT))
    assert target.read_bytes() == CONTENT
    assert site.asked == ["bytes=1000-"]


def test_a_broken_connection_is_taken_up_again(site, tmp_path):
    """Cut twice within one call, and the file is still right."""
    site.cut_after = [300_000, 300_000]
    download.fetch(f"{site.address}/file", tmp_path / "file", md5=md5(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(site.asked) == 3
    assert site.asked[0] is None


def test_an_interrupted_download_keeps_its_part_for_the_next_call(site, tmp_path):
    """After the last try the error says how much is kept; the next call asks for the rest."""
    site.cut_after = [100_000] * 3
    with pytest.raises(DataError, match=r"interrupted after 300,000 bytes .* same command again"):
        download.fetch(f"{site.address}/file", tmp_path / "file")
    assert not (tmp_path / "file").exists()
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:300_000]
    download.fetch(f"{site.address}/file", tmp_path / "file", md5=md5(CONTENT))
    assert site.asked[-1] == "bytes=300000-"
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(site, tmp_path):
    """The part is replaced, not appended to."""
    site.ranges = False
    (tmp_path / "file.part").write_bytes(b"x" * 5000)
    download.fetch(f"{site.address}/file", tmp_path / "file", md5=md5(CONTENT))
    assert site.asked == ["bytes=5000-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [b"", b"too much"])
def test_a_part_that_is_complete_or_too_long(site, tmp_path, extra):
    """A complete part is taken as it is; one longer than the file is thrown away."""
    (tmp_path / "file.part").write_bytes(CONTENT + extra)
    download.fetch(f"{site.address}/file", tmp_path / "file", md5=md5(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(site.asked) == (2 if extra else 1)


def test_a_wrong_checksum_is_refused_and_nothing_kept(site, tmp_path):
    """Neither the file nor its part stays."""
    with pytest.raises(DataError, match=f"has md5 {md5(CONTENT)}, expected 0123"):
        download.fetch(f"{site.address}/file", tmp_path / "file", md5="0123")
    assert list(tmp_path.iterdir()) == []


def test_a_file_put_there_by_hand_is_used_if_it_is_right(site, tmp_path):
    """No request; a wrong one is named and left to its owner."""
    target = tmp_path / "file"
    target.write_bytes(CONTENT)
    download.fetch(f"{site.address}/file", target, md5=md5(CONTENT))
    assert site.asked == []
    with pytest.raises(DataError, match=f"{target}: has md5"):
        download.fetch(f"{site.address}/file", target, md5="0123")
    assert target.exists()


@pytest.mark.parametrize("length", ["abc", "-5", ""])
def test_a_length_that_is_no_number_is_not_believed(site, tmp_path, length):
    """The file is what came."""
    site.length = length
    download.fetch(f"{site.address}/file", tmp_path / "file", md5=md5(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("length", [None, "abc"])
def test_a_download_that_is_too_long_is_refused_and_deleted(site, tmp_path, length):
    """Whether the server says so beforehand or not."""
    site.length = length
    address = f"{site.address}/file"
    with pytest.raises(DataError, match=f"{address}: is longer than the 500,000 bytes expected"):
        download.fetch(address, tmp_path / "file", most=500_000)
    assert list(tmp_path.iterdir()) == []
    download.fetch(address, tmp_path / "file", most=len(CONTENT))


def test_a_full_disk_is_not_taken_for_a_broken_connection(site, tmp_path, monkeypatch):
    """It is told by the file, at once."""

    def full(file, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "write_all", full)
    with pytest.raises(WriteError, match=r"cannot write '.*file\.part': No space left on device"):
        download.fetch(f"{site.address}/file", tmp_path / "file")
    assert len(site.asked) == 1


def test_an_answer_such_as_404_is_said_at_once(site, tmp_path):
    """With the address; it is not tried again."""
    with pytest.raises(DataError, match=r"/none: the server answered 404"):
        download.fetch(f"{site.address}/none", tmp_path / "file")
    assert len(site.asked) == 1


def test_without_network_the_address_and_a_way_out_are_named(tmp_path):
    """A port where nobody listens: what failed, and where a file got elsewhere belongs."""
    with pytest.raises(DataError, match=r"127.0.0.1:9/x: cannot be reached .*put it at .*/file"):
        download.fetch("http://127.0.0.1:9/x", tmp_path / "file")


def offer(site: Site, monkeypatch, name: str, kind: str, content: bytes, **changes) -> None:
    """Let the server publish set ``name`` as ``content``."""
    site.files["/set"] = content
    source = Source(f"{site.address}/set", kind, "set.archive", changes.pop("archive_md5", None))
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], source=source, **changes))


def packed_cifar(folder: Path) -> tuple[bytes, dict[str, str]]:
    """An archive with the names of CIFAR-10 and the md5 sums of its files."""
    files = DATASETS["cifar10"].files(folder)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file in files:
            archive.add(folder / file, arcname=file)
    return buffer.getvalue(), {file: md5((folder / file).read_bytes()) for file in files}


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    """A generated CIFAR-10 that passes for the official one."""
    made = generate.write("cifar10", tmp_path / "made", size=50)
    rows = dict.fromkeys(DATASETS["cifar10"].files(made), 10)
    rows["cifar-10-batches-bin/test_batch.bin"] = 50
    monkeypatch.setattr("aliceopt.lab.data.images.ROWS", rows)
    return packed_cifar(made)


def test_a_set_is_fetched_unpacked_checked_and_put_in_place(
    site, tmp_path, monkeypatch, small_cifar
):
    """Then it loads, as official data; neither archive nor work folder stays."""
    content, sums = small_cifar
    offer(site, monkeypatch, "cifar10", "tar", content, archive_md5=md5(content), md5=sums)
    root = download.get("cifar10", tmp_path / "data")
    loaded = load("cifar10", root, batch_size=5)
    assert not loaded.generated
    assert [p.name for p in root.iterdir()] == ["cifar-10-batches-bin"]
    asked = len(site.asked)
    download.get("cifar10", root)
    assert len(site.asked) == asked, "a set that is there is not fetched again"


def test_a_wrong_file_in_a_right_archive_is_not_put_in_place(
    site, tmp_path, monkeypatch, small_cifar
):
    """The md5 of one file differs: nothing appears, and the archive is not kept either."""
    content, sums = small_cifar
    wrong = sums | {"cifar-10-batches-bin/data_batch_3.bin": "0123"}
    offer(site, monkeypatch, "cifar10", "tar", content, md5=wrong)
    with pytest.raises(DataError, match=r"not kept: .*data_batch_3.bin: has md5 .* is 0123"):
        download.get("cifar10", tmp_path / "data")
    assert [p for p in (tmp_path / "data").rglob("*") if p.is_file()] == []


def test_a_single_file_and_a_zip_are_put_in_place(site, tmp_path, monkeypatch):
    """Shakespeare comes as a file, enwik8 as a zip with one member."""
    made = generate.write("tinyshakespeare", tmp_path / "made", size=900)
    play = (made / "tinyshakespeare.txt").read_bytes()
    monkeypatch.setattr("aliceopt.lab.data.text.SHAKESPEARE_BYTES", len(play))
    monkeypatch.setattr("aliceopt.lab.data.text.SHAKESPEARE_CHARACTERS", len(set(play)))
    site.files["/set"] = play
    source = Source(f"{site.address}/set", "file", "tinyshakespeare.txt")
    plays = replace(DATASETS["tinyshakespeare"], source=source)
    monkeypatch.setitem(DATASETS, "tinyshakespeare", plays)
    root = download.get("tinyshakespeare", tmp_path / "data")
    assert (root / "tinyshakespeare.txt").read_bytes() == play

    monkeypatch.setattr("aliceopt.lab.data.text.ENWIK8_BYTES", 4000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("enwik8", CONTENT[:4000])
    sums = {"enwik8": md5(CONTENT[:4000])}
    offer(site, monkeypatch, "enwik8", "zip", buffer.getvalue(), md5=sums)
    download.get("enwik8", root)
    assert sorted(p.name for p in root.iterdir()) == ["enwik8", "tinyshakespeare.txt"]


def test_an_archive_that_escapes_is_refused_and_deleted(site, tmp_path, monkeypatch):
    """Nothing of it is written anywhere."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../../evil", "x")
    offer(site, monkeypatch, "enwik8", "zip", buffer.getvalue())
    with pytest.raises(DataError, match="leads outside the folder"):
        download.get("enwik8", tmp_path / "data")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_imagenet64_names_the_registration_and_the_folder(tmp_path):
    """No program may fetch it: page, folder and the command that checks."""
    with pytest.raises(DataError) as caught:
        download.get("imagenet64", tmp_path)
    for part in (
        "https://image-net.org/download-images.php",
        str(tmp_path / "imagenet64"),
        "check",
    ):
        assert part in str(caught.value)


def test_generated_data_is_not_mixed_with_official_data(tmp_path):
    """A folder whose generated.json lists the set does not take the real one."""
    root = generate.write("cifar10", tmp_path, size=50)
    (root / "cifar-10-batches-bin/test_batch.bin").unlink()
    with pytest.raises(DataError, match="is generated there: choose another folder"):
        download.get("cifar10", root)


@pytest.mark.parametrize("name", DATASETS)
def test_every_set_can_be_got_somehow(name):
    """An address or a description, terms and a page for each; md5 sums have 32 digits."""
    data_set = DATASETS[name]
    assert data_set.terms
    assert data_set.page.startswith("https:")
    source = data_set.source
    assert source is None or source.address.startswith("https:")
    assert bool(source) + bool(data_set.by_hand) == (name != "digits")
    sums = [*data_set.md5.values(), *([source.md5] if source and source.md5 else [])]
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in sums)
