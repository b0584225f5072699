// The list of episodes: only the rows in view exist, so that a hundred thousand of them scroll as well as ten.
import { el } from "./dom";
import { ENDED, type Episode, ending, wrong } from "./data";

const ROW = 46; // pixels; as in style.css
const SIGNS = { won: "✓", lost: "✗", partial: "◐", masked: "–" };

export class EpisodeList {
  readonly node: HTMLElement;
  private shown: Episode[] = [];
  private current = -1;
  private readonly space = el("div", { class: "space" });

  constructor(private readonly choose: (episode: Episode) => void) {
    this.node = el("div", {
      class: "list", role: "listbox", tabindex: 0, "aria-label": "Episodes", scroll: () => this.draw(),
      keydown: ((event: KeyboardEvent) => this.key(event)) as EventListener,
    }, this.space);
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  show(episodes: Episode[]): void {
    this.shown = episodes;
    this.space.style.height = `${episodes.length * ROW}px`;
    this.node.scrollTop = 0;
    this.draw();
  }

  mark(id: number): void {
    this.current = id;
    const place = this.shown.findIndex((episode) => episode.id === id);
    const { scrollTop, clientHeight } = this.node;
    if (place >= 0 && (place * ROW < scrollTop || (place + 1) * ROW > scrollTop + clientHeight)) this.node.scrollTop = place * ROW - clientHeight / 3;
    this.draw();
  }

  move(by: number): void {
    const place = this.shown.findIndex((episode) => episode.id === this.current);
    const next = this.shown[Math.min(Math.max(place + by, 0), this.shown.length - 1)];
    if (next) this.choose(next);
  }

  private key(event: KeyboardEvent): void {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.move(by);
  }

  private draw(): void {
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - 3);
    const last = Math.min(this.shown.length, first + Math.ceil(this.node.clientHeight / ROW) + 6);
    this.space.replaceChildren(...this.shown.slice(first, last).map((episode, n) => this.row(episode, first + n)));
  }

  private row(episode: Episode, place: number): HTMLElement {
    const how = ending(episode);
    const misses = episode.steps.filter(wrong).length;
    const selected = episode.id === this.current;
    const row = el("div", {
      class: `row ${how}`, role: "option", "aria-selected": selected ? "true" : "false", "aria-posinset": place + 1,
      "aria-setsize": this.shown.length, click: () => this.choose(episode),
      "aria-label": `Episode ${episode.id}, ${episode.world}, ${ENDED[how]}, ${episode.steps.length} steps`,
    },
    el("span", { class: "how", "aria-hidden": "true" }, SIGNS[how]),
    el("span", { class: "what" }, `${episode.world} ${episode.id}`, el("small", {}, `seed ${episode.seed} · ${episode.policy}${episode.note ? ` · ${episode.note}` : ""}`)),
    el("span", { class: "count" }, `${episode.steps.length} steps`, el("small", {}, misses ? `${ENDED[how]}, ${misses} wrong` : ENDED[how])));
    row.style.top = `${place * ROW}px`;
    return row;
  }
}
