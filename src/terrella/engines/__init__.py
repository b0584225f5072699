"""Engines: who moves weights and fans out work; the only room that imports torch trainers, vLLM or Ray."""
