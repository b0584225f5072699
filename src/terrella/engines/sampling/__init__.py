"""Samplers: token ids in, token ids and log-probabilities out; in this process, or on a vLLM server."""
