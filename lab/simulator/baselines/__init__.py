"""Baselines: what Turnpike is measured against, each in a module of its own.

A policy that can be simulated is a *recipe*, a change to a *plan* (`plan`): how the gateway is driven, how
the engines are set up and biased, what the fleet has. Recipes combine, `session-cap:n=12+offload`;
`registry` names them all, `spec` reads what a person writes.

Gateways that are not ours are a `Router`: it knows the sessions that clients state, keeps each on one
replica, and asks a window whether one more may enter. Engine policies are `EnginePolicy`s. What is
clairvoyant says so.

Everything here is pure but for the plan that names a cost profile; vLLM is not imported.
"""
