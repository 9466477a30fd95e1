"""The settings of the workflow view, composed of each mechanism's."""

import msgspec

from gateway.workflow.conversations import ConversationsConfig


class WorkflowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    progress: ConversationsConfig = ConversationsConfig()
    share_learned: bool = False
    """Evidence of one tenant counts for all. Without it every tenant starts cold; with it any tenant can
    mislead the others."""
