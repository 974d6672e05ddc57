"""The command: see experiments/export/cli.py."""

from experiments.export.cli import main

if __name__ == "__main__":
    main()
