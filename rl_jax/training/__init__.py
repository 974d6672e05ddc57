"""The train step, and what compiled programs need: scoring, packing, meshes, multi-host, checkpoints."""
