"""Engines: who moves weights, samples, and fans out work; the only room that imports trainers, vLLM or Ray."""
