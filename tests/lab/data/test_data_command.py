"""``aliceopt data``: where, check and get, as a user types them."""

from __future__ import annotations

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from aliceopt.cli.data import NAMES, app
from aliceopt.lab.data import DATASETS, DataError, download, generate
from aliceopt.lab.writing import WriteError


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def root(tmp_path):
    return generate.write("cifar10", tmp_path / "sets", size=50)


def test_the_help_lists_every_set():
    """The names in the help are those of the registry."""
    assert NAMES.replace(" or ", " ").replace(",", "").split() == list(DATASETS)


def test_where_prints_the_folder_and_what_is_in_it(root, monkeypatch):
    """Generated, missing and built-in sets, with the folder taken from the variable."""
    (root / "wikitext-2").mkdir()
    (root / "wikitext-2/wiki.test.tokens").touch()
    monkeypatch.setenv("ALICEOPT_DATA", str(root))
    lines = run("where").output.splitlines()
    assert lines[0] == str(root)
    state = {line.split()[0]: line for line in lines[1:]}
    assert "built in" in state["digits"]
    assert "generated" in state["cifar10"]
    assert "not there" in state["enwik8"]
    assert "2 of 3 files missing" in state["wikitext-2"]


def test_where_says_that_the_folder_does_not_exist(tmp_path):
    """And nothing is created by asking."""
    result = run("where", "--data", tmp_path / "none")
    assert "(does not exist yet)" in result.output
    assert result.exit_code == 0
    assert not (tmp_path / "none").exists()


def test_check_reports_every_file_and_the_verdict(root):
    """One line a file, exit 0 when all are right."""
    result = run("check", "cifar10", "--data", root)
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert [line[:3] for line in lines[:-1]] == ["ok "] * 6
    assert lines[-1] == f"cifar10 in {root}: right"
    assert "10 images, labels in 0..9, generated" in lines[0]


def test_check_names_the_wrong_file_and_the_reason(root):
    """One truncated, one missing: both named, the others still checked, exit 1."""
    path = root / "cifar-10-batches-bin/data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    (root / "cifar-10-batches-bin/test_batch.bin").unlink()
    result = run("check", "cifar10", "--data", root)
    assert result.exit_code == 1
    bad = [line for line in result.output.splitlines() if line.startswith("BAD")]
    assert len(bad) == 2
    assert "data_batch_2.bin: has 30,729 bytes, expected 30,730: it is truncated" in bad[0]
    assert "test_batch.bin: missing" in bad[1]
    assert "aliceopt data get cifar10" in result.output


@pytest.mark.parametrize("name", ["imagenet64", "tiny-imagenet-64", "wikitext-2", "enwik8"])
def test_check_knows_every_layout(name, tmp_path):
    """Right when generated; not right once generated.json, which allows small sets, is gone."""
    root = generate.write(name, tmp_path, size=60)
    assert run("check", name, "--data", root).exit_code == 0
    (root / "generated.json").unlink()
    result = run("check", name, "--data", root)
    assert result.exit_code == 1
    assert "expected" in result.output


def test_imagenet64_needs_all_its_training_images(tmp_path):
    """Files that are right one by one but too few images together are not right."""
    root = generate.write("imagenet64", tmp_path, size=20)
    generated = (root / "generated.json").read_text()
    assert run("check", "imagenet64", "--data", root).exit_code == 0
    changed = generated.replace('train_data_batch_1.npz": 2', 'train_data_batch_1.npz": 3')
    assert changed != generated
    (root / "generated.json").write_text(changed)
    result = run("check", "imagenet64", "--data", root)
    assert "train_data_batch_1.npz: 2 images, expected 3" in result.output


def test_check_of_digits_needs_no_files():
    """They are built in."""
    result = run("check", "digits")
    assert (result.exit_code, result.output) == (0, "digits built in: right\n")


@pytest.mark.parametrize("command", ["check", "get"])
def test_an_unknown_name_is_refused_with_the_names(command):
    """Exit 2, as for any bad input."""
    result = run(command, "mnist")
    assert result.exit_code == 2
    assert "no data set 'mnist'; there is digits, cifar10" in result.stderr


def test_get_shows_address_terms_and_progress(tmp_path, monkeypatch):
    """And says where the set is; the download itself is tested elsewhere."""

    def fake(name, root, progress):
        progress("downloading", 5, 10)
        progress("downloading", 10, 10)
        return root

    monkeypatch.setattr(download, "get", fake)
    result = run("get", "cifar10", "--data", tmp_path)
    assert result.exit_code == 0
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in result.output
    assert f"cifar10 is in {tmp_path}, checked" in result.output


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (DataError("no way"), 1, "aliceopt: no way"),
        (WriteError("cannot write '/x': Permission denied"), 1, "cannot write '/x': Permission"),
        (KeyboardInterrupt(), 130, "give the same command again to go on"),
    ],
)
def test_get_that_fails_says_why(tmp_path, monkeypatch, error, status, message):
    """One sentence on standard error, never a traceback."""

    def fail(*arguments):
        raise error

    monkeypatch.setattr(download, "get", fail)
    result = run("get", "enwik8", "--data", tmp_path)
    assert result.exit_code == status
    assert message in result.stderr


def test_get_does_nothing_where_there_is_nothing_to_do(root):
    """A set that is there, and one that is built in."""
    assert "is there already" in run("get", "cifar10", "--data", root).output
    assert "built in: nothing to get" in run("get", "digits").output


def test_get_of_imagenet64_explains_the_registration(tmp_path):
    """Page and folder."""
    result = run("get", "imagenet64", "--data", tmp_path)
    assert result.exit_code == 1
    assert "https://image-net.org/download-images.php" in result.stderr
    assert str(tmp_path / "imagenet64") in result.stderr
