"""The reader of what XLA compiled, on modules in the text of CPU and GPU."""

from keras_parallel.engines.jax._program import IN_A_LOOP
from keras_parallel.engines.jax._program import collectives_of
from keras_parallel.planning import Collective

# A step on CPU devices: one all-reduce of several tensors. A fusion that takes
# its result is no collective.
CPU = """
HloModule jit_train_step, is_scheduled=true, entry_computation_layout={(f32[4,8]{1,0})->f32[8]{0}}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main.1 (param: f32[4,8]) -> f32[8] {
  %param = f32[4,8]{1,0} parameter(0)
  %grad = f32[3,3,3,8]{3,2,1,0} fusion(%param), kind=kLoop, calls=%add
  %loss = f32[] constant(0)
  %bias = bf16[10]{0} constant({...})
  %all-reduce.13 = (f32[3,3,3,8]{3,2,1,0}, f32[], /*index=2*/bf16[10]{0}) all-reduce(%grad, %loss, /*index=2*/%bias), channel_id=8, replica_groups=mesh['axis_0'=3] {'axis_0'}, use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(train_step)/transpose(jvp(conv2d))/conv" stack_frame_id=61}
  %get-tuple-element.1 = f32[3,3,3,8]{3,2,1,0} get-tuple-element(%all-reduce.13), index=0
  ROOT %fused = f32[8]{0} fusion(%get-tuple-element.1, %all-reduce.13), kind=kLoop, calls=%add, metadata={op_name="jit(train_step)/all-reduce(x)/reduce_sum"}
}
"""

# Pairs of instructions, layouts with tiles, an asynchronous wrapper.
GPU = """
HloModule jit_train_step, is_scheduled=true

%wrapped (p: f32[16]) -> f32[8] {
  %p = f32[16]{0} parameter(0)
  ROOT %reduce-scatter.1 = f32[8]{0} reduce-scatter(%p), channel_id=3, dimensions={0}, to_apply=%add
}

ENTRY %main (a: f32[1024], b: f16[8]) -> f32[1024] {
  %a = f32[1024]{0:T(256)} parameter(0)
  %b = f16[8]{0} parameter(1)
  %p = f32[16]{0} parameter(2)
  %all-reduce-start.1 = f32[1024]{0:T(256)} all-reduce-start(%a), channel_id=1, replica_groups={{0,1}}, to_apply=%add, metadata={op_name="jit(train_step)/transpose(jvp(dense))/dot_general"}, backend_config={"collective_backend_config":{"is_sync":false}}
  %all-gather-start = (f16[8]{0}, f16[16]{0}) all-gather-start(%b), channel_id=2, dimensions={0}
  %reduce-scatter-start = ((f32[16]{0}), f32[8]{0}) async-start(%p), calls=%wrapped
  %all-reduce-done.1 = f32[1024]{0:T(256)} all-reduce-done(%all-reduce-start.1)
  %all-gather-done = f16[16]{0} all-gather-done(%all-gather-start)
  %reduce-scatter-done = f32[8]{0} async-done(%reduce-scatter-start), calls=%wrapped
  ROOT %copy = f32[1024]{0} copy(%all-reduce-done.1)
}
"""

LOOPS = """
HloModule jit_train_step

%known_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %v = f32[8]{0} get-tuple-element(%s), index=1
  %permuted = f32[8]{0} collective-permute(%v), channel_id=1, source_target_pairs={{0,1}}
  ROOT %t = (s32[], f32[8]{0}) tuple(%v, %permuted)
}

%unknown_body (s.1: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s.1 = (s32[], f32[8]{0}) parameter(0)
  %v.1 = f32[8]{0} get-tuple-element(%s.1), index=1
  ROOT %sum.1 = (s32[], f32[8]{0}) all-reduce(%v.1), channel_id=2, to_apply=%add, metadata={op_name="jit(train_step)/while/body/psum"}
}

ENTRY %main (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %first = (s32[], f32[8]{0}) while(%p), condition=%cond, body=%known_body, backend_config={"known_trip_count":{"n":"12"}}
  ROOT %second = (s32[], f32[8]{0}) while(%first), condition=%cond, body=%unknown_body
}
"""


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
    assert (permute.count, permute.bytes) == (12, 32)
    assert permute.purpose == "permuted"
    assert (reduce.count, reduce.bytes) == (1, 32)
    assert reduce.purpose == IN_A_LOOP + "jit(train_step)/while/body/psum"


def test_a_module_of_one_device_has_none():
    assert collectives_of("HloModule jit_f\n\nENTRY %m () -> f32[] {\n}") == ()
