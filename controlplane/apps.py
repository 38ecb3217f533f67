from django.apps import AppConfig


class ControlPlane(AppConfig):
    name = "controlplane"
    verbose_name = "Perch's control plane"
