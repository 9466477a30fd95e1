"""The wiring: settings reach the part that they are for."""

import msgspec

from gateway.assembly import assemble
from gateway.config import Config
from gateway.domain.decision import RefusalReason
from gateway.domain.session_ids import numbered_ids
from tests.core.playbook import Playbook, arrived, dispatch, refuse


def test_sessions_get_the_names_that_the_shell_gives():
    config = msgspec.convert({"pools": [{"replicas": [{"url": "http://a"}]}]}, Config)
    brain = assemble(config, session_ids=numbered_ids("7f"))
    brain.handle(arrived("r1"), now=0.0)
    assert next(iter(brain.sessions.sessions.newest_first())).id == "s-7f1"


def test_unknown_state_is_refused_where_there_are_tenants():
    play = Playbook(tenants_have_keys=True)
    play >> arrived("r1", state_ids=("x",)) << refuse("r1", RefusalReason.STATE_NOT_FOUND)
    play = Playbook(tenants_have_keys=False)
    play >> arrived("r1", state_ids=("x",)) << dispatch("r1", to="a")


def test_settings_reach_their_part():
    play = Playbook(max_running_per_replica=1, max_waiting=0, core={"max_attempts": 1})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") << refuse("r2", RefusalReason.QUEUE_FULL)
