"""The command: see experiments/score/cli.py."""

import sys

from experiments.score.cli import main

if __name__ == "__main__":
    sys.exit(main())
