"""Operations no longer belong to traces. The column stays for processes of the previous release."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0061_restores_and_slugs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField("operation", "traceparent")]
        ),
    ]
