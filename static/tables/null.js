// The form of a row.
document.addEventListener("input", ({ target }) => {
  // A value that is typed replaces NULL.
  const box = target.matches(".typed textarea") && target.closest(".typed").querySelector("[name^=null]");
  if (box) box.checked = false;
});
