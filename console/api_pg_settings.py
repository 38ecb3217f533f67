"""The Postgres settings that an endpoint may be given, as the management API lists them."""

from dataclasses import dataclass

from console.api_results import JSONObject, required, text


@dataclass(frozen=True)
class PgSetting:
    name: str
    description: str
    # The value that applies if the endpoint does not set one.
    default: str
    # The allowed values, in words.
    range: str

    @classmethod
    def read(cls, data: JSONObject) -> "PgSetting":
        return cls(
            name=required(data, "name"),
            description=text(data, "description"),
            default=text(data, "default"),
            range=_range(data),
        )


def _range(data: JSONObject) -> str:
    values = data.get("values")
    if isinstance(values, list) and values:
        *others, last = map(str, values)
        return f"{', '.join(others)} or {last}" if others else last
    low, high, unit = text(data, "min"), text(data, "max"), text(data, "unit")
    if low and high:
        return f"{low} to {high}" + (f"; a bare number is in units of {unit}" if unit else "")
    return {"bool": "on or off", "string": "text"}.get(text(data, "type"), "")
