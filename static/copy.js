// Copying: a text on the page, or a connection string. The server is asked for a connection string
// when its button is pressed, so that it has the password although the page does not show it.
"use strict";

(() => {
  function copied(button) {
    button.classList.add("copied");
    Perch.announce("Copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  }

  // The text is a promise. Browsers let a page write to the clipboard only while it handles a click,
  // so the writing has to begin before the text is there.
  async function copy(text, button) {
    try {
      await write(text);
      copied(button);
    } catch {
      await text.then((words) => copyByHand(words, button), (problem) => Perch.failed(problem.message));
    }
  }

  function write(text) {
    const { clipboard } = navigator;
    if (!clipboard) return Promise.reject(new Error("Copying needs HTTPS."));
    if (typeof ClipboardItem !== "function") return text.then((words) => clipboard.writeText(words));
    const blob = text.then((words) => new Blob([words], { type: "text/plain" }));
    // copy() handles the rejection, as it waits for the text too.
    blob.catch(() => {});
    return clipboard.write([new ClipboardItem({ "text/plain": blob })]);
  }

  // Copy by the old API. If that is not allowed either, show the text selected, for Ctrl-C.
  function copyByHand(words, button) {
    document.querySelector(".copy-by-hand")?.remove();
    const box = document.createElement("div");
    const label = Object.assign(document.createElement("label"), { textContent: "Press Ctrl-C (on a Mac ⌘C) to copy" });
    const field = Object.assign(document.createElement("textarea"), { value: words, readOnly: true, rows: 3 });
    box.className = "copy-by-hand";
    label.append(field);
    box.append(label);
    // A modal dialog covers everything else.
    (document.querySelector("dialog[open]") ?? document.getElementById("main")).append(box);
    field.select();
    const leave = () => {
      box.remove();
      button.focus();
    };
    if (document.execCommand("copy")) {
      leave();
      return copied(button);
    }
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      leave();
    });
    field.addEventListener("copy", () => setTimeout(() => { leave(); copied(button); }));
    document.addEventListener("pointerdown", ({ target }) => { if (!box.contains(target)) box.remove(); }, { once: true });
  }

  async function asked(form) {
    const answer = await fetch(form.dataset.copies, { method: "POST", body: new URLSearchParams(new FormData(form)), redirect: "manual" })
      .catch(() => { throw new Error("Cannot reach the console. Nothing was copied."); });
    const isText = answer.headers.get("Content-Type")?.startsWith("text/plain");
    const words = isText ? await answer.text() : "Nothing was copied: you may have been signed out. Reload the page and try again.";
    if (!answer.ok || !isText) throw new Error(words);
    return words;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(Promise.resolve(button.dataset.copy), button);
  });

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-copies]")) return;
    event.preventDefault();
    copy(asked(event.target), event.target.querySelector("button"));
  });
})();
