"""`terrella evaluate MODEL|ENDPOINT WORLD...`: agents and world models on held-out instances."""
