"""The settings of the workflow view, composed of those that stand beside each mechanism."""

import msgspec

from gateway.workflow.conversations import ConversationsConfig
from gateway.workflow.retention import RetentionConfig


class WorkflowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    progress: ConversationsConfig = ConversationsConfig()
    kv_retention: RetentionConfig = RetentionConfig()
    share_learned: bool = False
    """What one tenant's sessions teach is used for all tenants. Without it every tenant starts cold; with it
    any tenant can mislead the others."""
