"""Every policy that can be simulated, by name."""

from typing import Final

from lab.simulator.baselines.agent_xpu import AGENT_XPU
from lab.simulator.baselines.belady import BELADY
from lab.simulator.baselines.by_order import OLDEST_FIRST, REACTIVE_FIRST, SMALLEST_FIRST
from lab.simulator.baselines.class_bound import CLASS_BOUND
from lab.simulator.baselines.concur import CONCUR
from lab.simulator.baselines.continuum import CONTINUUM, CONTINUUM_DYNAMIC
from lab.simulator.baselines.dispatch import DISPATCH
from lab.simulator.baselines.edf import EDF
from lab.simulator.baselines.infercept import INFERCEPT
from lab.simulator.baselines.infinite_kv import INFINITE_KV
from lab.simulator.baselines.kv_footprint import FOOTPRINT, FOOTPRINT_PEAK
from lab.simulator.baselines.kvflow import KVFLOW
from lab.simulator.baselines.mars import MARS
from lab.simulator.baselines.offload import OFFLOAD
from lab.simulator.baselines.plas import PLAS
from lab.simulator.baselines.plugin import PLUGIN
from lab.simulator.baselines.probe import PROBE
from lab.simulator.baselines.saga import SAGA
from lab.simulator.baselines.session_cap import REQUEST_CAP, SESSION_CAP
from lab.simulator.baselines.split import SPLIT
from lab.simulator.baselines.stock import AFFINITY, STOCK
from lab.simulator.baselines.sutradhara import SUTRADHARA
from lab.simulator.baselines.thunderagent import DYNAMO_PROGRAM, THUNDERAGENT
from lab.simulator.baselines.turnpike import TURNPIKE

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
        CONCUR,
        THUNDERAGENT,
        DYNAMO_PROGRAM,
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
