"""Policies: who chooses the actions."""
