"""The engine plugin's scheduler, which also keeps a log of its steps. For `--scheduler-cls`."""

from lab.engine.logging_scheduler import StepLogging
from turnpike_vllm.scheduler import TurnpikeScheduler


class LoggingTurnpikeScheduler(StepLogging, TurnpikeScheduler):
    pass
