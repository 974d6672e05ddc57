"""Our own environments: probes, driving, inventory, finite MDPs."""
