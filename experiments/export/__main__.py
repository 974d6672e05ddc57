"""The command: see experiments/export/cli.py."""

import sys

from experiments.export.cli import main

if __name__ == "__main__":
    sys.exit(main())
