"""The plugin's scheduler with a log of its steps. For `--scheduler-cls`."""

from lab.engine.logging_scheduler import LoggingMixin
from turnpike_vllm.scheduler import TurnpikeScheduler


class LoggingPluginScheduler(LoggingMixin, TurnpikeScheduler):
    pass
