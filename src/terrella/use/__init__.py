"""What worlds and world models are used for: baselines, evaluation, later imagination and planning."""
