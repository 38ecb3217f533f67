// Live regions. While something in `#live` is unfinished, htmx asks for it again and again; at
// other times a channel says when something has changed. What comes is morphed into what is there,
// so that focus, open menus, what was typed, the selection and the place on the page stay.
"use strict";

(() => {
  const region = () => document.getElementById("live");

  // Morphing.

  const callbacks = {
    beforeNodeMorphed(old, fresh) {
      if (old.nodeType !== Node.ELEMENT_NODE) return true;
      if (old.matches("input:not([type=hidden]), select, textarea")) return !isTouched(old);
      // Its words have moved on since it came.
      return !(old.matches("time") && old.dateTime === fresh.dateTime && old.title === fresh.title);
    },
    beforeAttributeUpdated(name, element) {
      if (name === "open") return false;
      // What htmx has set for as long as a form's or a link's request is under way; a renewal's own
      // is set on the body or the poll, and is no reason to keep what has changed.
      const isHtmx = name === "class" || name.includes("disabled");
      return !(isHtmx && element.closest(".htmx-request:not(body, #poll)"));
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

  // Renewing. An answer that was asked for before another renewal does not overwrite that one's.

  let renewals = 0;
  let renewing = 0;
  const sentAfter = new WeakMap();
  // Under way, of those that search or filter.
  const steering = new Set();
  // What is asked while trouble is told of: the answer to it shows that this is over.
  const sentInTrouble = new WeakSet();
  // What the region shows, by the server's own mark: where nothing else is there to show, the
  // answer is empty.
  let shown = "";
  // How many times in a row the region has asked for itself: the server slows it down.
  let turn = 0;
  // The newest operation before the reader's own change, whose end is to be announced.
  let known = null;

  Perch.renew = () => {
    const live = region();
    if (!live) return;
    renewals += 1;
    renewing += 1;
    const over = () => { renewing -= 1; };
    htmx.ajax("GET", live.dataset.live, { target: "#live", swap: "morph" }).then(over, over);
  };

  Perch.renewAfterChange = () => {
    known ??= document.getElementById("poll")?.dataset.newest ?? "";
    Perch.renew();
  };

  // A word that the service is down is of a moment ago: while it stands there, see if it still holds.
  setInterval(() => {
    const isDown = document.getElementById("service")?.hasChildNodes();
    // It asks by itself, or what it shows is gone or not for its reader any more.
    const isSettled = document.querySelector("#poll[hx-trigger], #poll [role=alert]");
    if (isDown && !isSettled && !document.hidden) Perch.renew();
  }, 5_000);

  const isRenewal = ({ target }) => target?.id === "live";

  document.addEventListener("htmx:configRequest", (event) => {
    const { detail } = event;
    if (!isRenewal(detail)) return;
    if (shown) detail.headers["If-None-Match"] = shown;
    if (detail.elt.id !== "poll") {
      // Out of turn, while something is unfinished: that it has ended is to be announced.
      const isPolling = document.getElementById("poll")?.hasAttribute("hx-trigger");
      const added = isPolling ? `n=${Math.max(turn, 1)}` : known !== null && `known=${known}`;
      if (added) detail.path += `${detail.path.includes("?") ? "&" : "?"}${added}`;
      return;
    }
    turn = Math.max(turn + 1, Number(/[?&]n=(\d+)/.exec(detail.path)?.[1] ?? 0));
    detail.path = detail.path.replace(/([?&]n=)\d+/, `$1${turn}`);
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    // A poll's answer would take the place that the renewal under way is meant for.
    if (event.detail.elt.id === "poll" && (document.hidden || renewing || steering.size)) event.preventDefault();
  });

  document.addEventListener("htmx:beforeSend", ({ detail }) => {
    if (isRenewal(detail) && detail.elt.matches("form")) steer(detail);
    sentAfter.set(detail.xhr, renewals);
    if (!document.getElementById("trouble").hidden) sentInTrouble.add(detail.xhr);
  });

  // A search or a filter: from when it is sent, whatever becomes of its answer, the region is asked
  // for so, and what was asked for before does not come into the page any more.
  function steer({ xhr, requestConfig }) {
    const { dataset } = region();
    const filled = [...requestConfig.formData].filter(([, value]) => value);
    const query = filled.length ? `?${new URLSearchParams(filled)}` : "";
    dataset.live = dataset.live.replace(/\?.*|$/, query);
    renewals += 1;
    steering.add(xhr);
  }

  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, target } = event.detail;
    // Something between here and the console answered in its place: keep it out of the page.
    const isStrange = xhr.status >= 400 && xhr.status !== 422 && !xhr.getResponseHeader("HX-Reswap");
    if (isStrange) {
      event.detail.shouldSwap = false;
      if (target.id === "live") Perch.trouble("The console failed to answer. Trying again.");
      else Perch.failed("The console failed to answer. Try again.");
    } else if (xhr.status === 304 || (isOlder(event.detail) && !steering.has(xhr))) {
      event.detail.shouldSwap = false;
    }
  });

  const isOlder = ({ target, xhr }) => isRegions(target) && sentAfter.get(xhr) < renewals;

  // The region, or its status line where it could not be read.
  const isRegions = (target) => ["live", "poll"].includes(target.id);

  document.addEventListener("htmx:afterSwap", (event) => {
    const { target, xhr } = event.detail;
    if (!isRegions(target)) return;
    const isProblem = target.id === "poll";
    shown = xhr.getResponseHeader("ETag") ?? "";
    if (!isProblem) {
      known = null;
      comeBack();
      Perch.listen();
    }
    const poll = document.getElementById("poll");
    if (!poll?.hasAttribute("hx-trigger")) turn = 0;
    // It may have lost what made it ask, of which htmx hears only so.
    if (poll) htmx.process(poll);
    document.dispatchEvent(new CustomEvent("perch:renewed"));
    Perch.keepFocus();
    // With a search's answer comes its address, so it is taken in all the same.
    if (steering.has(xhr) && isOlder(event.detail)) Perch.renew();
  });

  document.addEventListener("perch:gone", () => {
    const main = document.getElementById("main");
    main.classList.add("gone");
    // Whatever would change it, or connect to it.
    const ways = ".actions, form, .connection, [hx-target='#dialog']";
    for (const part of main.querySelectorAll(ways)) part.inert = true;
  });

  function comeBack() {
    const gone = document.querySelector("main.gone");
    if (!gone) return;
    gone.classList.remove("gone");
    for (const part of gone.querySelectorAll("[inert]")) part.inert = false;
  }

  // What fails on the way is said in one line, until something gets through.

  const UNREACHABLE = "The console cannot be reached.";

  document.addEventListener("htmx:sendError", (event) => {
    const { detail } = event;
    if (isRenewal(detail)) return Perch.trouble(`${UNREACHABLE} Trying again.`);
    const isChange = detail.requestConfig.verb !== "get";
    Perch.failed(isChange ? `${UNREACHABLE} What you asked for may not have happened.` : UNREACHABLE);
  });

  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    steering.delete(detail.xhr);
    const { status } = detail.xhr;
    if (status && status < 500 && sentInTrouble.has(detail.xhr)) Perch.trouble("");
  });
})();
