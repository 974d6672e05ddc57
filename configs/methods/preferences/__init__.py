"""The preference methods: what each changes against DPO, in a file of its own. See experiments.tools.methods."""
