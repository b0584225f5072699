// Which lines of two texts belong together: the longest common subsequence, then gaps side by side.

const MOST = 2000; // lines; the table below is quadratic

function common(a: string[], b: string[]): [number, number][] {
  if (a.length > MOST || b.length > MOST) return a.flatMap((line, i): [number, number][] => (b[i] === line ? [[i, i]] : []));
  const width = b.length + 1;
  const table = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1]! + 1
        : Math.max(table[(i + 1) * width + j]!, table[i * width + j + 1]!);
  const pairs: [number, number][] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; )
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (table[(i + 1) * width + j]! >= table[i * width + j + 1]!) i++;
    else j++;
  return pairs;
}

// Each line with the one it is compared with: itself when it is there, the one that stands in its place, or "" when it is new.
// Without another text nothing is compared.
export function matchLines(lines: string[], other: string[] | null): [string, string | null][] {
  if (other === null) return lines.map((line) => [line, null]);
  const found: [string, string | null][] = [];
  let i = 0, j = 0;
  for (const [x, y] of [...common(lines, other), [lines.length, other.length] as [number, number]]) {
    while (i < x) found.push([lines[i++]!, j < y ? other[j++]! : ""]);
    j = y + 1;
    if (i < lines.length) found.push([lines[i]!, lines[i++]!]);
  }
  return found;
}

// As a unified difference: kept, only here (+), only there (-).
export function unified(lines: string[], other: string[]): ["=" | "+" | "-", string][] {
  const found: ["=" | "+" | "-", string][] = [];
  let i = 0, j = 0;
  for (const [x, y] of [...common(lines, other), [lines.length, other.length] as [number, number]]) {
    while (j < y) found.push(["-", other[j++]!]);
    while (i < x) found.push(["+", lines[i++]!]);
    if (i < lines.length) { found.push(["=", lines[i++]!]); j++; }
  }
  return found;
}
