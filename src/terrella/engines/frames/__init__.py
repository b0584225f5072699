"""Training of models of frames: the frame tokenizer, pixel policies and success classifiers."""
