"""Actors, critics and reward networks for environments: torsos, memories, action distributions."""
