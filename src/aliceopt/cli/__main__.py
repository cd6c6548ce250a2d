"""``python -m aliceopt.cli``."""

from aliceopt.cli import main

main()
