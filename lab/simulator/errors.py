"""What goes wrong in a simulation."""


class SimulatorError(Exception):
    """The simulation cannot be run as asked; says what, for a person."""


class EngineMissingError(SimulatorError):
    """vLLM, whose scheduler the simulated replicas are, is not installed."""


class ConservationError(SimulatorError):
    """Something was lost or made up on the way: a bug of the simulator, or of what it ran."""
