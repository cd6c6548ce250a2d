"""What is trained: a model, its data, and how success is measured."""
