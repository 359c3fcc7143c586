// Looks at a node's page as its operator does, in Chromium. Each line on standard input asks for one step, whose findings are printed as JSON.
import { createInterface } from 'node:readline';
import puppeteer from 'puppeteer-core';
import { contrasts } from './looks.mjs';

const [url, screenshots] = process.argv.slice(2);
const PATIENCE = { timeout: 60_000, polling: 100 };

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  // The tests may run as root, where there is no sandbox; the page is the project's own.
  args: ['--no-sandbox', '--disable-gpu'],
  // It ends when the pipe does, however this program ends.
  pipe: true,
});
const page = await browser.newPage();
const errors = [];
const origins = new Set();
page.on('pageerror', (error) => errors.push(error.message));
page.on('request', (request) => {
  // The empty icon is in the page itself, and some browsers call that a request.
  if (!request.url().startsWith('data:')) origins.add(new URL(request.url()).origin);
});
await page.exposeFunction('refused', (what) => errors.push(what));
await page.evaluateOnNewDocument(() => {
  addEventListener('securitypolicyviolation', (event) => window.refused(`refused by the policy: ${event.blockedURI} ${event.violatedDirective}`));
  // Everything that stood there, in the order in which it did.
  window.seen = { heads: [], states: [], links: [] };
  const note = (list, text) => list.at(-1) !== text && list.push(text);
  addEventListener('DOMContentLoaded', () => new MutationObserver(() => {
    for (const [name, id] of [['heads', 'head'], ['states', 'state'], ['links', 'link']]) note(window.seen[name], document.getElementById(id).textContent);
  }).observe(document.body, { subtree: true, childList: true, characterData: true }));
});

const text = (selector) => page.$eval(selector, (element) => element.textContent);
const until = (condition, ...args) => page.waitForFunction(condition, PATIENCE, ...args);
const isLive = () => document.getElementById('link').textContent === 'live';
const rows = (id) => page.$$eval(`#${id} tbody tr`, (all) => all.map((row) => [...row.cells].map((cell) => cell.innerText)));
const facts = (id) => page.$eval(`#${id}`, (list) => Object.fromEntries([...list.querySelectorAll('dt')].map((name) => [name.textContent, name.nextElementSibling.textContent])));

const steps = {
  /** The page of a node whose only peer is silent. */
  async open() {
    await page.setViewport({ width: 1280, height: 900 });
    const answer = await page.goto(url);
    await until(isLive);
    return { policy: answer.headers()['content-security-policy'], head: await text('#head'), state: await text('#state'), warnings: await text('#warnings') };
  },

  /** What it shows once the peer answers, until it is at the head. */
  async follow() {
    await until(() => document.getElementById('state').textContent === 'at head, ready' && Number(document.getElementById('head').textContent) > 60);
    await until(() => document.querySelector('#peers tbody tr') && document.querySelector('#events li'));
    const seen = await page.evaluate(() => window.seen);
    const heads = seen.heads.map(Number).filter((head) => !Number.isNaN(head));
    return {
      heads,
      states: seen.states,
      peers: await rows('peers'),
      stages: (await rows('stages')).map((row) => row[0]),
      machine: await facts('machine-facts'),
      caches: await facts('caches-facts'),
      latency: await facts('latency-facts'),
      events: await page.$$eval('#events li', (all) => all.map((item) => item.textContent)),
      bar: await page.$eval('#bar', (bar) => bar.value),
    };
  },

  /** Widths and colours: what is wider than the window, and the least contrast of a text. */
  async look() {
    const looks = [];
    for (const scheme of ['light', 'dark']) for (const width of [360, 800, 1280]) {
      await page.setViewport({ width, height: 900 });
      await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
      await until((width) => innerWidth === width, width);
      const look = await page.evaluate(contrasts);
      const tables = await page.accessibility.snapshot({ interestingOnly: false }).then((tree) => named(tree, 'table'));
      looks.push({ scheme, width, ...look, tables });
      await page.screenshot({ path: `${screenshots}/page-${width}-${scheme}.png`, fullPage: true });
    }
    await page.setViewport({ width: 1280, height: 900 });
    return looks;
  },

  /** The node has been killed. */
  async gone() {
    await until(() => document.getElementById('link').textContent.includes('no answer') && document.body.classList.contains('stale'));
    return { link: await text('#link'), head: await text('#head') };
  },

  /** It runs again. */
  async back() {
    await until(isLive);
    const head = Number(await text('#head'));
    // By events alone, too: the stream has been taken up.
    const events = await page.$$eval('#events li', (all) => all.length);
    await until((head) => Number(document.getElementById('head').textContent) > head + 20, head);
    await until((events) => document.querySelectorAll('#events li').length > events, events);
    return { stale: await page.$eval('body', (body) => body.classList.contains('stale')), errors, origins: [...origins] };
  },
};

/** The names of all nodes of a role, as whoever cannot see the page hears them. */
function named(node, role) {
  return [...(node.role === role ? [node.name] : []), ...(node.children ?? []).flatMap((child) => named(child, role))];
}

for await (const step of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await steps[step]()));
}
await browser.close();
