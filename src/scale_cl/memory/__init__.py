"""The episodic memory: samples of earlier tasks within a budget, kept by a policy, drawn from without host work."""

from scale_cl.memory.episodic import BUDGETS, Budget, EpisodicMemory, first_tasks
from scale_cl.memory.policies import POLICIES, Policy, PolicyName

__all__ = ["BUDGETS", "POLICIES", "Budget", "EpisodicMemory", "Policy", "PolicyName", "first_tasks"]
