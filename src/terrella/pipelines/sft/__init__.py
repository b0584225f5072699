"""`terrella sft`: supervised fine-tuning on any examples."""
