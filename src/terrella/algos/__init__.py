"""The maths of training: one page each, tensors in, tensors out, no I/O. Both engines use these pages."""
