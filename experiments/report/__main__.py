"""The command: see experiments/report/cli.py."""

from experiments.report.cli import main

if __name__ == "__main__":
    main()
