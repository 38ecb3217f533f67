// Live regions. A visible page asks for `#live` again and again, with the mark that it was made at;
// the console answers without content while the mark is the same. An answer is morphed into the
// page, so that the focus, open menus, what was typed, the selection and the scroll position stay.
"use strict";

(() => {
  const region = () => document.getElementById("live");

  // Morphing.

  const callbacks = {
    beforeNodeMorphed(old, fresh) {
      if (old.nodeType !== Node.ELEMENT_NODE) return true;
      if (old.matches("input:not([type=hidden]), select, textarea")) return !isTouched(old);
      // The browser has updated its words since.
      return !(old.matches("time") && old.dateTime === fresh.dateTime && old.title === fresh.title);
    },
    beforeAttributeUpdated(name, element) {
      if (name === "open") return false;
      // Keep what htmx has set while the request of a form or link is under way. What it has set on
      // `#poll`, for the region's own request, is replaced.
      const isHtmx = name === "class" || name.includes("disabled");
      return !(isHtmx && element.closest(".htmx-request:not(#poll)"));
    },
  };

  function isTouched(field) {
    if (field === document.activeElement) return true;
    if (field.matches("select")) {
      return [...field.options].some((option) => option.selected !== option.defaultSelected);
    }
    if (field.matches("[type=checkbox], [type=radio]")) return field.checked !== field.defaultChecked;
    return field.value !== field.defaultValue;
  }

  htmx.defineExtension("morph", {
    isInlineSwap: (style) => style === "morph",
    handleSwap(style, target, fragment) {
      if (style !== "morph") return false;
      return Idiomorph.morph(target, fragment.children, { morphStyle: "outerHTML", callbacks });
    },
  });

  // Polling. `hx-sync` of `#poll` and of the forms that search lets only one request for the region
  // be under way: a poll gives way to a search.

  // The pause after a poll is as long as the region says, and longer each time it finds nothing new.
  const GROWTH = 1.05;
  // Milliseconds: the longest such pause; until a region is requested again that could not be read,
  // or that is deleted, as the server may have been wrong; until an answer is given up.
  const LONGEST = 5_000, AFTER_PROBLEM = 5_000, AFTER_GONE = 60_000, PATIENCE = 60_000;

  let timer = 0;
  // What the region was when it was last requested, and how often in a row it was the same.
  let last = "", turns = 0;
  // The pause while the region cannot be read.
  let retry = 0;

  Perch.renew = () => {
    clearTimeout(timer);
    if (!region()) return;
    const { live, mark, known } = region().dataset;
    // These end without a change of the mark.
    const isUnmarked = retry || document.querySelector("#service > *, #step-project_connect");
    const values = { known, ...(mark && !isUnmarked && { mark }) };
    htmx.ajax("GET", live, { source: "#poll", target: "#live", swap: "morph", values }).then(wait, wait);
  };

  document.addEventListener("htmx:configRequest", ({ detail }) => {
    if (detail.elt.id === "poll") detail.timeout = PATIENCE;
  });

  function wait() {
    clearTimeout(timer);
    if (!region() || document.hidden) return;
    const { live, mark, known, every } = region().dataset;
    const now = [live, mark, known, every].join(" ");
    turns = now === last ? turns + 1 : 0;
    last = now;
    const pause = Math.max(every, Math.min(every * GROWTH ** turns, LONGEST));
    timer = setTimeout(Perch.renew, retry || pause);
  }

  Perch.renewAfterChange = () => {
    if (!region()) return;
    // The answer under way may be older than the change, which need not change the mark.
    htmx.trigger("#live", "htmx:abort");
    delete region().dataset.mark;
    Perch.renew();
  };

  for (const change of ["online", "offline"]) window.addEventListener(change, Perch.renew);
  // Also if the page is restored from the browser's cache.
  document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : Perch.renew());
  document.addEventListener("DOMContentLoaded", wait);

  // Once a search or a filter is sent, whatever its answer, the region is requested with it.
  document.addEventListener("htmx:beforeSend", ({ detail: { elt, target, requestConfig } }) => {
    if (target.id !== "live" || !elt.matches("form")) return;
    const filled = [...requestConfig.formData].filter(([, value]) => value);
    const query = filled.length ? `?${new URLSearchParams(filled)}` : "";
    const { dataset } = region();
    dataset.live = dataset.live.replace(/\?.*|$/, query);
    delete dataset.mark;
  });

  document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
    // The region or, if it could not be read, its status line.
    if (!["live", "poll"].includes(target.id)) return;
    if (target.id === "live") {
      retry = 0;
      // The title tells the state, such as that of an endpoint.
      document.title = region().dataset.title ?? document.title;
      comeBack();
    }
    document.dispatchEvent(new CustomEvent("perch:renewed"));
    Perch.keepFocus();
  });

  document.addEventListener("perch:problem", () => { retry = AFTER_PROBLEM; });
  document.addEventListener("perch:gone", () => {
    retry = AFTER_GONE;
    const main = document.getElementById("main");
    main.classList.add("gone");
    // Disable what would change the deleted thing, or connect to it.
    const ways = ".actions, form, .connection, [hx-target='#dialog']";
    for (const part of main.querySelectorAll(ways)) part.inert = true;
  });

  function comeBack() {
    const gone = document.querySelector("main.gone");
    if (!gone) return;
    gone.classList.remove("gone");
    for (const part of gone.querySelectorAll("[inert]")) part.inert = false;
  }

  // A failed request is reported in one line, until the region can be requested again.

  const UNREACHABLE = "Cannot reach the console.";

  function failed({ detail: { target, requestConfig } }) {
    if (target?.id === "live") return Perch.trouble(`${UNREACHABLE} Retrying.`);
    const isChange = requestConfig.verb !== "get";
    Perch.failed(isChange ? `${UNREACHABLE} The change may not have been made.` : UNREACHABLE);
  }

  for (const failure of ["htmx:sendError", "htmx:timeout"]) document.addEventListener(failure, failed);

  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const { xhr, target } = detail;
    // A reverse proxy answered instead of the console: do not show its answer in the page.
    if (xhr.status < 400 || xhr.status === 422 || xhr.getResponseHeader("HX-Reswap")) return;
    detail.shouldSwap = false;
    if (target.id === "live") Perch.trouble("The console returned an error. Retrying.");
    else Perch.failed("The console returned an error. Try again.");
  });

  document.addEventListener("htmx:afterRequest", ({ detail: { target, successful } }) => {
    if (target?.id === "live" && successful) Perch.trouble("");
  });
})();
