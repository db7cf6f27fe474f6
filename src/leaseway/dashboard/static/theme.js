// Before the first paint, so that a dark theme does not start with a white flash.
(() => {
  try {
    const theme = localStorage.getItem("leaseway.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Without storage, the system's theme applies.
  }
})();
