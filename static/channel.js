// The live channel: the server says that something has changed, and the page renews its region. The
// stream is shared with other windows (shared_source.js). A page has a channel while it is visible
// and has a live region. If the channel does not get through, the page polls instead, every 5
// seconds.
"use strict";

(() => {
  const address = document.body.dataset.changes;
  // Milliseconds: until the server's first message; between two renewals; until a lost channel is
  // reported; between two polls without a channel; until the channel is tried again.
  const FIRST_WORD = 10_000, BETWEEN = 1_000, PATIENCE = 3_000, LOOK_EVERY = 5_000, TRY_AGAIN = 60_000;
  // The server sends a sign of life every 20 s.
  const LONGEST_SILENCE = 50_000;
  const UNREACHABLE = "Cannot reach the console. Retrying.";

  let source = null;
  // The mark of the last change that the page knows, which it sends when it reconnects.
  let seen = "";
  // Set while the region polls because it could not be read; and for good once it is deleted.
  let isRefused = false;
  let looking = 0;
  let waiting = 0;
  let isLost = false;
  let renewing = 0;
  let returning = 0;
  let renewedAt = 0;

  // Whether the page polls because the channel does not get through.
  Perch.isPolling = () => looking !== 0;

  const canListen = () => address && document.getElementById("live") && !document.hidden;

  Perch.listen = () => {
    isRefused = false;
    if (source || looking || !canListen()) return;
    if (!window.EventSource || !window.BroadcastChannel) return look();
    const url = new URL(address, location.href);
    if (seen) url.searchParams.set("seen", seen);
    source = Perch.sharedSource(url);
    source.onmessage = heard;
    source.onerror = lost;
    waiting = setTimeout(look, FIRST_WORD);
  };

  function rest() {
    source?.close();
    source = null;
    clearTimeout(waiting);
    clearInterval(looking);
    looking = 0;
    isLost = false;
    if (renewing) forget();
  }

  // A change was reported but is not shown yet. Without the mark, it will be reported again.
  function forget() {
    clearTimeout(renewing);
    renewing = 0;
    seen = "";
  }

  function heard(message) {
    clearTimeout(waiting);
    waiting = setTimeout(startAfresh, LONGEST_SILENCE);
    isLost = false;
    Perch.trouble("");
    seen = message.lastEventId || seen;
    if (message.data === "changed") renewSoon();
    // The server has no room for another project.
    if (message.data === "full") look();
  }

  // Several changes in quick succession renew the page at most once a second.
  function renewSoon(least = 0) {
    clearTimeout(renewing);
    renewing = setTimeout(() => {
      renewing = 0;
      renewedAt = performance.now();
      Perch.renew();
    }, Math.max(least, renewedAt + BETWEEN - performance.now()));
  }

  function lost() {
    if (source.readyState === EventSource.CLOSED) return look();
    // The browser reconnects by itself. The server often ends a stream only to start a new one.
    if (isLost) return;
    isLost = true;
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      isLost = false;
      Perch.trouble(UNREACHABLE);
    }, PATIENCE);
  }

  function look() {
    rest();
    const began = performance.now();
    const once = () => {
      if (!document.getElementById("poll")?.hasAttribute("hx-trigger")) Perch.renew();
    };
    looking = setInterval(() => {
      if (performance.now() - began < TRY_AGAIN) return once();
      startAfresh();
    }, LOOK_EVERY);
    once();
  }

  function startAfresh() {
    rest();
    if (!isRefused) Perch.listen();
  }

  for (const failure of ["htmx:sendError", "htmx:responseError"]) {
    document.addEventListener(failure, ({ detail }) => {
      if (detail.target?.id !== "live" || !source) return;
      forget();
      renewSoon(LOOK_EVERY);
    });
  }

  document.addEventListener("perch:problem", () => {
    isRefused = true;
    rest();
  });
  document.addEventListener("perch:gone", () => {
    isRefused = true;
    rest();
    clearTimeout(returning);
    returning = setTimeout(lookForGone, TRY_AGAIN);
  });

  // The server may have been wrong. Nothing else asks again for what is deleted.
  function lookForGone() {
    if (!document.hidden && document.querySelector("main.gone")) Perch.renew();
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return rest();
    startAfresh();
    lookForGone();
  });
  window.addEventListener("offline", () => {
    Perch.trouble(UNREACHABLE);
    // A console on this machine can be reached without a network.
    startAfresh();
  });
  window.addEventListener("online", () => {
    startAfresh();
    // Without a channel, nothing else would notice that the network is back.
    if (!source && !looking) Perch.trouble("");
  });
  window.addEventListener("pagehide", rest);
  window.addEventListener("pageshow", (event) => {
    // Restored from the browser's cache, where the page heard of no changes.
    if (event.persisted) startAfresh();
  });

  // After the other scripts have run.
  document.addEventListener("DOMContentLoaded", Perch.listen);
})();
