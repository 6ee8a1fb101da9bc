"""What is compared within one process takes turns."""

import random
import time

import jax


def in_turn(turns, least, seconds, most=None):
    """Takes all turns once in each round, in an order that is shuffled anew.

    Args:
        turns: From a key to a function that returns the seconds of a step.
        least: The least number of rounds.
        seconds: Further rounds are begun until so many have passed.
        most: The largest number of rounds.

    Returns:
        For each key, from the number of the round to its seconds.
    """
    order = random.Random(0)
    # What the first runs still have to set up is not counted.
    for turn in turns.values():
        turn()
    found = {key: {} for key in turns}
    begun, number = time.perf_counter(), 0
    while number < least or time.perf_counter() - begun < seconds:
        if number == most:
            break
        for key in order.sample(list(turns), len(turns)):
            found[key][number] = turns[key]()
        number += 1
    return found


def timed(run, steps):
    """Seconds per step of `run`, which runs `steps` of them."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) / steps


def wait_for(model):
    """Returns when the devices have done all that they were given."""
    variables = model.variables + model.optimizer.variables
    jax.block_until_ready([v.value for v in variables])
