"""SPA: agents that learn the world by self-play before they learn to act.

`tiny` runs here, `paper` on GPUs.
"""
