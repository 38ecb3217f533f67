// The SQL field of the query page, and what brings its editor. The page is complete with the plain
// field. The editor is large, so it is loaded only for those who are about to type; then it takes the
// field's place. `Perch.sql` reads and changes what is typed, in either of them.
"use strict";

(() => {
  const field = document.querySelector("textarea[data-run]");
  if (!field) return;
  const { form } = field;
  const typed = () => document.dispatchEvent(new CustomEvent("perch:typed"));

  Perch.sql = {
    get text() { return field.value; },
    set text(text) {
      field.value = text;
      typed();
    },
    focus: () => field.focus(),
    run() {
      const button = form.querySelector("#run");
      if (!button.disabled) button.click();
      return true;
    },
  };

  field.addEventListener("input", typed);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    Perch.sql.run();
  });

  // The first sign that somebody is about to type, or the text that this tab has kept.
  const SIGNS = ["pointermove", "pointerdown", "keydown", "focusin", "perch:typed"];

  function load() {
    for (const sign of SIGNS) document.removeEventListener(sign, load);
    document.head.append(Object.assign(document.createElement("script"), { src: form.dataset.editor }));
  }

  if (field.value) load();
  else for (const sign of SIGNS) document.addEventListener(sign, load);
})();
