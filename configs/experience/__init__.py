"""Methods that change what a step learns from: hints, demonstrations, refinements, another reference, own votes."""
