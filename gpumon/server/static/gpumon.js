// Fetches the changing part of the page every two seconds and replaces the sections that differ.
"use strict";

const INTERVAL = 2000;
const OFFLINE_AFTER = 6000;
const offline = document.getElementById("offline");
const announcement = document.getElementById("announcement");
let updated = Date.now();
let announced = null;

function announce() {
  const { announcement: text, title } = document.getElementById("verdict").dataset;
  document.title = title;
  if (announced !== null && text !== announced) announcement.textContent = text;
  announced = text;
}

function hasSelection(section) {
  const selection = document.getSelection();
  return !selection.isCollapsed && selection.containsNode(section, true);
}

function replace(old, fresh) {
  if (old.outerHTML === fresh.outerHTML || hasSelection(old)) return;
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
  announce();
}

async function refresh() {
  try {
    const response = await fetch("/live", { signal: AbortSignal.timeout(OFFLINE_AFTER), cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    show(await response.text());
    updated = Date.now();
  } catch {
    // The banner below shows it; the next request is sent in two seconds.
  }
  offline.hidden = Date.now() - updated < OFFLINE_AFTER;
  document.body.classList.toggle("stale", !offline.hidden);
  if (!offline.hidden) {
    offline.textContent = `The agent does not respond. This page was last updated at ${new Date(updated).toISOString().slice(11, 19)} UTC.`;
  }
}

async function run() {
  if (!document.hidden) await refresh();
  setTimeout(run, INTERVAL);
}

announce();
setTimeout(run, INTERVAL);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
