// Updates a form's curl and neonctl commands while it is filled in, as `request_examples.py` does.
"use strict";

(() => {
  // A single quote within single quotes, for shells.
  const QUOTE = `'"'"'`;
  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", QUOTE)}'`);

  // A day may have another length than 24 hours.
  function endOfDay(day) {
    const next = new Date(Date.parse(day) + 86_400_000).toISOString().slice(0, 10);
    return Perch.typed(`${next}T00:00`);
  }

  const stamp = (milliseconds) => `${new Date(milliseconds).toISOString().slice(0, 19)}Z`;

  // When something expires: after the chosen seconds, or at the time that was typed.
  function endOf(lifetime, until) {
    if (lifetime.value !== "at") return lifetime.value ? stamp(Date.now() + lifetime.value * 1000) : null;
    return until.value ? stamp(Perch.typed(until.value)) : null;
  }

  const settingsOf = (lines) => Object.fromEntries(
    Array.from(lines.matchAll(/^(.*?)=(.*)$/gm), ([, name, value]) => [name.trim(), value.trim()]));

  function valueOf(field, { method, whole }) {
    if (!field) return null;
    if (field instanceof RadioNodeList) {
      const chosen = Array.from(field).filter((box) => box.checked).map((box) => box.value);
      return chosen.length ? chosen : null;
    }
    if (field.type === "date") return field.value ? stamp(endOfDay(field.value)) : null;
    if (field.name === "lifetime") return endOf(field, field.form.elements.until);
    if (field.type === "checkbox") {
      if (method === "PATCH") return !whole && field.checked === field.defaultChecked ? null : field.checked;
      return field.checked || null;
    }
    // A number of minutes beside the choice, as the API's seconds.
    const minutes = field.value === "own" && field.form.elements[`${field.name}_minutes`];
    if (minutes) return minutes.value ? minutes.value * 60 : null;
    const isSame = field.matches("select")
      ? field.selectedOptions[0]?.defaultSelected
      : field.value === field.defaultValue;
    if (method === "PATCH" && isSame && !whole) return null;
    if (field.name === "pg_settings") return settingsOf(field.value);
    if (!field.value.trim()) return null;
    if ("lines" in field.dataset) return field.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (field.dataset.scale) return Math.round(field.value * field.dataset.scale);
    return field.type === "number" || "number" in field.dataset ? Number(field.value) : field.value;
  }

  function put(body, place, value) {
    if (value === null) return;
    const parts = place.split(".");
    let inner = body;
    for (const part of parts.slice(0, -1)) inner = inner[part] ??= {};
    inner[parts.at(-1)] = value;
  }

  function write(details) {
    const sent = JSON.parse(details.dataset.cli);
    const value = (name) => valueOf(details.closest("form").elements[name], sent);
    const body = sent.always;
    for (const [name, place] of Object.entries(sent.fields)) put(body, place, value(name));
    for (const [name, more] of Object.entries(sent.ticked)) if (value(name)) put(body, ...more);
    const data = !Object.keys(body).length ? ""
      : ` \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body))}`;
    const named = sent.neonctl.replace(/\[(\w+)\]/g, (whole, name) => {
      if (!(name in sent.fields)) return whole;
      const given = value(name);
      return given === null ? name.toUpperCase() : quoted(String(given));
    });
    const options = Object.entries(sent.options)
      .map(([name, option]) => (value(name) === null ? "" : `${option} ${quoted(String(value(name)))}`));
    const flags = Object.entries(sent.flags).map(([name, [set, unset]]) => (value(name) ? set : unset));
    const command = [named, ...options, ...flags].filter(Boolean).join(" \\\n  ");
    const texts = { curl: sent.curl + data, neonctl: sent.beyond.some(value) ? sent.unsaid : command };
    for (const code of details.querySelectorAll("code[data-kind]")) {
      const text = texts[code.dataset.kind];
      code.textContent = text;
      code.closest("pre").previousElementSibling.querySelector("[data-copy]").dataset.copy = text;
    }
  }

  for (const kind of ["input", "change"]) {
    document.addEventListener(kind, (event) => {
      const details = event.target.form?.querySelector("[data-cli]");
      if (details) write(details);
    });
  }
})();
