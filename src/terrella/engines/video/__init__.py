"""What video needs beside the text engines: the training of frame tokenizers, of pixel policies and classifiers."""
