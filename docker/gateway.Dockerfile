# The gateway. Build from the repository root:
#   docker build -f docker/gateway.Dockerfile -t turnpike-gateway .
ARG PYTHON_TAG=3.12-slim

FROM python:${PYTHON_TAG} AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY gateway gateway
# The plugin's contract for hints; its package has no dependencies.
COPY engine_ext engine_ext
RUN python -m venv /opt/turnpike && /opt/turnpike/bin/pip install --no-cache-dir ".[jwt,kv-events,picker]" ./engine_ext

FROM python:${PYTHON_TAG}
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin turnpike
COPY --from=build /opt/turnpike /opt/turnpike
ENV PATH=/opt/turnpike/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
# 8080: what agents talk to. 8081: the control plane, for operators only; do not publish it.
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8081/turnpike/healthz', timeout=2)"]
ENTRYPOINT ["turnpike"]
CMD ["serve", "--config", "/etc/turnpike/turnpike.toml"]
