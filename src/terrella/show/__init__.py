"""Output for people: progress, tables, plots, reports, cards and viewer pages."""
