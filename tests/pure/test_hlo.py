"""The reader of what XLA compiled, on modules in the text of CPU and GPU."""

import pathlib

from keras_parallel.engines.jax._program import IN_A_LOOP
from keras_parallel.engines.jax._program import collectives_of
from keras_parallel.planning import Collective


def read(name):
    return (pathlib.Path(__file__).parent / "hlo" / f"{name}.txt").read_text()


# A step on CPU devices: one all-reduce of several tensors. A fusion that takes
# its result is no collective.
CPU = read("cpu")

# Pairs of instructions, layouts with tiles, an asynchronous wrapper.
GPU = read("gpu")

LOOPS = read("loops")


def test_an_all_reduce_of_several_tensors_is_one():
    size = 3 * 3 * 3 * 8 * 4 + 4 + 10 * 2
    purpose = "jit(train_step)/transpose(jvp(conv2d))/conv"
    assert collectives_of(CPU) == (Collective("all-reduce", purpose, size),)


def test_asynchronous_pairs_are_counted_once_by_what_goes_in():
    found = {c.kind: c for c in collectives_of(GPU)}
    assert len(found) == len(collectives_of(GPU)) == 3
    assert found["all-reduce"].bytes == 4096
    assert found["all-reduce"].purpose.endswith("jvp(dense))/dot_general")
    assert found["all-gather"].bytes == 16
    assert found["reduce-scatter"].bytes == 64


def test_in_a_loop_each_pass_counts():
    permute, reduce = collectives_of(LOOPS)
    assert (permute.count, permute.bytes) == (12, 12 * 32)
    assert permute.purpose == "permuted"
    assert (reduce.count, reduce.bytes) == (1, 32)
    assert reduce.purpose == IN_A_LOOP + "jit(train_step)/while/body/psum"


def test_a_module_of_one_device_has_none():
    assert collectives_of("HloModule jit_f\n\nENTRY %m () -> f32[] {\n}") == ()
