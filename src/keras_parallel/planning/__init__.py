"""Frozen values that say where everything lives. No Keras, no backend."""

from keras_parallel.planning.against import Crossing
from keras_parallel.planning.against import KindAgainstPlan
from keras_parallel.planning.against import compare
from keras_parallel.planning.busy import Busy
from keras_parallel.planning.busy import busy_devices
from keras_parallel.planning.busy import busy_together
from keras_parallel.planning.devices import KINDS
from keras_parallel.planning.devices import Device
from keras_parallel.planning.devices import choose_devices
from keras_parallel.planning.outline import CallOutline
from keras_parallel.planning.outline import Outline
from keras_parallel.planning.outline import StagesOutline
from keras_parallel.planning.plan import COLLECTIVES
from keras_parallel.planning.plan import Collective
from keras_parallel.planning.plan import DeviceShare
from keras_parallel.planning.plan import Plan
from keras_parallel.planning.planned_stages import PlannedStages
from keras_parallel.planning.planned_stages import plan_stages
from keras_parallel.planning.program import Compilation
from keras_parallel.planning.program import Program
from keras_parallel.planning.program import compile_seconds
from keras_parallel.planning.rows import RowLayout
from keras_parallel.planning.rows import lay_out_rows
from keras_parallel.planning.slots import SlotLayout
from keras_parallel.planning.slots import lay_out_slot
from keras_parallel.planning.stage_calls import PlacedCall
from keras_parallel.planning.stage_calls import Weight
from keras_parallel.planning.stage_names import stage_name
from keras_parallel.planning.stage_names import step_of
from keras_parallel.planning.stage_plan import PlannedStage
from keras_parallel.planning.stage_plan import StagePlan
from keras_parallel.planning.stage_plan import Transfer
from keras_parallel.planning.step_time import StepTime
from keras_parallel.planning.step_time import split_step
from keras_parallel.planning.tensors import Tensor
from keras_parallel.planning.timeline import EVENT_KINDS
from keras_parallel.planning.timeline import HOST
from keras_parallel.planning.timeline import Event
from keras_parallel.planning.timeline import Run
from keras_parallel.planning.timeline import Timeline

__all__ = [
    "COLLECTIVES",
    "EVENT_KINDS",
    "HOST",
    "KINDS",
    "Busy",
    "CallOutline",
    "Collective",
    "Compilation",
    "Crossing",
    "Device",
    "DeviceShare",
    "Event",
    "KindAgainstPlan",
    "Outline",
    "PlacedCall",
    "Plan",
    "PlannedStage",
    "PlannedStages",
    "Program",
    "RowLayout",
    "Run",
    "SlotLayout",
    "StagePlan",
    "StagesOutline",
    "StepTime",
    "Tensor",
    "Timeline",
    "Transfer",
    "Weight",
    "busy_devices",
    "busy_together",
    "choose_devices",
    "compare",
    "compile_seconds",
    "lay_out_rows",
    "lay_out_slot",
    "plan_stages",
    "split_step",
    "stage_name",
    "step_of",
]
