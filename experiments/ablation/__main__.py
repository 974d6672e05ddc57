"""The command: see experiments/ablation/cli.py."""

from experiments.ablation.cli import main

if __name__ == "__main__":
    main()
