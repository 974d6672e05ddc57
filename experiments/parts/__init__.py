"""What the programs share. A part knows no program."""
