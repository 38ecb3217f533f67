// Ways around: the query page's keys, the palette, and single keys.
"use strict";

(() => {
  // The query page: Ctrl-Enter runs, another branch brings its roles, an error is selected.

  document.addEventListener("keydown", (event) => {
    const field = event.target.closest?.("[data-run]");
    if (!field || event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const button = field.form.querySelector("#run");
    if (!button.disabled) button.click();
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-choose]")) document.getElementById("choose-branch").click();
  });

  document.addEventListener("htmx:afterSwap", () => {
    const [start, end] = document.querySelector("[data-mark]")?.dataset.mark.split(",") ?? [];
    const field = document.activeElement;
    if (start && field.matches("[data-run]")) field.setSelectionRange(start, end);
  });

  // The same by command: written anew while a form is filled in, as `same_request.py` writes it.

  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

  function valueOf(field, method) {
    if (!field) return null;
    if (field.type === "checkbox") {
      if (method === "PATCH") return field.checked === field.defaultChecked ? null : field.checked;
      return field.checked || null;
    }
    const isSame = field.matches("select")
      ? field.selectedOptions[0]?.defaultSelected
      : field.value === field.defaultValue;
    if (!field.value || (method === "PATCH" && isSame)) return null;
    return field.type === "number" ? Number(field.value) : field.value;
  }

  function write(same) {
    const sent = JSON.parse(same.dataset.same);
    const value = (name) => valueOf(same.closest("form").elements[name], sent.method);
    const body = sent.always;
    for (const [name, place] of Object.entries(sent.fields)) {
      if (value(name) === null) continue;
      const last = place.at(-1);
      let inner = body;
      for (const part of place.slice(0, -1)) inner = inner[part] ??= {};
      inner[last] = value(name);
    }
    for (const [name, more] of Object.entries(sent.ticked)) if (value(name)) Object.assign(body, more);
    const isEmpty = sent.method === "DELETE" || !Object.keys(body).length;
    const data = isEmpty ? "" : ` \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body))}`;
    const named = sent.neonctl.replace(/\[(\w+)\]/g, (_, name) => {
      const given = value(name);
      return given === null ? name.toUpperCase() : quoted(String(given));
    });
    const options = Object.entries(sent.options)
      .map(([name, option]) => (value(name) === null ? "" : ` ${option} ${quoted(String(value(name)))}`));
    const texts = { curl: sent.curl + data, neonctl: named + options.join("") };
    for (const code of same.querySelectorAll("code[data-kind]")) {
      const text = texts[code.dataset.kind];
      code.textContent = text;
      code.closest("pre").previousElementSibling.querySelector("[data-copy]").dataset.copy = text;
    }
  }

  for (const kind of ["input", "change"]) {
    document.addEventListener(kind, (event) => {
      const same = event.target.form?.querySelector("[data-same]");
      if (same) write(same);
    });
  }

  // The palette: what is typed narrows it, arrows go through it, Enter takes the first.

  const goals = () => [...document.querySelectorAll("#dialog .goals a, main .goals a")]
    .filter((goal) => !goal.parentElement.hidden);

  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-palette]")) return;
    const words = event.target.value.toLowerCase().split(/\s+/);
    const palette = event.target.closest(".palette");
    for (const item of palette.querySelectorAll(".goals li")) {
      const text = item.textContent.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
    }
    palette.querySelector(".none").hidden = goals().length > 0;
  });

  document.addEventListener("keydown", (event) => {
    const inPalette = event.target.closest?.(".palette");
    if (!inPalette || !["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) return;
    const field = inPalette.querySelector("[data-palette]");
    const all = goals();
    if (event.key === "Enter") {
      if (event.target !== field || !all.length) return;
      all[0].click();
    } else {
      const place = all.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1);
      (all[Math.min(place, all.length - 1)] ?? field).focus();
    }
    event.preventDefault();
  });

  // Single keys, unless somebody types, or has switched them off; Ctrl-K for everybody.

  const FIELDS = "input, textarea, select, [contenteditable]";
  const PAUSE = 1500;
  let before = "";
  let forget;

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const key = event.key.toLowerCase();
    if ((event.ctrlKey || event.metaKey) && !event.altKey && key === "k") {
      const opener = document.getElementById("open-palette");
      if (opener) event.preventDefault();
      opener?.click();
      return;
    }
    const isOff = document.body.dataset.shortcuts === "off";
    if (isOff || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.(FIELDS) || event.key.length !== 1) return;
    const pressed = before ? `${before} ${key}` : key;
    before = !before && key === "g" ? "g" : "";
    clearTimeout(forget);
    forget = setTimeout(() => { before = ""; }, PAUSE);
    const found = pressed === "/"
      ? document.querySelector("main input[type=search], main [data-filter]")
      : document.querySelector(`[data-shortcut=${JSON.stringify(pressed)}]`);
    if (!found) return;
    event.preventDefault();
    if (pressed === "/") found.focus();
    else found.click();
  });
})();
