"""Codecs: the only place where observations and actions become token ids and come back."""
