// What the console adds if scripts run; every page works without them. This file: dialogs, notices,
// menus. Others: live.js renews regions, focus.js keeps the focus, times.js keeps times up to date,
// copy.js copies. They, and the other scripts of this directory, share the object `Perch`.
"use strict";

window.Perch = {};

(() => {
  const dialog = document.getElementById("dialog");
  const notices = document.getElementById("notices");

  // Dialogs show forms that htmx has fetched. A dialog is closed only by success or by the user. An
  // open form is never fetched again, so that what was typed stays.

  let isFetching = false;

  function moveNotices(into) {
    // Without the role, a notice is not announced a second time because it moves.
    for (const notice of notices.children) notice.removeAttribute("role");
    into.append(notices);
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.target !== dialog) return;
    if (dialog.open || isFetching) return event.preventDefault();
    isFetching = true;
    Perch.dialogOpener = event.detail.elt;
  });

  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.target === dialog) isFetching = false;
  });

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === dialog && dialog.childElementCount && !dialog.open) {
      // A modal dialog covers everything else, so notices have to be inside it to be seen.
      moveNotices(dialog);
      dialog.showModal();
      // The browser itself would choose the first link or button.
      Perch.focusFirst(dialog);
    }
    expectTypedIds();
    fadeNotices();
    loadScripts();
  });

  document.addEventListener("htmx:oobAfterSwap", fadeNotices);

  dialog.addEventListener("close", () => {
    // Browsers send this with the next frame. By then, the dialog may be open again, for another opener.
    if (dialog.open) return;
    moveNotices(document.body);
    dialog.replaceChildren();
    // By then, another opener may also wait for its form. It has the focus already.
    if (!isFetching) Perch.returnFocus();
  });

  // What is shown only once is closed by its button. Another way of closing first shows a warning.

  function keep(event) {
    const words = dialog.open && dialog.querySelector("[data-once-words]");
    if (!words) return;
    event.preventDefault();
    words.hidden = false;
    Perch.announce(words.textContent.trim());
    dialog.querySelector("footer [role=button]").focus();
  }

  dialog.addEventListener("cancel", keep);
  document.addEventListener("keydown", (event) => {
    // Browsers may close a dialog at a second Escape even if the first was prevented.
    if (event.key === "Escape") keep(event);
  }, true);

  document.addEventListener("perch:changed", (event) => {
    if (dialog.contains(event.target)) dialog.close();
    Perch.renewAfterChange();
  });

  // Scripts that only some dialogs and pages need.

  function loadScripts() {
    for (const { dataset } of document.querySelectorAll("[data-script]")) {
      if (document.querySelector(`script[src="${dataset.script}"]`)) continue;
      document.head.append(Object.assign(document.createElement("script"), { src: dataset.script }));
    }
  }

  // Deleting: the button is disabled until the id, or the name, has been typed.

  function expectTypedIds() {
    for (const input of document.querySelectorAll("input[data-expected]")) {
      const button = input.form.querySelector("button[type=submit]");
      const { expected, name } = input.dataset;
      button.disabled = ![expected, name].some((one) => one && [input.value, input.value.trim()].includes(one));
    }
  }

  document.addEventListener("input", (event) => {
    if (event.target.matches("input[data-expected]")) expectTypedIds();
    // What was filled in has changed since the command was made.
    event.target.form?.querySelector(".curl")?.remove();
  });

  // Clicks: close dialogs, dismiss notices, and close menus when the user clicks elsewhere.

  document.addEventListener("click", (event) => {
    const closing = event.target.closest("#dialog [data-close]");
    if (closing) {
      event.preventDefault();
      dialog.close();
    }
    event.target.closest("[data-dismiss]")?.closest(".notice").remove();
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      const chosen = event.target.closest("details.menu li a, details.menu li button");
      if (!menu.contains(event.target) || chosen) Perch.closeMenu(menu);
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    document.querySelectorAll("details.menu[open]").forEach(Perch.closeMenu);
  });

  // Notices.

  Perch.announce = (words) => {
    document.getElementById("announce").textContent = words;
  };

  Perch.failed = (words) => {
    // A message that is still shown is not added again.
    for (const old of notices.querySelectorAll(".notice.failure")) {
      if (old.textContent === words) return;
    }
    const notice = document.createElement("div");
    notice.className = "notice failure";
    notice.setAttribute("role", "alert");
    notice.append(Object.assign(document.createElement("p"), { textContent: words }));
    notices.append(notice);
    setTimeout(() => notice.remove(), 10000);
  };

  // Show one line about what keeps the page from being renewed; "" hides it.
  Perch.trouble = (words) => {
    const line = document.getElementById("trouble");
    line.hidden = !words;
    if (line.textContent !== words) line.textContent = words;
  };

  function fadeNotices() {
    const fresh = document.querySelectorAll(".notice.success:not([data-fading])");
    if (fresh.length) document.querySelectorAll(".notice[data-fading]").forEach((old) => old.remove());
    for (const notice of fresh) {
      notice.dataset.fading = "";
      setTimeout(() => notice.remove(), 6000);
    }
  }

  // On a phone, the tabs scroll sideways: to the present one, and fading where there are more.
  function fadeTabs() {
    const tabs = document.querySelector(".tabs");
    if (!tabs) return;
    tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    tabs.onscroll = onresize = () => {
      tabs.toggleAttribute("data-before", tabs.scrollLeft > 1);
      tabs.toggleAttribute("data-more", tabs.scrollLeft + tabs.clientWidth < tabs.scrollWidth - 1);
    };
    tabs.onscroll();
  }

  document.addEventListener("DOMContentLoaded", () => {
    fadeTabs();
    expectTypedIds();
    fadeNotices();
    loadScripts();
  });
})();
