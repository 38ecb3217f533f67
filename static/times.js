// Keeps times up to date: how long ago, and how long so far. The words are the same as those of
// `console_tags.py`, which writes them first.
"use strict";

(() => {
  const MINUTE = 60, HOUR = 3600, DAY = 86400;
  // The cookie lets the server write times in the reader's zone.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) document.cookie = `perch_zone=${zone}; path=/; max-age=31536000; samesite=lax`;

  // A time that was typed, as the server would read it: in the zone that the page says.
  Perch.typed = (time) => new Date(zone === document.body.dataset.zone || time.endsWith("Z") ? time : `${time}Z`);

  // The address of a filtered list says the same to readers in other zones.
  document.addEventListener("htmx:configRequest", ({ detail: { verb, elt, parameters } }) => {
    for (const { name, value } of verb === "get" ? elt.querySelectorAll("[type=datetime-local]") : []) {
      if (value) parameters[name] = Perch.typed(value).toISOString().replace(".000", "");
    }
  });

  // The server's clock counts; the one of this machine may be wrong.
  const ahead = Date.now() - Date.parse(document.body.dataset.now);
  const correction = Math.abs(ahead) > MINUTE * 1000 ? ahead : 0;

  Perch.ago = (seconds) => {
    if (seconds < 10) return "just now";
    if (seconds < MINUTE) return `${Math.floor(seconds / 10) * 10} s ago`;
    if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ago`;
    if (seconds < DAY) return `${Math.floor(seconds / HOUR)} h ago`;
    return `${Math.floor(seconds / DAY)} d ago`;
  };

  Perch.elapsed = (seconds, digits = 1) => {
    if (seconds < MINUTE) return `${seconds < 10 ? seconds.toFixed(digits) : Math.floor(seconds)} s`;
    if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ${Math.floor(seconds % MINUTE)} s`;
    if (seconds < 2 * DAY) return `${Math.floor(seconds / HOUR)} h ${Math.floor((seconds % HOUR) / MINUTE)} min`;
    return `${Math.floor(seconds / DAY)} d ${Math.floor((seconds % DAY) / HOUR)} h`;
  };

  function moveOn() {
    if (document.hidden) return;
    for (const time of document.querySelectorAll("time[data-moves]")) {
      const seconds = Math.max(0, (Date.now() - correction - Date.parse(time.dateTime)) / 1000);
      // A date does not change.
      if (time.dataset.moves === "ago" && seconds >= 30 * DAY) continue;
      const words = time.dataset.moves === "ago" ? Perch.ago(seconds) : Perch.elapsed(Math.floor(seconds), 0);
      if (time.textContent !== words) time.textContent = words;
    }
  }

  document.addEventListener("perch:renewed", moveOn);
  document.addEventListener("visibilitychange", moveOn);
  setInterval(moveOn, 1000);
})();
