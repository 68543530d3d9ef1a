"""Continual learners as scikit-learn classifiers: train batch by batch, predict, save and load."""

from scale_cl.estimator.classifier import ContinualClassifier
from scale_cl.estimator.scale import ScaleClassifier

__all__ = ["ContinualClassifier", "ScaleClassifier"]
