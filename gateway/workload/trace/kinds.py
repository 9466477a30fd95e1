"""The corpora that become workloads, by the name that the command line knows them by."""

from typing import Final

from gateway.workload.trace.agentcgroup import AGENTCGROUP
from gateway.workload.trace.azure import AZURE
from gateway.workload.trace.conversations import LMCACHE, SWE_AGENT, TAU_BENCH
from gateway.workload.trace.gateway_stream import GATEWAY_STREAM
from gateway.workload.trace.importer import Corpus
from gateway.workload.trace.kv_cache_tester import KV_CACHE_TESTER
from gateway.workload.trace.mooncake import MOONCAKE
from gateway.workload.trace.servegen import SERVEGEN
from gateway.workload.trace.tracelab import TRACELAB

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
