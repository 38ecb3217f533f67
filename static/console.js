// What the console adds where scripts run; every page works without it.
"use strict";

(() => {
  const dialog = document.getElementById("dialog");
  const notices = document.getElementById("notices");
  document.documentElement.classList.add("scripted");

  // Dialogs: a form that htmx fetched is shown in one, and goes away when it has done its work.

  function openDialog() {
    // A modal dialog lies above everything else: notices have to move into it to be seen.
    dialog.append(notices);
    dialog.showModal();
  }

  dialog.addEventListener("close", () => {
    document.body.append(notices);
    dialog.replaceChildren();
  });

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === dialog && dialog.childElementCount && !dialog.open) openDialog();
    expectTypedIds();
    fadeNotices();
  });

  document.addEventListener("htmx:oobAfterSwap", fadeNotices);

  // Deleting: the button waits until the id has been typed.

  function expectTypedIds() {
    for (const input of document.querySelectorAll("input[data-expected]")) {
      const button = input.form.querySelector("button[type=submit]");
      button.disabled = input.value.trim() !== input.dataset.expected;
    }
  }

  document.addEventListener("input", (event) => {
    if (event.target.matches("input[data-expected]")) expectTypedIds();
  });

  // Clicks: closing, dismissing, and menus that close when one looks elsewhere.

  document.addEventListener("click", (event) => {
    const closing = event.target.closest("#dialog [data-close]");
    if (closing) {
      event.preventDefault();
      dialog.close();
    }
    event.target.closest("[data-dismiss]")?.closest(".notice").remove();
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      const chosen = event.target.closest("details.menu li a, details.menu li button");
      if (!menu.contains(event.target) || chosen) menu.open = false;
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });

  // Live regions.

  // How often the page was renewed out of turn, how many of these are under way, and after how
  // many each request was sent.
  let renewals = 0;
  let renewing = 0;
  const sentAfter = new WeakMap();

  function refresh() {
    const live = document.getElementById("live");
    if (!live) return;
    renewals += 1;
    renewing += 1;
    const over = () => { renewing -= 1; };
    htmx.ajax("GET", live.dataset.live, { target: "#live", swap: "outerHTML" }).then(over, over);
  }

  document.addEventListener("htmx:beforeSend", (event) => {
    sentAfter.set(event.detail.xhr, renewals);
  });

  document.addEventListener("perch:changed", () => {
    if (dialog.open) dialog.close();
    refresh();
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!["poll", "watch"].includes(event.detail.elt.id)) return;
    // A poll's answer would take the place that the renewal under way is meant for.
    if (document.hidden || renewing) event.preventDefault();
  });

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });

  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, target } = event.detail;
    // Asked before the change, it must not overwrite what comes after.
    if (target.id === "live" && sentAfter.get(xhr) < renewals) event.detail.shouldSwap = false;
    else if (target.id === "live") keepMenus(target);
    // Something between here and the console answered in its place: keep it out of the page.
    if (xhr.status >= 400 && xhr.status !== 422 && !xhr.getResponseHeader("HX-Reswap")) {
      event.detail.shouldSwap = false;
      failed("The console failed to answer. Try again.");
    }
  });

  function keepMenus(live) {
    const open = [...live.querySelectorAll("details.menu[open]")].map((menu) => menu.id);
    if (!open.length) return;
    document.addEventListener("htmx:afterSwap", () => {
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    }, { once: true });
  }

  document.addEventListener("htmx:sendError", (event) => {
    const words = "The console cannot be reached.";
    if (event.detail.elt.id !== "poll") return failed(`${words} What you asked for may not have happened.`);
    const line = event.detail.elt.querySelector("span");
    event.detail.elt.classList.add("bad");
    line.textContent = `${words} Trying again.`;
  });

  // Notices.

  function announce(words) {
    document.getElementById("announce").textContent = words;
  }

  function failed(words) {
    const notice = document.createElement("div");
    notice.className = "notice failure";
    notice.setAttribute("role", "alert");
    notice.append(Object.assign(document.createElement("p"), { textContent: words }));
    notices.append(notice);
    setTimeout(() => notice.remove(), 10000);
  }

  function fadeNotices() {
    const fresh = document.querySelectorAll(".notice.success:not([data-fading])");
    if (fresh.length) document.querySelectorAll(".notice[data-fading]").forEach((old) => old.remove());
    for (const notice of fresh) {
      notice.dataset.fading = "";
      setTimeout(() => notice.remove(), 6000);
    }
  }

  expectTypedIds();
  fadeNotices();
})();
