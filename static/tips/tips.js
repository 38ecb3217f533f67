// What a `title` explains, also at a tap and by keyboard: browsers show it to a mouse alone.
"use strict";

(() => {
  const CONTROLS = "a, button, summary, input, select, textarea";
  // Screen readers read the title itself. A popover is also above an open dialog.
  const tip = Object.assign(document.createElement("p"), { id: "tip", popover: "manual", ariaHidden: "true" });
  // Here, so that pages which explain nothing do not load it.
  Object.assign(tip.style, {
    position: "fixed", inset: "auto", maxWidth: "min(22rem, calc(100vw - 1rem))", margin: "0",
    padding: "0.35rem 0.6rem", border: "1px solid var(--pico-muted-border-color)",
    borderRadius: "var(--pico-border-radius)", background: "var(--ink)",
    color: "var(--pico-background-color)", fontSize: "0.87em", pointerEvents: "none",
  });
  document.body.append(tip);
  let isTouch = false;

  function hide() {
    if (tip.matches(":popover-open")) tip.hidePopover();
  }

  function show(element) {
    tip.textContent = element.title;
    tip.showPopover();
    const at = element.getBoundingClientRect();
    const { width, height } = tip.getBoundingClientRect();
    const isRoomBelow = at.bottom + height + 8 < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
    tip.style.top = `${isRoomBelow ? at.bottom + 4 : Math.max(8, at.top - height - 4)}px`;
  }

  document.addEventListener("pointerdown", ({ pointerType }) => { isTouch = pointerType !== "mouse"; });
  document.addEventListener("click", ({ target }) => {
    hide();
    const explained = target.closest("[title]");
    // A control does what it is for.
    if (isTouch && explained?.title && !target.closest(CONTROLS)) show(explained);
  });
  document.addEventListener("focusin", ({ target }) => {
    hide();
    if (target.title && target.matches(":focus-visible")) show(target);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") hide(); });
})();
