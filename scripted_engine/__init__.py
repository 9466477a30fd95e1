"""A scripted real engine: vLLM, with real prefill, decode and KV cache, says what a script says.

For tests, benchmarks and the demo: it is in no wheel, and nothing here is registered with vLLM. The model is
``lab.engine.tiny_model``, which simulated engines have too. The pieces, in the order of a request:

* ``process``, ``__main__``, ``server``: start an engine, from Python or from a shell.
* ``processor``: vLLM's plugin point; its docstring states the behaviour in every special case.
* ``voice`` (prompt tokens to reply), ``chatml`` (prompt text to turns), ``script`` (the file).
* ``playback`` (which token is next), ``forcing`` (put it into the logits).
"""
