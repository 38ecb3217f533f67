"""Perch's own database, as Django reaches it: `controlplane.settings` names this as the ENGINE."""
