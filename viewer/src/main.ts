// The page: a list with filters on one side, an episode on the other, keys for everything.
import { curvePanel } from "./curves";
import { type Episode, interesting, type PageData, readPage } from "./data";
import { el } from "./dom";
import { EpisodeView } from "./episode";
import { makeFilters } from "./filters";
import { EpisodeList } from "./list";

const KEYS: [string, string][] = [["← →", "step back, forward"], ["Home End", "first, last step"], ["↑ ↓ or k j", "episode before, after"],
  ["1 … 9", "try another action"], ["/", "find"], ["t", "dark, light"], ["?", "this help"]];

function help(): HTMLDialogElement {
  const rows = KEYS.map(([key, what]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, what)));
  const dialog = el("dialog", { "aria-label": "Keys" }, el("h2", {}, "Keys"), el("table", { class: "facts" }, el("tbody", {}, ...rows)),
    el("button", { type: "button", click: () => dialog.close() }, "Close"));
  return dialog;
}

function turnTheme(): void {
  const dark = document.documentElement.dataset["theme"] ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset["theme"] = dark === "dark" ? "light" : "dark";
}

function pageLinks(data: PageData): HTMLElement | null {
  if (data.pages.length < 2) return null;
  const links = data.pages.map((name, n) => el("a", { href: name, ...(n === data.page ? { "aria-current": "page" } : {}) }, String(n + 1)));
  return el("nav", { class: "pages", "aria-label": "Pages" }, "page ", ...links);
}

function start(data: PageData): void {
  const count = el("p", { class: "quiet", "aria-live": "polite", id: "count" });
  const dialog = help();
  let current: Episode | null = null;
  const view = new EpisodeView(data, () => { if (current) history.replaceState(null, "", `#e=${current.id}&s=${view.at}`); });
  const open = (episode: Episode | null, at = 0) => { current = episode; view.show(episode, at); list.mark(episode?.id ?? -1); };
  const list = new EpisodeList((episode) => open(episode));
  const refresh = () => {
    const shown = filters.list();
    list.show(shown);
    count.textContent = `${shown.length} of ${data.episodes.length} episodes`;
    if (!current || !shown.includes(current)) open(shown[0] ?? null);
    else list.mark(current.id);
  };
  const filters = makeFilters(data.episodes, refresh);
  const about = el("details", {}, el("summary", {}, "About this run"),
    el("table", { class: "facts" }, el("tbody", {}, ...data.about.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value))))));
  const tools = el("div", { class: "tools" }, el("button", { type: "button", "aria-label": "Dark or light", click: turnTheme }, "◐"),
    el("button", { type: "button", "aria-label": "Help: keys", click: () => dialog.showModal() }, "?"));
  document.body.replaceChildren(
    el("header", { class: "top" }, el("h1", {}, data.title), about, pageLinks(data) ?? "", tools, curvePanel(data.curves) ?? ""),
    el("aside", { "aria-label": "Episodes" }, filters.node, count, list.node), view.node, dialog);
  const wanted = new URLSearchParams(location.hash.slice(1)); // before the first episode is opened and named there
  refresh();
  open(...interesting(data.episodes));
  const linked = data.episodes.find((episode) => String(episode.id) === wanted.get("e"));
  if (linked) open(linked, Number(wanted.get("s") ?? 0));
  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (typing || event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    const acts: Record<string, () => void> = {
      ArrowRight: () => view.step(1), ArrowLeft: () => view.step(-1), Home: () => view.go(0), End: () => view.last(),
      ArrowDown: () => list.move(1), ArrowUp: () => list.move(-1), j: () => list.move(1), k: () => list.move(-1),
      t: turnTheme, "?": () => dialog.showModal(), "/": () => document.getElementById("filter-words")?.focus(),
    };
    const act = acts[event.key] ?? (/^[1-9]$/.test(event.key) ? () => view.fork(Number(event.key) - 1) : undefined);
    if (act) { event.preventDefault(); act(); }
  });
  document.documentElement.dataset["ready"] = "yes";
}

readPage().then(start, (error: unknown) => {
  document.body.replaceChildren(el("p", { class: "error" }, `This page cannot be read: ${String(error)}`));
});
