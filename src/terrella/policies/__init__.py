"""Policies: random, expert and mixed play, chat endpoints, pixel networks and people."""
