"""Drawings that the figures of several papers share."""
