"""Every policy that can be simulated, by name."""

from typing import Final

from gateway.simulator.baselines.agent_xpu import AGENT_XPU
from gateway.simulator.baselines.belady import BELADY
from gateway.simulator.baselines.by_order import OLDEST_FIRST, REACTIVE_FIRST, SMALLEST_FIRST
from gateway.simulator.baselines.class_bound import CLASS_BOUND
from gateway.simulator.baselines.continuum import CONTINUUM, CONTINUUM_DYNAMIC
from gateway.simulator.baselines.dispatch import DISPATCH
from gateway.simulator.baselines.edf import EDF
from gateway.simulator.baselines.infercept import INFERCEPT
from gateway.simulator.baselines.infinite_kv import INFINITE_KV
from gateway.simulator.baselines.kv_footprint import FOOTPRINT, FOOTPRINT_PEAK
from gateway.simulator.baselines.kvflow import KVFLOW
from gateway.simulator.baselines.mars import MARS
from gateway.simulator.baselines.offload import OFFLOAD
from gateway.simulator.baselines.plas import PLAS
from gateway.simulator.baselines.plugin import PLUGIN
from gateway.simulator.baselines.probe import PROBE
from gateway.simulator.baselines.saga import SAGA
from gateway.simulator.baselines.session_cap import REQUEST_CAP, SESSION_CAP
from gateway.simulator.baselines.split import SPLIT
from gateway.simulator.baselines.stock import AFFINITY, STOCK
from gateway.simulator.baselines.sutradhara import SUTRADHARA
from gateway.simulator.baselines.turnpike import TURNPIKE

RECIPES: Final = {
    recipe.name: recipe
    for recipe in (
        TURNPIKE,
        STOCK,
        AFFINITY,
        SPLIT,
        OFFLOAD,
        DISPATCH,
        PLUGIN,
        PROBE,
        PLAS,
        INFERCEPT,
        CONTINUUM,
        CONTINUUM_DYNAMIC,
        KVFLOW,
        MARS,
        SAGA,
        SUTRADHARA,
        AGENT_XPU,
        CLASS_BOUND,
        REACTIVE_FIRST,
        OLDEST_FIRST,
        SMALLEST_FIRST,
        SESSION_CAP,
        REQUEST_CAP,
        FOOTPRINT,
        FOOTPRINT_PEAK,
        EDF,
        BELADY,
        INFINITE_KV,
    )
}
