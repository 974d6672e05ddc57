"""The command: see experiments/plan/cli.py."""

from experiments.plan.cli import main

if __name__ == "__main__":
    main()
