// Opens an HTML page in headless Chromium as different people see it, and prints what is wrong with it.
//
//   NODEGATE_BROWSER=DIR node check.mjs PAGE [PICTURES]
//
// DIR is what `install` prints. With PICTURES, a directory, screenshots are written into it.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.env.NODEGATE_BROWSER, "package.json"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [page_file, pictures] = process.argv.slice(2);

const desktop = { width: 1200, height: 900 };
const phone = { width: 400, height: 800, isMobile: true, hasTouch: true };
const views = [
  { name: "light", scheme: "light", viewport: desktop, picture: true },
  { name: "dark", scheme: "dark", viewport: desktop, picture: true },
  { name: "tablet", scheme: "light", viewport: { width: 800, height: 1000 } },
  { name: "phone", scheme: "light", viewport: phone, picture: true },
  { name: "phone-dark", scheme: "dark", viewport: phone },
  { name: "narrow", scheme: "light", viewport: { ...phone, width: 320 } },
];

const faults = [];
const chromium = execFileSync("sh", ["-c", "command -v chromium-headless-shell || command -v chromium"], { encoding: "utf8" });
const browser = await puppeteer.launch({
  executablePath: chromium.trim(),
  // A container has no user namespaces; the only page that is opened is a local one.
  args: ["--no-sandbox", "--hide-scrollbars"],
  timeout: 60_000,
});
try {
  for (const view of views) await look(view);
} finally {
  await browser.close();
}
for (const fault of faults) console.log(fault);
process.exit(faults.length === 0 ? 0 : 1);

async function look({ name, scheme, viewport, picture }) {
  const fault = (text) => faults.push(`${name}: ${text}`);
  const page = await browser.newPage();
  const url = pathToFileURL(resolve(page_file)).href;
  page.on("request", (request) => request.url().split("#")[0] === url || fault(`requests ${request.url()}`));
  page.on("console", (message) => fault(`console: ${message.text()}`));
  page.on("pageerror", (error) => fault(`error: ${error}`));
  await page.setViewport(viewport);
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(url);
  if (pictures && picture) {
    await page.screenshot({ path: join(pictures, `report-${name}.webp`), type: "webp", quality: 80, fullPage: true });
  }
  await keyboard(page, fault);
  // What is folded is read too.
  await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
  const wide = await page.evaluate(() => {
    const room = document.documentElement.clientWidth;
    const sticks_out = (element) => element.getBoundingClientRect().right > room + 1;
    return [...document.querySelectorAll("body *")].filter(sticks_out).map((element) => element.outerHTML.slice(0, 120));
  });
  if (wide.length > 0) fault(`wider than the page: ${wide[0]}`);
  const small = await page.evaluate(() => {
    const size = (text) => parseFloat(getComputedStyle(text).fontSize) * (text.getCTM?.().a ?? 1);
    return [...document.querySelectorAll("svg text, p, td, th")].map(size).filter((size) => size < 11);
  });
  if (small.length > 0) fault(`a text is drawn with ${small[0]} pixels`);
  // No color has to be told from another: a chart has one, and what needs attention has another shape as well.
  const colors = await page.evaluate(() => new Set([...document.querySelectorAll("svg rect")].map((bar) => getComputedStyle(bar).fill)).size);
  if (colors > 1) fault(`the charts have ${colors} colors`);
  const flat = await page.evaluate(() => [...document.querySelectorAll(".alert")].some((tile) => parseFloat(getComputedStyle(tile).borderLeftWidth) < 4));
  if (flat) fault("a tile that needs attention differs from others only by its color");
  const overlaps = await page.evaluate(() => {
    const boxes = (svg) => [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    const outside = ([, box], frame) => box.left < frame.left - 1 || box.right > frame.right + 1;
    const meet = (one, other) =>
      one.left < other.right - 1 && other.left < one.right - 1 && one.top < other.bottom - 2 && other.top < one.bottom - 2;
    const found = [];
    for (const svg of document.querySelectorAll("svg")) {
      const texts = boxes(svg);
      texts.filter((text) => outside(text, svg.getBoundingClientRect())).forEach(([text]) => found.push(`cut off: ${text.textContent.trim()}`));
      texts.forEach(([text, box], at) =>
        texts.slice(at + 1).filter(([, other]) => meet(box, other)).forEach(([other]) =>
          found.push(`overlap: ${text.textContent.trim()}, ${other.textContent.trim()}`)));
    }
    return found;
  });
  overlaps.forEach((overlap) => fault(`in a chart, ${overlap}`));
  // The page's policy forbids scripts, so axe is run by the debugger, in a world of its own.
  await page.setBypassCSP(true);
  await page.reload();
  await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
  await page.evaluate(axe);
  const run = "axe.run(document, { resultTypes: ['violations', 'passes', 'incomplete'] })";
  const { violations, passes, incomplete } = await page.evaluate(run);
  if (passes.length < 10) fault(`axe checked only ${passes.length} rules`);
  // axe cannot tell what is behind a text of a chart. It has the color of all other text.
  const of_charts = ({ html }) => html.startsWith("<text");
  for (const { id, help, nodes } of [...violations, ...incomplete]) {
    const [first] = nodes.filter((node) => id !== "color-contrast" || !of_charts(node));
    if (first) fault(`axe: ${id}: ${help}: ${first.html.slice(0, 200)}`);
  }
  await page.close();
}

// Everything that can be clicked can be reached by Tab, in the order of the page, is marked when it is, and works by Enter.
async function keyboard(page, fault) {
  const expected = await page.evaluate(
    () => [...document.querySelectorAll("a, summary")].filter((element) => element.checkVisibility()).length,
  );
  const reached = await page.evaluate(() => document.querySelectorAll("script, button, input").length);
  if (reached > 0) fault("has elements that this check does not know");
  let last = -1;
  for (let at = 0; at < expected; at += 1) {
    await page.keyboard.press("Tab");
    const focus = await page.evaluate(() => {
      const element = document.activeElement;
      const all = [...document.querySelectorAll("a, summary")];
      return { at: all.indexOf(element), outline: getComputedStyle(element).outlineStyle, html: element.outerHTML.slice(0, 120) };
    });
    if (focus.at <= last) return fault(`Tab leads to ${focus.html}`);
    if (focus.outline === "none") fault(`focus is not visible: ${focus.html}`);
    last = focus.at;
  }
  await page.evaluate(() => document.querySelector("a.skip").focus());
  await page.keyboard.press("Enter");
  if (!(await page.evaluate(() => document.activeElement.id === "main"))) fault("the skip link does not lead to the report");
  const folded = await page.$("summary");
  if (folded === null) return;
  await folded.focus();
  await page.keyboard.press("Enter");
  if (!(await page.evaluate(() => document.activeElement.parentElement.open))) fault("Enter does not unfold");
}
