"""What Turnpike is measured and tested with: simulated fleets, workloads, recorded sessions.

A distribution of its own (`turnpike-lab`): nothing that serves imports it.

* `workload`: recordings and traces in one format, and mixes that are composed of them.
* `engine`: vLLM's scheduler without a model, on a virtual clock; a tiny model for vLLM itself.
* `simulator`: the second driver of the brain: policies on a workload, on a simulated fleet.
* `evaluation`: how right inference is on recorded traffic.
"""
