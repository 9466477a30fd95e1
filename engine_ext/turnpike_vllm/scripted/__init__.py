"""A scripted real engine: vLLM, with real prefill, decode and KV cache, says what a script says.

Off unless asked for: nothing here is registered with vLLM. The pieces, in the order of a request:

* ``process``, ``__main__``, ``server``: start an engine, from Python or from a shell.
* ``tiny_model``: a model directory without a download. ``chat_template.jinja`` belongs to it.
* ``processor``: vLLM's plugin point; its docstring states the behaviour in every special case.
* ``voice`` (prompt tokens to reply), ``chatml`` (prompt text to turns), ``script`` (the file).
* ``playback`` (which token is next), ``forcing`` (put it into the logits).
"""
