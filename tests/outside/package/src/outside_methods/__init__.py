"""Continual learners for scale-cl, installed as a package of their own."""
