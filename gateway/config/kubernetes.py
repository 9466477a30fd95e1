"""A service in Kubernetes, whose endpoints are replicas."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE

_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes puts a pod's service account."""
_Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z"), PRIVATE]
_PortName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"), PRIVATE]


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service in Kubernetes: its endpoints are followed by list and watch of its EndpointSlices."""

    service: _Name
    """Its name; best a headless service (`clusterIP: None`), as nothing else connects to it."""
    namespace: _Name
    """The one that it is in."""
    port: Annotated[int, Meta(ge=1, le=65535)] | _PortName | None = None
    """The port of the pods, or its name in the service; by default the service's only one."""
    scheme: Literal["http", "https"] = "http"
    """What the pods speak there."""
    api: Annotated[str, Meta(pattern=r"^https?://"), PRIVATE] = "https://kubernetes.default.svc"
    """The API server."""
    token_file: Annotated[str, PRIVATE] | None = f"{_ACCOUNT}/token"
    """The service account's token; read again for each request. It has to be allowed to `list` and
    `watch` `endpointslices`."""
    ca_file: Annotated[str, PRIVATE] | None = f"{_ACCOUNT}/ca.crt"
    """Certificates to trust for the API server."""
    watch_s: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    """A watch is begun anew after this long, or up to twice as long. A connection that broke without a word
    is noticed within that time."""
