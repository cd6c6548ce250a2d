"""The command as a user types it, in this process, and the quickest runs there are."""

from typer.testing import CliRunner

from aliceopt.cli import build


def aliceopt(*arguments):
    return CliRunner().invoke(build(), [str(argument) for argument in arguments])


def smoke(name, *more):
    return aliceopt("run", name, "--scale", "smoke", "--workers", 1, "--device", "cpu", *more)


def quick(*more):
    """The quickest run there is: one seed of Adam, two steps."""
    sets = ("--set", "train.steps=2", "--set", "train.validation_batches=1", "--seeds", 1)
    return smoke("resnet18-methods", "--methods", "adam", *sets, *more)
