"""Rollouts: env pool, episodes, tasks, reward shaping, fan-out on Ray."""
