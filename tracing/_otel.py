"""Spans of OpenTelemetry, made from the events of a tree."""
