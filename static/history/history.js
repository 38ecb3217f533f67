// Choosing a past moment of a branch: the slider over the band and the field show the same moment, in
// the browser's time zone. What is sent always has an offset from UTC.
"use strict";

(() => {
  const form = document.getElementById("choose");
  if (!form) return;
  const field = document.getElementById("moment");
  const slider = document.getElementById("slider");
  const inUtc = document.getElementById("in-utc");
  // The server replaces it if the history turns out to be newer.
  const band = document.getElementById("band");
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const isUtc = (at) => at.getTimezoneOffset() === 0;
  const two = (number) => String(number).padStart(2, "0");

  if (zone) {
    document.getElementById("zone").textContent =
      `A time without an offset is in your time zone, ${zone}. A time without a day is the last one that has passed.`;
  }

  // A moment of the server, such as 2026-01-31T13:03:00.123456Z, in the browser's zone.
  function local(moment) {
    const at = new Date(moment);
    if (Number.isNaN(at.getTime())) return moment;
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    return `${day} ${time}${/\.\d+/.exec(moment)?.[0] ?? ""}`;
  }

  // The day on which it was this time of day the last time.
  function lastDay(time) {
    const day = (at) => local(at).slice(0, 10);
    const today = day(Date.now());
    return new Date(`${today}T${time}`) <= new Date() ? today : day(Date.now() - 86_400_000);
  }

  // What was typed, with the browser's offset at that time if it is a time without one.
  function zoned(typed) {
    const found = /^(?:(\d{4}-\d\d-\d\d)[ T])?(\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)$/.exec(typed);
    if (!found) return typed;
    const moment = `${found[1] ?? lastDay(found[2])}T${found[2]}`;
    const ahead = -new Date(moment).getTimezoneOffset();
    if (Number.isNaN(ahead)) return typed;
    const offset = `${two(Math.floor(Math.abs(ahead) / 60))}:${two(Math.abs(ahead) % 60)}`;
    return `${moment}${ahead < 0 ? "-" : "+"}${offset}`;
  }

  // The field shows less than the exact moment, which is kept as long as the field is unchanged.
  let shown = "";
  let exact = "";
  const chosen = () => (field.value === shown ? exact : zoned(field.value.trim()));

  function showUtc() {
    const at = new Date(chosen());
    const isTime = chosen().includes(":") && !Number.isNaN(at.getTime());
    inUtc.value = isTime && !isUtc(at) ? `= ${at.toISOString().slice(0, 19).replace("T", " ")} UTC` : "";
  }

  function show(moment) {
    exact = moment;
    field.value = shown = local(moment);
    showUtc();
  }

  function moveSlider(at) {
    const back = (Date.parse(band.dataset.latest) - Date.parse(at)) / 1000 / band.dataset.step;
    if (!Number.isNaN(back)) slider.value = slider.max - Math.ceil(back);
    slider.setAttribute("aria-valuetext", field.value);
  }

  // The moment of the slider's place, to the second; both ends are exact.
  function ofSlider() {
    const { earliest, latest, step } = band.dataset;
    if (slider.value === slider.max) return latest;
    const at = Date.parse(latest) - (slider.max - slider.value) * step * 1000;
    const second = new Date(Math.floor(at / 1000) * 1000);
    return second <= new Date(earliest) ? earliest : second.toISOString().replace(".000", "");
  }

  // A click on the place where the slider is already chooses that moment too.
  let isChanged = false;
  slider.addEventListener("pointerdown", () => { isChanged = false; });
  slider.addEventListener("change", () => { isChanged = true; });
  const choose = () => ["input", "change"].forEach((type) => slider.dispatchEvent(new Event(type, { bubbles: true })));
  slider.addEventListener("click", () => { if (!isChanged) choose(); });
  slider.addEventListener("keydown", ({ key }) => {
    if (key === "End" && slider.value === slider.max) choose();
  });

  slider.addEventListener("input", () => {
    show(ofSlider());
    slider.setAttribute("aria-valuetext", field.value);
  });
  field.addEventListener("input", showUtc);
  field.addEventListener("change", () => moveSlider(chosen()));
  // The field's change has already asked for the moment.
  form.addEventListener("submit", (event) => event.preventDefault());

  document.addEventListener("htmx:configRequest", ({ detail }) => {
    if (detail.elt === form) detail.parameters.moment = chosen();
  });

  function showFound() {
    const { moment, at } = document.getElementById("found").dataset;
    if (!moment) return;
    show(moment);
    moveSlider(at);
  }

  // What is typed in a dialog, such as the new branch's name, is there again if the dialog is opened
  // for another moment.
  const typed = new Map();
  document.addEventListener("input", ({ target }) => {
    if (target.matches("#dialog [type=text]")) typed.set(target.name, target.value);
  });

  function typeAgain(dialog) {
    for (const [name, value] of typed) {
      const again = dialog.querySelector(`[type=text][name="${CSS.escape(name)}"]:not([readonly])`);
      if (!again || again.value === value) continue;
      again.value = value;
      again.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  document.addEventListener("htmx:afterSwap", ({ detail }) => {
    if (detail.target.id === "found") showFound();
    if (detail.target.id === "dialog") typeAgain(detail.target);
  });
  document.addEventListener("htmx:oobAfterSwap", ({ detail }) => {
    if (detail.target.id !== "band") return;
    slider.max = band.dataset.steps;
    if (field.value) moveSlider(chosen());
    else slider.value = slider.max;
  });
  showFound();
  slider.setAttribute("aria-valuetext", field.value || local(band.dataset.latest));
})();
