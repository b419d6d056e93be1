// Fetches the changing part of the page every two seconds and replaces the sections that differ.
"use strict";

const INTERVAL = 2000;
const PATIENCE = 6000;
const silent = document.getElementById("silent");
const spoken = document.getElementById("spoken");
let answered = Date.now();
let said = null;

function say() {
  const { spoken: words, title } = document.getElementById("verdict").dataset;
  document.title = title;
  if (said !== null && words !== said) spoken.textContent = words;
  said = words;
}

function selected(section) {
  const selection = document.getSelection();
  return !selection.isCollapsed && selection.containsNode(section, true);
}

function replace(old, fresh) {
  if (old.outerHTML === fresh.outerHTML || selected(old)) return;
  const link = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  old.replaceWith(fresh);
  if (link) fresh.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
}

function show(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const section of fresh.querySelectorAll("[id]:is(header, section)")) {
    const old = document.getElementById(section.id);
    if (old) replace(old, section);
  }
  say();
}

async function refresh() {
  try {
    const response = await fetch("/live", { signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
    if (!response.ok) throw new Error(`answered ${response.status}`);
    show(await response.text());
    answered = Date.now();
  } catch {
    // The banner below says it; the next attempt is two seconds away.
  }
  const quiet = Date.now() - answered;
  silent.hidden = quiet < PATIENCE;
  document.body.classList.toggle("old", !silent.hidden);
  if (!silent.hidden) {
    silent.textContent = `The agent does not answer. What you see is from ${new Date(answered).toISOString().slice(11, 19)} UTC.`;
  }
}

async function run() {
  if (!document.hidden) await refresh();
  setTimeout(run, INTERVAL);
}

say();
setTimeout(run, INTERVAL);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
