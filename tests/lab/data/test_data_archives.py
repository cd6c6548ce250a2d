"""Archives are looked at before anything of them is written."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from aliceopt.lab.data import DataError
from aliceopt.lab.data.download import unpack
from aliceopt.lab.data.imagenet import convert
from aliceopt.lab.writing import WriteError

ESCAPES = ["../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:\\evil"]


def make_zip(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, f"content of {name}")
    return path


def make_tar(path: Path, names: list[str], **special: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            content = f"content of {name}".encode()
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in special.values():
            archive.addfile(info)
    return path


MAKERS = {"zip": make_zip, "tar": make_tar}


@pytest.mark.parametrize("kind", MAKERS)
def test_files_are_unpacked_with_their_folders(tmp_path, kind):
    """Contents and paths as in the archive."""
    archive = MAKERS[kind](tmp_path / "archive", ["set/a.bin", "set/deep/b.bin", "c"])
    unpack(archive, tmp_path / "out", kind)
    assert (tmp_path / "out/set/deep/b.bin").read_text() == "content of set/deep/b.bin"
    assert (tmp_path / "out/c").exists()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", ESCAPES)
def test_a_path_that_leads_outside_refuses_the_whole_archive(tmp_path, kind, name):
    """Nothing is written, not even the harmless members."""
    archive = MAKERS[kind](tmp_path / "archive", ["harmless", name])
    with pytest.raises(DataError, match="leads outside the folder"):
        unpack(archive, tmp_path / "in" / "out", kind)
    assert [p.name for p in tmp_path.rglob("*")] == ["archive"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    """Only files and folders are unpacked."""
    info = tarfile.TarInfo("link")
    info.type, info.linkname = kind, "/etc/passwd"
    archive = make_tar(tmp_path / "archive", ["harmless"], link=info)
    with pytest.raises(DataError, match="'link' is neither file nor folder"):
        unpack(archive, tmp_path / "out", "tar")
    assert not (tmp_path / "out").exists()


def test_links_in_a_zip_are_refused(tmp_path):
    """A symbolic link is marked in the attributes of its entry."""
    archive = make_zip(tmp_path / "archive", ["harmless"])
    with zipfile.ZipFile(archive, "a") as content:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        content.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="'link' is a link"):
        unpack(archive, tmp_path / "out", "zip")


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("cut", [0, 20, 120])
def test_a_cut_archive_is_refused(tmp_path, kind, cut):
    """By name, whatever the library underneath says."""
    archive = MAKERS[kind](tmp_path / "archive", ["a", "b"])
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(DataError, match=f"archive: is not a whole {kind} archive"):
        unpack(archive, tmp_path / "out", kind)


@pytest.mark.parametrize("kind", MAKERS)
def test_any_flipped_byte_is_harmless_or_refused(tmp_path, kind):
    """Whatever the libraries raise: the archive is named, and nothing else comes out."""
    archive = MAKERS[kind](tmp_path / "archive", ["a/b", "c"])
    whole = archive.read_bytes()
    refused = []
    for at in range(len(whole)):
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            unpack(archive, tmp_path / f"out-{at}", kind)
        except (DataError, WriteError) as error:
            refused.append(str(error))
    assert len(refused) > len(whole) / 4
    assert all(text.startswith((f"{archive}: ", "cannot write")) for text in refused)


def encrypted(archive: Path) -> Path:
    """The zip with the mark of encryption on all its members."""
    content = bytearray(archive.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := content.find(signature, at + 1)) >= 0:
            content[at + flags] |= 1
    archive.write_bytes(content)
    return archive


def test_an_encrypted_zip_is_refused(tmp_path):
    """As an archive, and as Tiny-ImageNet."""
    with pytest.raises(DataError, match=r"not a whole zip archive .*encrypted"):
        unpack(encrypted(make_zip(tmp_path / "a.zip", ["a"])), tmp_path / "out", "zip")
    with pytest.raises(DataError, match=r"not Tiny-ImageNet .*encrypted"):
        convert(encrypted(tiny_zip(tmp_path / "tiny.zip")), tmp_path)


@pytest.mark.parametrize("kind", MAKERS)
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, kind):
    """Before anything of it is written; one that just fits is unpacked."""
    archive = MAKERS[kind](tmp_path / "archive", ["a", "b"])
    with pytest.raises(DataError, match="refused, it unpacks to more than 23 bytes"):
        unpack(archive, tmp_path / "out", kind, 23)
    assert not (tmp_path / "out").exists()
    unpack(archive, tmp_path / "out", kind, 24)


def jpeg(shade: int, mode: str = "RGB", side: int = 64) -> bytes:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new(mode, (side, side), shade if mode == "L" else (shade, 0, 0)).save(buffer, "JPEG")
    return buffer.getvalue()


def bomb() -> bytes:
    """A small file that says of itself that it has 65,000 x 65,000 pixels."""
    content = bytearray(jpeg(90))
    at = content.index(b"\xff\xc0") + 5  # of the frame: height, then width
    content[at : at + 4] = 2 * (65_000).to_bytes(2, "big")
    return bytes(content)


def tiny_zip(path: Path, **members: bytes) -> Path:
    """Two classes, listed not in the order of their names; one grey image."""
    files = {
        "train/n02/images/n02_0.JPEG": jpeg(200),
        "train/n01/images/n01_0.JPEG": jpeg(90),
        "train/n01/images/n01_1.JPEG": jpeg(50, "L"),
        "val/images/val_0.JPEG": jpeg(210),
        "val/images/val_1.JPEG": jpeg(80),
        "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n",
        "test/images/test_0.JPEG": jpeg(0),
    } | members
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    return path


def test_tiny_imagenet_is_converted_to_the_npz_layout(tmp_path):
    """Channels first, classes from 1 in the order of their names, grey as RGB, no test images."""
    seen = []
    source = tiny_zip(tmp_path / "tiny.zip")
    convert(source, tmp_path, lambda *progress: seen.append(progress))
    with np.load(tmp_path / "tiny-imagenet-64/train_data_batch_1.npz") as content:
        data, labels = content["data"], content["labels"]
    assert labels.tolist() == [1, 1, 2]
    assert (data.shape, data.dtype) == ((3, 12288), np.uint8)
    assert np.abs(data[:, 0].astype(int) - [90, 50, 200]).max() <= 3
    assert np.abs(data[1].astype(int) - 50).max() <= 3
    assert data[2, 4096:].max() <= 3
    with np.load(tmp_path / "tiny-imagenet-64/val_data.npz") as content:
        assert content["labels"].tolist() == [2, 1]
    assert ("converting", 0, 3) in seen


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"val/val_annotations.txt": b"nonsense"}, "is not Tiny-ImageNet"),
        ({"train/n01/images/n01_0.JPEG": jpeg(90, side=32)}, r"\(32, 32\) pixels, expected"),
        ({"train/n01/images/n01_0.JPEG": b"no image"}, "is no image"),
        ({"train/n01/images/n01_0.JPEG": jpeg(90)[:300]}, "is no image"),
        ({"train/n01/images/n01_0.JPEG": bomb()}, "n01_0.JPEG is no image .*bomb"),
        ({"train/n01/images/n01_0.JPEG": bytes(2 << 20)}, "2,097,152 bytes, more than 1,048,576"),
        ({"val/val_annotations.txt": bytes(2 << 20)}, "2,097,152 bytes, more than 1,048,576"),
    ],
)
def test_another_archive_is_not_taken_for_tiny_imagenet(tmp_path, members, message):
    """The archive is named, and what is wrong with it."""
    with pytest.raises(DataError, match=message):
        convert(tiny_zip(tmp_path / "tiny.zip", **members), tmp_path)
    with pytest.raises(DataError, match="is not Tiny-ImageNet"):
        convert(make_zip(tmp_path / "other.zip", ["a"]), tmp_path)
