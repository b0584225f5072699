"""SPA: self-play, then SFT on true states, then RL."""
