"""A picker, put together from what the proxy has."""

from collections.abc import Mapping

from gateway.config import Config
from gateway.domain.ids import ReplicaId
from gateway.server.asking import Asking
from gateway.server.buffer_budget import BufferBudget
from gateway.server.door import Door
from gateway.server.picker.service import PickerServer
from gateway.server.picker.stream import Picking
from gateway.upstream.replica import Replica


def open_picker(
    config: Config,
    asking: Asking,
    door: Door,
    replicas: Mapping[ReplicaId, Replica],
    budget: BufferBudget,
) -> PickerServer:
    picking = Picking(
        config=config.picker,
        driver=asking.driver,
        door=door,
        reading=asking.reading,
        outbound=asking.outbound,
        replicas=replicas,
        budget=budget,
        limits=config.server.limits,
        are_keys_required=asking.are_keys_required,
        with_receipts=config.server.receipts,
        spending=asking.spending,
    )
    return PickerServer(picking)
