# A stock vLLM server with Turnpike's plugin beside it. Build from the repository root:
#   docker build -f docker/engine.Dockerfile -t turnpike-engine .
ARG PYTHON_TAG=3.12-slim
ARG VLLM_TAG=v0.32.0

FROM python:${PYTHON_TAG} AS wheel
WORKDIR /src
COPY engine_ext .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# vLLM's own entry point (`vllm serve`), user and environment stay as they are.
FROM vllm/vllm-openai:${VLLM_TAG}
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
  uv pip install --system --no-cache --no-deps /wheels/*.whl
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
