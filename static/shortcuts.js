// Keyboard use: single-key shortcuts, and lists whose choice loads others.
"use strict";

(() => {
  // Choosing a branch loads its roles or, where the whole page depends on the choice, the page.

  document.addEventListener("change", ({ target }) => {
    const form = target.closest("form[data-submits]");
    if (form) form.requestSubmit();
    else if (target.matches("[data-choose]")) document.getElementById("choose-branch")?.click();
  });

  // Single-key shortcuts, unless the user is typing or has switched them off; Ctrl-K always works.

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
