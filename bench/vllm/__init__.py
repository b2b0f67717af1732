"""Straight to vLLM and through the queue, compared on the same prompts."""
