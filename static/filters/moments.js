// The address of a filtered list says the same to readers in other zones.
document.addEventListener("htmx:configRequest", ({ detail }) => {
  for (const field of detail.verb === "get" ? detail.elt.querySelectorAll("[type=datetime-local]") : []) {
    const at = Perch.typed(field.value);
    if (!Number.isNaN(at.getTime())) detail.parameters[field.name] = at.toISOString().replace(".000", "");
  }
});
