"""Rewrites scripts of Keras 2 for Keras 3 and keras-parallel.

It reads and writes text: neither Keras nor a backend is imported. Only the
command `keras-parallel migrate` needs it, and LibCST.
"""
