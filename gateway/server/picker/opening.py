"""A picker, put together from what the proxy has."""

from collections.abc import Mapping

from gateway.config import Config
from gateway.domain.ids import ReplicaId
from gateway.server.buffer_budget import BufferBudget
from gateway.server.door import Door
from gateway.server.driver import Driver
from gateway.server.outbound import Outbound
from gateway.server.picker.service import PickerServer
from gateway.server.picker.stream import Picking
from gateway.server.reading import Reading
from gateway.server.spending import Spending
from gateway.server.tasks import TaskGroup
from gateway.upstream.replica import Replica


def open_picker(
    config: Config,
    driver: Driver,
    door: Door,
    reading: Reading,
    outbound: Outbound,
    replicas: Mapping[ReplicaId, Replica],
    budget: BufferBudget,
    *,
    are_keys_required: bool,
    spending: Spending | None,
    tasks: TaskGroup,
) -> PickerServer:
    picking = Picking(
        config=config.picker,
        driver=driver,
        door=door,
        reading=reading,
        outbound=outbound,
        replicas=replicas,
        budget=budget,
        limits=config.server.limits,
        are_keys_required=are_keys_required,
        with_receipts=config.server.receipts,
        spending=spending,
        tasks=tasks,
    )
    return PickerServer(picking)
