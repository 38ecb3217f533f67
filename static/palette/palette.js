// The palette: typing filters it, arrows move through it, Enter opens the first match.
"use strict";

(() => {
  // The goals of each list in the order in which the server sent them.
  const unsorted = new WeakMap();

  const goals = () => [...document.querySelectorAll("#dialog .goals a, main .goals a")]
    .filter((goal) => !goal.parentElement.hidden);

  function filter(field) {
    const wanted = field.value.toLowerCase().trim().split(/\s+/);
    const palette = field.closest(".palette");
    const list = palette.querySelector(".goals");
    const known = unsorted.get(list) ?? [];
    // What has been added since, such as what is in other projects, comes last.
    unsorted.set(list, [...known, ...[...list.children].filter((item) => !known.includes(item))]);
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
  }

  document.addEventListener("input", ({ target }) => {
    if (target.matches("[data-palette]")) filter(target);
  });
  document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
    if (target.id === "goals") filter(target.closest(".palette").querySelector("[data-palette]"));
  });
  // What was typed before this script was loaded.
  const field = document.querySelector("[data-palette]");
  if (field && field.value !== field.defaultValue) filter(field);

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
})();
