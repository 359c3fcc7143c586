// Looks at a node's page as its operator does, in Chromium. Each line on standard input asks for one step, with what it needs; its findings are
// printed as JSON.
import { createInterface } from 'node:readline';
import puppeteer from 'puppeteer-core';
import { contrasts } from './looks.mjs';

const [screenshots] = process.argv.slice(2);
/** Other tests and their nodes share the machine, on which a browser may take a minute to start. */
const PATIENCE = { timeout: 170_000, polling: 100 };

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  // The tests may run as root, where there is no sandbox; the page is the project's own.
  args: ['--no-sandbox', '--disable-gpu'],
  // It ends when the pipe does, however this program ends.
  pipe: true,
  timeout: PATIENCE.timeout,
  protocolTimeout: 2 * PATIENCE.timeout,
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

const go = async (url) => {
  await page.setViewport({ width: 1280, height: 900 });
  const answer = await page.goto(url, { timeout: PATIENCE.timeout });
  await until(isLive);
  return answer;
};

const steps = {
  /** The browser runs. */
  ready: () => browser.version(),

  /** The page of a node whose only peer is silent. */
  async open(url) {
    const answer = await go(url);
    return { policy: answer.headers()['content-security-policy'], head: await text('#head'), state: await text('#state'), warnings: await text('#warnings') };
  },

  /** What it shows once the peer answers, until it is at the head. */
  async follow() {
    // What changes from look to look is taken in the moment in which all of it holds.
    const shown = await until(() => {
      const text = (id) => document.getElementById(id).textContent;
      const events = [...document.querySelectorAll('#events li')].map((item) => item.textContent);
      const bar = document.getElementById('bar').value;
      const isThere = text('state') === 'at head, ready' && Number(text('head')) > 60 && bar > 90 && window.seen.heads.length > 7;
      const isTold = document.querySelector('#peers tbody tr') && events.some((event) => / connected|at head/.test(event));
      return isThere && isTold && { ...window.seen, events, bar };
    });
    const seen = await shown.jsonValue();
    const heads = seen.heads.map(Number).filter((head) => !Number.isNaN(head));
    return {
      heads,
      states: seen.states,
      peers: await rows('peers'),
      stages: (await rows('stages')).map((row) => row[0]),
      machine: await facts('machine-facts'),
      caches: await facts('caches-facts'),
      latency: await facts('latency-facts'),
      events: seen.events,
      bar: seen.bar,
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
    await page.evaluate(() => {
      window.lastEvent = document.querySelector('#events li');
    });
    await until((head) => Number(document.getElementById('head').textContent) > head + 20, head);
    await until(() => document.querySelector('#events li') !== window.lastEvent);
    await until(() => !document.body.classList.contains('stale'));
    return { errors, origins: [...origins] };
  },

  /** The page of one of four validators. Its status gains this evidence and this ban: nobody lies in a devnet. */
  async validator(url, found) {
    await page.evaluateOnNewDocument((found) => {
      const ask = window.fetch;
      window.fetch = async (...request) => {
        const answer = await ask(...request);
        const read = answer.json.bind(answer);
        answer.json = async () => {
          const status = await read();
          status.consensus.evidence.push(found.evidence);
          status.bans.push(found.ban);
          return status;
        };
        return answer;
      };
    }, JSON.parse(found));
    await go(url);
    const shown = await until(() => {
      const names = [...document.querySelectorAll('#consensus-facts dt, #peers-facts dt')];
      const facts = Object.fromEntries(names.map((name) => [name.textContent, name.nextElementSibling.textContent]));
      const rows = [...document.querySelectorAll('#validators tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText));
      const isHeard = rows.length === 4 && rows.every((row) => row[1] === 'this node' || row[1].endsWith(' ago'));
      return facts.votes && isHeard && { facts, rows };
    });
    return { ...(await shown.jsonValue()), errors };
  },

  /** Two of the others have stopped. */
  async silent() {
    await until(() => document.querySelector('#validators tbody .bad'));
    return { heard: await page.$$eval('#validators tbody .bad', (all) => all.map((span) => span.textContent)), errors };
  },
};

/** The names of all nodes of a role, as whoever cannot see the page hears them. */
function named(node, role) {
  return [...(node.role === role ? [node.name] : []), ...(node.children ?? []).flatMap((child) => named(child, role))];
}

for await (const step of createInterface({ input: process.stdin })) {
  const [name, ...needs] = step.split(' ');
  console.log(JSON.stringify(await steps[name](...needs)));
}
await browser.close();
