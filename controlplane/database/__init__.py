"""The Django database backend for the metadata: the ENGINE in `controlplane.settings`."""
