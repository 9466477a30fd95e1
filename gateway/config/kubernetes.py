"""A service in Kubernetes, whose endpoints are replicas."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE

# Where Kubernetes puts a pod's service account.
_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z"), PRIVATE]
_PortName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"), PRIVATE]


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service in Kubernetes: its endpoints are followed by list and watch of its EndpointSlices."""

    service: _Name
    """Name of the service, best a headless one (`clusterIP: None`)."""
    namespace: _Name
    """Namespace of the service."""
    port: Annotated[int, Meta(ge=1, le=65535)] | _PortName | None = None
    """The port of the pods, or its name in the service; by default the service's only one."""
    scheme: Literal["http", "https"] = "http"
    """Protocol of the pods."""
    api: Annotated[str, Meta(pattern=r"^https?://"), PRIVATE] = "https://kubernetes.default.svc"
    """The API server."""
    token_file: Annotated[str, PRIVATE] | None = f"{_ACCOUNT}/token"
    """The service account's token, read for each request. It needs `list` and `watch` on `endpointslices`."""
    ca_file: Annotated[str, PRIVATE] | None = f"{_ACCOUNT}/ca.crt"
    """Certificates to trust for the API server."""
    watch_s: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    """Duration of a watch, up to twice as long. A silently broken connection is noticed within that time."""
