/** The theme: light, dark or system. */

const NAME = "leaseway.theme";
const ORDER = ["auto", "light", "dark"];

export function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === "auto") localStorage.removeItem(NAME);
    else localStorage.setItem(NAME, next);
  } catch {
    // Without storage, the choice applies until the page is closed.
  }
  return next;
}
