"""The simulator: the second driver of the brain, on a virtual clock.

Events go into the same coordinator that serves live traffic, and its commands are carried out on a
simulated fleet: replicas that are vLLM's own scheduler and KV cache manager without a model (`engine`),
agents that play the sessions of a workload (`agents`), hosts whose tools slow each other down (`hosts`).
`run.simulate` puts it together.

Nothing here reads a clock or rolls dice of its own: the same workload, fleet and seed give the same
results, byte for byte.
"""
