"""The command: see experiments/frontier/cli.py."""

from experiments.frontier.cli import main

if __name__ == "__main__":
    main()
