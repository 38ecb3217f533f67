// Keyboard use: the palette, single-key shortcuts, and lists whose choice loads others.
"use strict";

(() => {
  // Choosing a branch loads its roles.

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-choose]")) document.getElementById("choose-branch").click();
  });

  // The palette: typing filters it, arrows move through it, Enter opens the first match.

  // The goals of each list in the order in which the server sent them.
  const unsorted = new WeakMap();

  const goals = () => [...document.querySelectorAll("#dialog .goals a, main .goals a")]
    .filter((goal) => !goal.parentElement.hidden);

  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-palette]")) return;
    const wanted = event.target.value.toLowerCase().trim().split(/\s+/);
    const palette = event.target.closest(".palette");
    const list = palette.querySelector(".goals");
    if (!unsorted.has(list)) unsorted.set(list, [...list.children]);
    for (const item of list.children) {
      const text = item.textContent.toLowerCase();
      item.hidden = !wanted.every((word) => text.includes(word));
    }
    const query = wanted.join(" ");
    const rank = (item) => {
      const [label, detail] = item.querySelectorAll(".name, small:not(.kind)");
      const [name, more] = [label, detail].map((part) => part?.textContent.trim().toLowerCase());
      return !query ? 0 : name === query || more === query ? 1 : name.startsWith(query) ? 2 : 3;
    };
    list.append(...[...unsorted.get(list)].sort((one, other) => rank(one) - rank(other)));
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
