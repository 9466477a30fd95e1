"""Real Redis servers for tests."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import redis
import trustme

from scripted_engine.ports import free_port
from tests.prerequisites import require_command

USER, PASSWORD = "turnpike", "p:a/s@s"
RIGHTS = "~turnpike:1:* +@read +@write +@scripting +@connection +time".split()
"""What docs/operate/several-gateways.md says that the user needs."""


class RedisServer:
    def __init__(self, directory: Path, *settings: str, kind: str = "plain") -> None:
        """`kind`: plain, cluster (this one node has all slots), node (of a cluster, without slots), or secure
        (TLS, and an ACL user)."""
        self.kind = kind
        self.port = free_port()
        self.directory = directory
        self._settings = list(settings)
        self._process: subprocess.Popen[bytes] | None = None
        if kind in ("cluster", "node"):
            self.cluster_port = free_port()
            self._settings += ["--cluster-enabled", "yes", "--cluster-port", str(self.cluster_port)]
        if kind == "secure":
            authority = trustme.CA()
            own = authority.issue_cert("127.0.0.1")
            own.private_key_pem.write_to_path(os.fspath(directory / "key.pem"))
            own.cert_chain_pems[0].write_to_path(os.fspath(directory / "chain.pem"))
            authority.cert_pem.write_to_path(os.fspath(directory / "ca.pem"))
            self._settings += ["--tls-port", str(self.port), "--port", "0", "--tls-auth-clients", "no"]
            for setting, file in (("cert", "chain"), ("key", "key"), ("ca-cert", "ca")):
                self._settings += [f"--tls-{setting}-file", os.fspath(directory / f"{file}.pem")]
            self._settings += ["--user", USER, "on", f">{PASSWORD}", *RIGHTS, "--requirepass", PASSWORD]
        else:
            self._settings += ["--port", str(self.port)]

    @property
    def url(self) -> str:
        if self.kind == "secure":
            return f"rediss://{USER}@127.0.0.1:{self.port}?ssl_ca_certs={self.directory}/ca.pem"
        return f"redis{'+cluster' if self.kind == 'cluster' else ''}://127.0.0.1:{self.port}"

    @property
    def password(self) -> str | None:
        return PASSWORD if self.kind == "secure" else None

    def start(self) -> "RedisServer":
        command = [require_command("redis-server"), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", os.fspath(self.directory), *self._settings]
        command += [
            "--set-proc-title",
            "no",
        ]  # it would overwrite the environment by which the guardian knows it
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._await_start(until=time.monotonic() + 20)
        except BaseException:
            self.kill()
            raise
        return self

    def _await_start(self, *, until: float) -> None:
        assert self._process is not None
        with self.admin() as admin:
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    admin.ping()
                    break
                assert self._process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.01)
            if self.kind == "cluster":
                if b"cluster_slots_assigned:0" in admin.execute_command("CLUSTER", "INFO"):
                    admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                while b"cluster_state:ok" not in admin.execute_command("CLUSTER", "INFO"):
                    assert time.monotonic() < until
                    time.sleep(0.01)

    def admin(self) -> redis.Redis:
        if self.kind == "secure":
            url = self.url.replace(f"{USER}@", "")
            return redis.Redis.from_url(url, password=PASSWORD)
        return redis.Redis(port=self.port)

    def send(self, signal_: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(signal_)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class RedisCluster:
    """Of three nodes, each with a third of the slots."""

    kind = "three"
    password = None

    def __init__(self, directory: Path) -> None:
        self.nodes = []
        for number in range(3):
            (directory / f"node-{number}").mkdir()
            node = RedisServer(
                directory / f"node-{number}", "--cluster-require-full-coverage", "no", kind="node"
            )
            self.nodes.append(node)

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def start(self) -> "RedisCluster":
        try:
            self._start(until=time.monotonic() + 30)
        except BaseException:
            self.kill()
            raise
        return self

    def _start(self, *, until: float) -> None:
        for number, node in enumerate(self.nodes):
            node.start()
            with node.admin() as admin:
                slots = (number * 5462, min(16383, number * 5462 + 5461))
                admin.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
                first = self.nodes[0]
                admin.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, first.cluster_port)
        for node in self.nodes:
            with node.admin() as admin:
                while not {b"cluster_state:ok", b"cluster_slots_ok:16384"} <= set(
                    admin.execute_command("CLUSTER", "INFO").split()
                ):
                    assert time.monotonic() < until
                    time.sleep(0.01)

    def admin(self) -> redis.RedisCluster:
        return redis.RedisCluster("127.0.0.1", self.nodes[0].port)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
