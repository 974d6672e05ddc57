"""The command: see experiments/sweep/cli.py."""

import sys

from experiments.sweep.cli import main

if __name__ == "__main__":
    sys.exit(main())
