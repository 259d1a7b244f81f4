// Keeps open pages up to date: every element with `data-live` and an id is replaced when a job changes.
"use strict";

const root = document.documentElement;
const themes = ["auto", "light", "dark"];
const button = document.querySelector(".theme");
const stored = () => { try { return localStorage.getItem("theme") || "auto"; } catch { return "auto"; } };

function setTheme(name) {
  if (name === "auto") { delete root.dataset.theme; } else { root.dataset.theme = name; }
  button.textContent = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[name];
  try { localStorage.setItem("theme", name); } catch { /* private windows have no storage */ }
}

button.hidden = false;
setTheme(stored());
button.addEventListener("click", () => setTheme(themes[(themes.indexOf(stored()) + 1) % themes.length]));

const label = document.getElementById("live-state");
const MIN_MS = 2000;
let source, timer, last = 0, running = false, again = false;

function show(state, text) { label.hidden = false; label.dataset.state = state; label.textContent = text; }

function replace(next) {
  const old = document.getElementById(next.id);
  if (!old || old.outerHTML === next.outerHTML || old.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) { return; }
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const path = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.getAttribute("href") && `a[href="${CSS.escape(focused.getAttribute("href"))}"]`);
  const open = [...old.querySelectorAll("details")].map((item) => item.open);
  const scroll = [...old.querySelectorAll(".scroll")].map((item) => item.scrollLeft);
  const fresh = document.importNode(next, true);
  old.replaceWith(fresh);
  fresh.querySelectorAll("details").forEach((item, n) => { item.open = Boolean(open[n]); });
  fresh.querySelectorAll(".scroll").forEach((item, n) => { item.scrollLeft = scroll[n] || 0; });
  if (path) { fresh.querySelector(path)?.focus(); }
}

async function refresh() {
  if (running) { again = true; return; }
  running = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected && new URL(answer.url).pathname === "/login") { location.reload(); return; }
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = [...page.querySelectorAll("[data-live][id]")];
      if (fresh.every((item) => document.getElementById(item.id))) {
        fresh.forEach(replace);
      } else {
        // The page has other parts now, such as those of a job that was read for the first time.
        document.querySelector("main").replaceWith(document.importNode(page.querySelector("main"), true));
      }
    }
  } catch { /* the stream shows that the console is away */ }
  running = false;
  if (again) { again = false; later(); }
}

// Soon, but not more often than every two seconds; by chance, since all pages get the same event.
function later() {
  if (timer) { return; }
  const pause = Math.max(0, last + MIN_MS - Date.now()) + 100 + Math.random() * 400;
  timer = setTimeout(() => { timer = 0; last = Date.now(); refresh(); }, pause);
}

function listen() {
  source = new EventSource("/live");
  source.onopen = () => { show("on", "Live"); later(); };
  source.onerror = () => show("off", "Not live");
  source.onmessage = (event) => {
    const job = document.body.dataset.job;
    if (!job || JSON.parse(event.data).includes(job)) { later(); }
  };
}

// A browser has few connections to one host: pages in the background give theirs back.
function follow() {
  source?.close();
  if (document.hidden) { show("off", "Paused"); } else { listen(); }
}

if (document.querySelector("[data-live]") && !("still" in document.body.dataset)) { follow(); document.addEventListener("visibilitychange", follow); }
