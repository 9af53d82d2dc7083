// Writes index.html and trace.html, each with its style and script inside, into the given folder.

import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

const PAGES = { chat: "index.html", trace: "trace.html" };
const SOURCES = join(import.meta.dirname, "src");

async function bundled(entry) {
  const options = { bundle: true, minify: true, write: false, format: "esm", target: "es2022", legalComments: "none" };
  const result = await build({
    ...options,
    entryPoints: [join(SOURCES, entry)],
    jsx: "automatic",
    jsxImportSource: "preact",
    metafile: true,
  });
  const packages = Object.keys(result.metafile.inputs).map((path) => path.match(/node_modules\/([^/]+)/)?.[1]);
  return { text: result.outputFiles[0].text.trim(), packages: new Set(packages.filter(Boolean)) };
}

/** The licences of the packages in a bundle, for the copies of them that travel in the page. */
async function licences(packages) {
  const texts = [...packages].sort().map(async (name) => {
    const folder = join(import.meta.dirname, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const text = await readFile(join(folder, "LICENSE"), "utf8");
    return `${name} ${version} (${license})\n\n${text.replaceAll("\r", "").replaceAll("--", "- -").trim()}`;
  });
  return (await Promise.all(texts)).join("\n\n\n");
}

function read(name) {
  return readFile(join(SOURCES, name), "utf8");
}

/** In a page, "<!--" and "<script" would change how the rest of a script is read. */
function inline(script) {
  return script.replace(/<(?=!--|script)/gi, "\\x3c");
}

function hash(text) {
  return `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
}

function policy(script, style, connect) {
  return [
    "default-src 'none'",
    `script-src ${hash(script)}`,
    `style-src ${hash(style)}`,
    "img-src data:",
    `connect-src ${connect}`,
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types dompurify",
  ].join("; ");
}

function filled(template, parts) {
  return template.replace(/\{\{(\w+)\}\}/g, (whole, name) => parts[name] ?? whole);
}

const folder = process.argv[2];
const { text: style } = await bundled("style.css");
const icon = `data:image/svg+xml,${encodeURIComponent((await read("icon.svg")).trim())}`;
for (const [name, file] of Object.entries(PAGES)) {
  const bundle = await bundled(`${name}.tsx`);
  const script = inline(bundle.text);
  const connect = name === "chat" ? "'self'" : "'none'";
  const page = filled(await read(`${name}.html`), {
    policy: policy(script, style, connect),
    licences: await licences(bundle.packages),
    ...{ icon, style, script },
  });
  await writeFile(join(folder, file), page);
  console.log(`${file}: ${(page.length / 1024).toFixed(0)} KB`);
}
