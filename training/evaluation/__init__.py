"""Measure a model on labelled sets, beside trivial baselines. docs/evaluation.md explains it."""
