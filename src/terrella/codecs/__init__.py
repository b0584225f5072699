"""Codecs: the only place where observations and actions become prompts and token ids, and come back."""
