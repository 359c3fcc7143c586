// Looks at the page of a run's report, from its file, in Chromium. Prints what it found as JSON.
import puppeteer from 'puppeteer-core';
import { contrasts } from './looks.mjs';

const [url, screenshot] = process.argv.slice(2);
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  // The tests may run as root, where there is no sandbox; the page is the project's own.
  args: ['--no-sandbox', '--disable-gpu'],
  pipe: true,
  // Beside other tests it may take a minute to start.
  timeout: 170_000,
});
const page = await browser.newPage();
const errors = [];
const asked = [];
page.on('pageerror', (error) => errors.push(error.message));
page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
page.on('request', (request) => {
  if (request.url() !== url && !request.url().startsWith('data:')) asked.push(request.url());
});
await page.setViewport({ width: 1280, height: 900 });
await page.goto(url);
await page.waitForFunction(() => document.documentElement.dataset.drawn === 'yes' && document.querySelector('svg .curve'), { timeout: 170_000 });

const texts = (selector) => page.$$eval(selector, (all) => all.map((element) => element.textContent));
const seen = await page.evaluate(() => ({
  charts: [...document.querySelectorAll('svg')].map((svg) => ({
    name: svg.getAttribute('aria-label'),
    curves: svg.querySelectorAll('.curve').length,
    marks: svg.querySelectorAll('.mark').length,
    bands: [...svg.querySelectorAll('.band')].filter((band) => Number(band.getAttribute('width')) > 0).length,
  })),
}));
// A pointer in the middle of a chart reads its values there.
await page.$eval('#head svg', (svg) => svg.scrollIntoView({ block: 'center' }));
const box = await (await page.$('#head svg')).boundingBox();
await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
const pointed = await page.$$eval('#head .card:first-child tr', (rows) => rows.map((row) => row.lastElementChild.textContent));

const looks = [];
for (const width of [360, 768, 1280]) {
  for (const scheme of ['light', 'dark']) {
    await page.setViewport({ width, height: 900 });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
    // The page draws its charts anew some frames after its window has another width. If it does not, what is too wide is told.
    await page.waitForFunction(() => [...document.querySelectorAll('svg *')].every((element) =>
      element.getBoundingClientRect().right <= document.documentElement.clientWidth + 1), { timeout: 10_000 }).catch(() => {});
    looks.push({ width, scheme, ...(await page.evaluate(contrasts)) });
    if (screenshot) await page.screenshot({ path: `${screenshot}/report-${width}-${scheme}.png`, fullPage: true });
  }
}
console.log(JSON.stringify({
  title: await page.title(),
  verdict: await page.$eval('#verdict', (element) => element.textContent),
  command: await page.$eval('#command', (element) => element.textContent),
  environment: await page.$eval('#environment', (element) => element.textContent),
  sections: await texts('h2'),
  harness: await texts('#harness td'),
  faults: await texts('#faults td'),
  liars: await texts('#liars td'),
  load: await texts('#load td'),
  audit: await texts('#audit td'),
  phases: await texts('#phases td'),
  searches: await texts('#searches tbody td'),
  ...seen,
  pointed,
  looks,
  errors,
  asked,
}));
await browser.close();
