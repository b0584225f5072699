"""The engine for people without GPUs: a Tinker-compatible endpoint trains and samples adapters."""
