"""Evaluation of agents and world models, baselines, and the cost of runs."""
