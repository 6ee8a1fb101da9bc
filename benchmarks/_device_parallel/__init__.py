"""Helpers of `device_parallel.py`: what is trained, and each question."""
