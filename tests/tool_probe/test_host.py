"""From the files of Linux to how busy a host is."""

import pytest

from gateway.domain.engine import HostSignals
from gateway.tool_probe.host import HostMeter, Sample, cores_allowed, runnable, waiting_share

STAT = "cpu  1 2 3\ncpu0 1 2\ncpu1 1 2\nintr 5\nprocs_running {}\nprocs_blocked 0\n"


def sample(at_s: float, running: int = 1, **files: str) -> Sample:
    return Sample(at_s=at_s, stat=STAT.format(running), **files)


def test_a_whole_host_says_how_many_want_to_run():
    meter = HostMeter()
    for at, running in enumerate((3, 5, 1)):
        meter.look(sample(at / 10, running))
    assert meter.report() == HostSignals(cores=2, runnable=2.0)
    meter.look(sample(1.0, 9))
    assert meter.report() == HostSignals(cores=2, runnable=8.0)
    assert meter.report() is None


def test_of_a_cgroup_with_a_limit_it_is_told_by_what_waits():
    def at(at_s: float, used_s: float, some: float) -> Sample:
        return sample(
            at_s,
            50,
            cpu_max="400000 100000\n",
            cpu_stat=f"usage_usec {int(used_s * 1e6)}\nuser_usec 1\n",
            pressure=f"some avg10={some:.2f} avg60=0.00 total=1\nfull avg10=0.00 avg60=0.00 total=0\n",
        )

    meter = HostMeter()
    meter.look(at(0.0, 10.0, 0.0))
    meter.look(at(1.0, 14.0, 75.0))
    said = meter.report()
    assert said is not None and said.cores == 4 and said.runnable == pytest.approx(7.0)
    meter.look(at(2.0, 15.0, 0.0))
    said = meter.report()
    assert said is not None and said.cores == 4 and said.runnable == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["", "max 100000", "0 100000", "nonsense", "5 0"])
def test_what_cannot_be_read_says_nothing(text):
    assert cores_allowed(text) is None and runnable(text) is None and waiting_share(text) == 0.0
    meter = HostMeter()
    assert meter.report() is None
    meter.look(Sample(at_s=0.0, stat=text, cpu_max=text, cpu_stat=text, pressure=text))
    assert meter.report() is None
