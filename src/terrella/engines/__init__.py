"""Engines: who moves weights, samples, and fans out work.

The only room that imports trainers, vLLM or Ray.
"""
