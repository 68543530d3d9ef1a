"""The episodic memory: samples of earlier tasks within a budget, kept by a policy, drawn from without host work."""

from scale_cl.memory.episodic import EpisodicMemory
from scale_cl.memory.policies import POLICIES, Policy, PolicyName
from scale_cl.memory.ragged_rows import Journal
from scale_cl.memory.slots import BUDGETS, Budget, first_tasks
from scale_cl.memory.stored_rows import Batch

__all__ = ["BUDGETS", "POLICIES", "Batch", "Budget", "EpisodicMemory", "Journal", "Policy", "PolicyName", "first_tasks"]
