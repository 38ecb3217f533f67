"""The sign-in form."""

from collections.abc import Sequence

from django import forms

from console.forms import offer
from console.servers import Server


class SignInForm(forms.Form):
    key = forms.CharField(
        label="API key",
        strip=True,
        # A rejected key stays in the field, so that it can be corrected. Only its sender gets it.
        widget=forms.PasswordInput(
            render_value=True, attrs={"autocomplete": "current-password", "autofocus": True}
        ),
    )

    server = forms.ChoiceField(required=False)
    field_order = ("server", "key")

    def offer_servers(self, found: Sequence[Server]) -> None:
        """Offer the servers. If there is only one, the field is removed."""
        offer(self, "server", ((server.name, server.shown_name) for server in found))
        if len(found) == 1:
            del self.fields["server"]

    def clean_key(self) -> str:
        key = str(self.cleaned_data["key"])
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise forms.ValidationError("An API key is one word of plain letters and digits.")
        return key
