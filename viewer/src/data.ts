// What a page holds, as `terrella.show.page_data` writes it, and how it is read: gzip in base64, inside the page itself.

export interface TextSeen { kind: "text" | "state" | "tree"; text: string }
export interface FramesSeen { kind: "frames"; images: string[] }
export type Seen = TextSeen | FramesSeen;

export interface Verdict { value: number | null; status: string; parts: Record<string, number>; evidence: string }
export interface Result { seen: number | Seen; reward: number; terminated: boolean; success: boolean; chance: number }
export interface Predicted extends Result { risk: number; trust: string; verdict: Verdict }
export interface Fork { action: string; real: Result[]; imagined: Result[]; risk: number | null; trust: string }
export interface Step {
  action: string; seen: number; reward: number; terminated: boolean; truncated: boolean;
  info: Record<string, unknown>; risk: number | null; predicted?: Predicted; forks?: Fork[];
}
export interface Tokens {
  prompt: string[]; texts: string[]; model: number[]; logprobs: number[]; advantages: number[] | null;
}
export interface Episode {
  id: number; world: string; policy: string; split: string; seed: number; noise_seed: number; instance: string;
  stop: string; outcome: Verdict; error: string; first: number; steps: Step[]; note: string; flat: boolean; tokens?: Tokens;
  screens?: string[]; // of the beginning and after each step, where they could be taken again
}
export interface Curve { name: string; steps: number[]; values: number[] }
export interface PageData {
  title: string; about: [string, string][]; observations: Seen[]; episodes: Episode[]; curves: Curve[];
  pages: string[]; page: number; threshold: number | null; live: string | null;
}

export async function readPage(): Promise<PageData> {
  const packed = atob(document.getElementById("data")!.textContent!.trim());
  const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as PageData;
}

export function masked(episode: Episode): boolean {
  return episode.outcome.value === null || episode.steps.some((step) => step.predicted?.verdict.value === null);
}

export function wrong(step: Step): boolean {
  const value = step.predicted?.verdict.value;
  return value !== undefined && value !== null && value < 1;
}

// How an episode ended, in one word for the list, the filters and the screen reader.
export function ending(episode: Episode): "won" | "lost" | "partial" | "masked" {
  const value = episode.outcome.value;
  if (value === null) return "masked";
  return value === 1 ? "won" : value === 0 ? "lost" : "partial";
}

// The same, as a sentence says it.
export const ENDED = { won: "succeeded", lost: "failed", partial: "succeeded in part", masked: "not scored" };

// Where a page begins: the first wrong prediction, else the first success, else the first episode.
export function interesting(episodes: Episode[]): [Episode | null, number] {
  for (const episode of episodes) {
    const miss = episode.steps.findIndex(wrong);
    if (miss >= 0) return [episode, miss + 1];
  }
  return [episodes.find((episode) => ending(episode) === "won") ?? episodes[0] ?? null, 0];
}
