"""Experiments as data: a stream, methods and constants."""
