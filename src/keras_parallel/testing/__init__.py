"""Checks for test suites: does a parallel model equal one device?"""

from keras_parallel.testing._equality import EqualityReport
from keras_parallel.testing._equality import assert_trains_like_one_device

__all__ = ["EqualityReport", "assert_trains_like_one_device"]
