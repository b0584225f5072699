// Builds the page's script and style into the Python package. `--check` fails when what is there is not what comes out.
// The bundle is kept in the repository, so that installing terrella never needs Node; its first line names its sources by hash.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = join(here, "../src/terrella/show/bundle");

function sources(folder) {
  const entries = readdirSync(folder, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1));
  return entries.flatMap((e) => (e.isDirectory() ? sources(join(folder, e.name)) : [join(folder, e.name)]));
}

const hash = createHash("sha256");
for (const file of sources(join(here, "src"))) hash.update(readFileSync(file));
const banner = `/* terrella viewer; sources ${hash.digest("hex")} */`;
const result = await build({
  entryPoints: { viewer: join(here, "src/main.ts"), style: join(here, "src/style.css") },
  bundle: true, minify: true, write: false, outdir: out, target: "es2022", charset: "utf8", legalComments: "none",
  banner: { js: banner, css: banner },
});

let stale = false;
for (const { path, text } of result.outputFiles) {
  if (!process.argv.includes("--check")) writeFileSync(path, text);
  else if (readFileSync(path, "utf8") !== text) { stale = true; console.error(`${path} is stale: npm run build`); }
}
process.exit(stale ? 1 : 0);
