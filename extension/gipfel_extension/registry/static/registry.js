"use strict";
// "Copy" beside a ticket; without a clipboard the text is selected, for the keyboard.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) {
    return;
  }
  const text = document.getElementById(button.dataset.copy);
  text.select();
  try {
    await navigator.clipboard.writeText(text.value);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Selected: press Ctrl-C";
  }
});
