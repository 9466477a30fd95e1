# A stock vLLM server that loads Turnpike's plugin. Build from the repository root:
#   docker build -f docker/engine.Dockerfile -t turnpike-engine .
# Its arguments are those of `vllm serve`; the plugin's scheduler is one of them:
#   turnpike-engine MODEL --scheduler-cls=turnpike_vllm.scheduler.TurnpikeScheduler --enable-prompt-tokens-details
ARG PYTHON_TAG=3.12.12-slim-bookworm@sha256:593bd06efe90efa80dc4eee3948be7c0fde4134606dd40d8dd8dbcade98e669c
# With a digest behind it, no other image can take its place: v0.32.0@sha256:...
ARG VLLM_TAG=v0.32.0

FROM python:${PYTHON_TAG} AS wheel
WORKDIR /src
COPY requirements.lock ./
RUN awk '/^uv==/,!/\\$/' requirements.lock >uv.txt && pip install --no-cache-dir --require-hashes -r uv.txt
COPY engine_ext engine_ext
RUN uv build --no-cache --wheel --build-constraints requirements.lock --out-dir /wheels engine_ext

# vLLM's own entry point (`vllm serve`) and user stay as they are.
FROM vllm/vllm-openai:${VLLM_TAG}
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
  uv pip install --system --no-cache --no-deps /wheels/*.whl
# Every plugin that vLLM may load, separated by commas.
ENV VLLM_PLUGINS=turnpike
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
