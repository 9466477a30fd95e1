"""When a want of this machine's is told."""

import errno
import socket

import pytest

from gateway.upstream.errors import LOCAL_KINDS, local_kind, lookup_error
from gateway.upstream.local_faults import LASTING_S, LocalFaults


def test_a_want_that_lasts_is_told_until_a_connection_is_made():
    faults = LocalFaults()
    assert dict(faults.counts) == dict.fromkeys(LOCAL_KINDS, 0)
    for now in (0.0, LASTING_S / 2, LASTING_S):
        assert faults.lasting(now=now) == []
        faults.saw("dns", now=now)
    assert faults.lasting(now=LASTING_S) == ["dns"] and faults.counts["dns"] == 3
    assert faults.lasting(now=2.1 * LASTING_S) == [], "nobody has tried for a while"
    faults.connected()
    assert faults.lasting(now=LASTING_S) == []


def test_two_faults_with_nothing_between_them_are_no_lasting_want():
    faults = LocalFaults()
    faults.saw("memory", now=0.0)
    faults.saw("memory", now=100 * LASTING_S)
    assert faults.lasting(now=100 * LASTING_S) == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, ""), "file_descriptors"),
        (OSError(errno.ENFILE, ""), "file_descriptors"),
        (OSError(errno.EADDRNOTAVAIL, ""), "local_ports"),
        (OSError(errno.ENOBUFS, ""), "memory"),
        (OSError(errno.ENOMEM, ""), "memory"),
        (socket.gaierror(socket.EAI_AGAIN, ""), "dns"),
        (socket.gaierror(socket.EAI_FAIL, ""), "dns"),
        (socket.gaierror(socket.EAI_NONAME, ""), None),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), None),
        (OSError(errno.EHOSTUNREACH, ""), None),
        (OSError("Multiple exceptions"), None),
        (ValueError(), None),
        (None, None),
    ],
)
def test_what_is_a_want_of_this_machine(error, kind):
    assert local_kind(error) == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, ""), "file_descriptors"),
        (OSError(errno.EBUSY, ""), "dns"),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), "dns"),
        (socket.gaierror(socket.EAI_AGAIN, ""), "dns"),
        (socket.gaierror(socket.EAI_NONAME, ""), None),
    ],
)
def test_a_name_look_up_without_an_answer_is_a_want_of_this_machine_whatever_its_errno(error, kind):
    assert local_kind(lookup_error(error)) == kind
