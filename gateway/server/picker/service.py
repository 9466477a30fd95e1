"""The gRPC server that Envoy asks: `envoy.service.ext_proc.v3.ExternalProcessor`, and gRPC's health check."""

from typing import Any, Final

import grpc
import grpc.aio

from gateway.config.server import split_listen
from gateway.server.picker.messages import ProcessingRequest, ProcessingResponse
from gateway.server.picker.stream import Picking, Stream

_PROCESSOR: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
_HEALTH: Final = "grpc.health.v1.Health"
_SERVING: Final = b"\x08\x01"
"""`HealthCheckResponse` with the status SERVING."""
_NOT_SERVING: Final = b"\x08\x02"
_MORE_BYTES: Final = 1 << 20
"""A message holds a body, and what is around it."""


class PickerServer:
    def __init__(self, picking: Picking) -> None:
        self._picking = picking
        self._is_serving = True
        self.stream_count = 0
        most = picking.limits.max_body_bytes + _MORE_BYTES
        options = [
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", most),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=picking.config.max_streams)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    _PROCESSOR,
                    {
                        "Process": grpc.stream_stream_rpc_method_handler(
                            self._process,
                            request_deserializer=ProcessingRequest.FromString,
                            response_serializer=ProcessingResponse.SerializeToString,
                        )
                    },
                ),
                grpc.method_handlers_generic_handler(
                    _HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(self._check)}
                ),
            )
        )

    async def start(self) -> int:
        """The port. Raises OSError if the address cannot be bound."""
        host, port = split_listen(self._picking.config.listen)
        try:
            bound: int = self._server.add_insecure_port(
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            )
        except RuntimeError as error:
            raise OSError(str(error)) from None
        await self._server.start()
        return bound

    def retire(self) -> None:
        """Health checks fail from now on; whoever asks is served."""
        self._is_serving = False

    async def stop(self, grace_s: float) -> None:
        """No more streams; those that run may end."""
        await self._server.stop(grace_s)

    async def _process(self, _: Any, context: Any) -> None:
        self.stream_count += 1
        try:
            await Stream(self._picking, _host_of(context.peer()), context.write).run(
                context.read, grpc.aio.EOF
            )
        finally:
            self.stream_count -= 1

    async def _check(self, _: bytes, __: Any) -> bytes:
        return _SERVING if self._is_serving else _NOT_SERVING


def _host_of(peer: str) -> str:
    """Of `ipv4:10.0.0.1:1234` or `ipv6:%5B::1%5D:1234`."""
    return peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
