"""Continual learners as scikit-learn classifiers: feed them batch by batch, ask, save, load."""

from scale_cl.estimator.classifier import ContinualClassifier
from scale_cl.estimator.scale import ScaleClassifier

__all__ = ["ContinualClassifier", "ScaleClassifier"]
