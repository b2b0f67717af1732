"""Decides and publishes how many workers there should be."""
