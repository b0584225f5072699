// The tokens of an episode as they were trained on: who wrote them, how likely they were, and where they were pushed.
import { el, short } from "./dom";
import type { Tokens } from "./data";

type Mode = "mask" | "advantage" | "logprob";
const MODES: [Mode, string][] = [["mask", "who wrote it"], ["advantage", "advantage"], ["logprob", "log-probability"]];
let mode: Mode = "mask";

// Blue and orange can be told apart with any colour vision; the tooltip and the legend say the number.
function colour(tokens: Tokens, n: number): string {
  if (!tokens.model[n]) return "";
  if (mode === "mask") return "color-mix(in srgb, var(--blue) 35%, transparent)";
  const value = mode === "logprob" ? tokens.logprobs[n]! : tokens.advantages?.[n] ?? 0;
  const strength = Math.min(100, Math.round(mode === "logprob" ? -value * 25 : Math.abs(value) * 45));
  return `color-mix(in srgb, var(${value < 0 ? "--orange" : "--blue"}) ${strength}%, transparent)`;
}

function token(tokens: Tokens, text: string, n: number): HTMLElement {
  const mine = Boolean(tokens.model[n]);
  const title = mine ? `log-probability ${short(tokens.logprobs[n])}, advantage ${short(tokens.advantages?.[n])}` : "the world's: no loss";
  const node = el("span", { class: mine ? "token" : "token world", title }, text.replaceAll("\n", "⏎\n"));
  node.style.background = colour(tokens, n);
  return node;
}

export function tokenPanel(tokens: Tokens): HTMLElement {
  const written = el("div", { class: "tokens", tabindex: 0, role: "region", "aria-label": "Tokens" });
  const legend = el("p", { class: "quiet" });
  const draw = () => {
    written.replaceChildren(el("span", { class: "token world", title: "the prompt" }, tokens.prompt.join("")),
      ...tokens.texts.map((text, n) => token(tokens, text, n)));
    const told = { mask: "Blue: the model's. Plain: the world's, masked from the loss.",
      advantage: tokens.advantages ? "Blue was pushed up, orange down; the number is in the tooltip." : "This episode taught nothing: its group did not vary, or its verdict was masked.",
      logprob: "The stronger the orange, the less likely the token was when it was sampled." };
    legend.textContent = told[mode];
  };
  const select = el("select", { id: "token-mode", change: () => { mode = select.value as Mode; draw(); } },
    ...MODES.map(([value, name]) => el("option", { value, ...(value === mode ? { selected: true } : {}) }, name)));
  draw();
  return el("section", { class: "panel", "aria-label": "Tokens of the model" },
    el("h3", {}, "Tokens"), el("label", {}, el("span", {}, "Colour"), select), legend, written);
}
