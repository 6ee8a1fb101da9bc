"""The parts of `check_gpu.py`."""
