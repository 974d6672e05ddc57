"""Hugging Face folders and llama2.c files: families as data, weights, adapters in PEFT's format."""
