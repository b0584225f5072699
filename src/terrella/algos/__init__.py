"""The maths of training: pure functions on tensors, without I/O, shared by both engines."""
