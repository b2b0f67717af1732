"""Adapter A: Redis Streams. The only package that imports `redis`."""
