"""The corpora that become workloads, by the name that the command line knows them by."""

from typing import Final

from lab.workload.trace.agentcgroup import AGENTCGROUP
from lab.workload.trace.azure import AZURE
from lab.workload.trace.conversations import LMCACHE, SWE_AGENT, TAU_BENCH
from lab.workload.trace.gateway_stream import GATEWAY_STREAM
from lab.workload.trace.importer import Corpus
from lab.workload.trace.kv_cache_tester import KV_CACHE_TESTER
from lab.workload.trace.mooncake import MOONCAKE
from lab.workload.trace.servegen import SERVEGEN
from lab.workload.trace.tracelab import TRACELAB

CORPORA: Final[dict[str, Corpus]] = {
    "kv-cache-tester": KV_CACHE_TESTER,
    "mooncake": MOONCAKE,
    "azure": AZURE,
    "servegen": SERVEGEN,
    "tracelab": TRACELAB,
    "turnpike": GATEWAY_STREAM,
    "agentcgroup": AGENTCGROUP,
    "lmcache": LMCACHE,
    "swe-agent": SWE_AGENT,
    "tau-bench": TAU_BENCH,
}
