"""Helpers of `data_parallel.py`.

The workers are scripts that run in the environments of the peers and import one
another by plain names; the other modules run in the parent.
"""
