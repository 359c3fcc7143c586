// The page of a node. It reads v1/status once a second and v1/events as they come, while somebody looks, and asks again when nobody answers.

import { $, each, show } from './dom.js';
import { draw, head } from './sections.js';
import { duration, short, words } from './text.js';

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
/** Longest time between two attempts: whoever restarts a node watches it come back. */
const RETRY_MS_MAX = 8000;
const EVENTS_SHOWN = 20;

let before = null;
let looking = false;
let retry = EVERY_MS;
let timer = null;
let stream = null;
let streamTimer = null;
/** The last head that an event told of, and when. */
let newest = { number: 0, at: 0 };
let number = 0;
const told = [];

async function ask() {
  const options = { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MS) };
  const answer = await fetch('v1/status', options).catch(() => {
    throw new Error('no answer from the node');
  });
  // A node that starts says in one line what it is at.
  if (!answer.ok) throw new Error((await answer.text()).trim().slice(0, 200) || `status ${answer.status}`);
  return answer.json();
}

async function look() {
  if (looking) return;
  looking = true;
  const asked = performance.now();
  try {
    const status = await ask();
    const at = performance.now();
    draw(status, before && { process: before.process, read_ms_after: at - before.at });
    before = { process: status.process, at, number: status.head.number };
    // The answer may be older than what an event has told meanwhile.
    if (newest.at > asked) head(Math.max(newest.number, status.head.number));
    link('live', 'good');
    // A node that answers again tells of events again.
    if (retry > EVERY_MS && stream?.readyState === EventSource.CLOSED) listen();
    retry = EVERY_MS;
  } catch (error) {
    const since = before ? `; these values are ${duration((performance.now() - before.at) / 1000)} old` : '';
    link(`${error.message}${since}; asking again`, 'bad');
    retry = Math.min(2 * retry, RETRY_MS_MAX);
  }
  looking = false;
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, retry);
}

function link(text, tone) {
  const element = $('link');
  element.className = tone;
  document.body.classList.toggle('stale', tone !== 'good');
  show(element, text);
}

function listen() {
  clearTimeout(streamTimer);
  streamTimer = null;
  stream = new EventSource('v1/events');
  for (const name of ['head', 'phase', 'blocker', 'peer', 'snapshot', 'lost']) {
    stream.addEventListener(name, (event) => hear(JSON.parse(event.data)));
  }
  // A stream that broke off is resumed by the browser; one that was refused is not.
  stream.addEventListener('error', () => {
    if (stream?.readyState === EventSource.CLOSED && !streamTimer) streamTimer = setTimeout(listen, RETRY_MS_MAX);
  });
}

function hear(event) {
  if (event.event === 'head') {
    // One that was late: a status has told of a newer head.
    if (before && event.number < before.number) return;
    newest = { number: event.number, at: performance.now() };
    head(newest.number);
    return;
  }
  number += 1;
  told.unshift({ number, at: new Date(), text: sentence(event) });
  told.length = Math.min(told.length, EVENTS_SHOWN);
  const list = $('events');
  list.classList.add('some');
  each(list, told, (event) => event.number, () => document.createElement('li'), (item, { at, text }) => {
    if (item.firstChild) return;
    const time = document.createElement('time');
    time.dateTime = at.toISOString();
    time.textContent = at.toLocaleTimeString();
    item.append(time, ` ${text}`);
  });
}

function sentence(event) {
  switch (event.event) {
    case 'phase': return `${words(event.state)}: ${event.phase}`;
    case 'blocker': return event.blocker ? `not ready: ${event.blocker.text}` : 'nothing blocks the node any longer';
    case 'peer': return `peer ${event.name ?? short(event.peer)} ${words(event.change)}${event.reason ? `: ${event.reason}` : ''}`;
    case 'snapshot': return `snapshot of batch ${event.number}`;
    case 'lost': return event.lost === null ? 'the node has restarted' : `${event.lost} events were missed`;
    default: return words(event.event);
  }
}

/** A page that nobody sees leaves its places to others. */
function turn() {
  if (document.hidden) {
    clearTimeout(timer);
    clearTimeout(streamTimer);
    stream?.close();
    stream = streamTimer = null;
  } else if (!stream) {
    listen();
    look();
  }
}

document.addEventListener('visibilitychange', turn);
turn();
