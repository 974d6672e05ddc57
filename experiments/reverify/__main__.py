"""The command: see experiments/reverify/cli.py."""

import sys

from experiments.reverify.cli import main

if __name__ == "__main__":
    sys.exit(main())
