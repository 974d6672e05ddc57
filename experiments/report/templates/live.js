// Asks every five seconds whether the runs have written anything; takes the new page in without losing the reader's place.
let seen = document.querySelector(".live").dataset.version;
async function refresh() {
  const state = document.getElementById("live-state");
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };  // aloud, so only what is new
  if (!document.getElementById("live").checked) { say("paused"); return; }
  try {
    const asked = await fetch("version", {cache: "no-store"}), version = await asked.text();
    if (!asked.ok) { say(version); return; }
    if (version !== seen) {
      const answer = await fetch(".", {cache: "no-store"}), text = await answer.text();
      if (!answer.ok) { say(text); return; }  // a damaged file, say: the page stays, and the next round asks again
      const fresh = new DOMParser().parseFromString(text, "text/html");
      const keyed = [...fresh.querySelectorAll("[data-key]")];  // of an arm: a late one moves the places of the others
      for (const old of document.querySelectorAll("details[id], input[id]")) {
        const key = old.dataset.key, now = key ? keyed.find((x) => x.dataset.key === key) : fresh.getElementById(old.id);
        if (now) { now.open = old.open; now.checked = old.checked; }
      }
      const focused = document.activeElement && document.activeElement.id;
      document.getElementById("page").replaceWith(fresh.getElementById("page"));
      document.querySelector("style").replaceWith(fresh.querySelector("style"));  // its rules are one an arm
      document.title = fresh.title;
      if (focused && document.getElementById(focused)) document.getElementById(focused).focus({preventScroll: true});
      seen = version;
      say("updated " + new Date().toLocaleTimeString());
    } else if (!state.textContent.startsWith("updated")) { say("up to date"); }
  } catch (error) { say("the server does not answer"); }
}
refresh();
setInterval(refresh, 5000);
