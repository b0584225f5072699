"""How much memory a run needs on each device, before it starts."""
