"""Verifiers: compare a reply with the true observation, one module per kind of observation."""
