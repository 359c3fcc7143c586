// Each part of the page, drawn from a status.

import { age, bytes, count, duration, left, ms, perSecond, percent, several, share, short, words } from './text.js';
import { $, each, facts, show, table } from './dom.js';

/** Upper ends of the classes in which the mesh counts how long payloads took, in milliseconds. */
const DECODED_MS = [5, 10, 25, 50, 100, 200, 400, 800, 1600, 3200];
/** Reasons of a score, and looks of the rate, that are shown. */
const REASONS_SHOWN = 4;
const RATES_SHOWN = 120;
/** Bans, and peers that the operator removed; `slipstream peers list` shows all. */
const BANS_SHOWN = 8;

const rates = [];

export function draw(status, before) {
  header(status);
  warnings(status);
  progress(status);
  stages(status.sync);
  peers(status);
  consensus(status);
  caches(status);
  latency(status);
  machine(status, before);
}

/** The head alone, which events tell of before the next status does. */
export function head(number) {
  $('head').textContent = number;
  document.title = `${number} \u2013 Slipstream`;
}

function header(status) {
  const own = status.name ? `${status.name}, ` : '';
  show($('who'), `${own}${status.role} of chain ${status.chain_id}, ${status.client}, ${status.peer_address}`);
}

function warnings({ sync, health, shared_keys, rules }) {
  const found = [];
  if (sync.alarm) found.push(['alarm', `ALARM: ${sync.alarm}`, 'bad']);
  if (health.blocker) {
    const { text, retry_ms, alert } = health.blocker;
    const retry = retry_ms === null ? '' : retry_ms === 0 ? '; it is trying now' : `; it tries again in ${ms(retry_ms)}`;
    found.push(['blocker', `Not ready: ${text}${retry}`, alert ? 'bad' : 'warn']);
  }
  if (health.silence) found.push(['silence', `${health.silence.text}; ${health.silence.way_out}`, 'bad']);
  for (const { id, name, problem } of shared_keys) found.push([id, name ? `${name}: ${problem}` : problem, 'bad']);
  for (const fork of rules.unknown) found.push([fork, `Unknown fork: ${fork}, according to peers' schedules: this node stops there`, 'bad']);
  each($('warnings'), found, ([key]) => key, () => document.createElement('li'), (item, [, text, tone]) => {
    item.className = tone;
    show(item, text);
  });
}

function progress(status) {
  const { progress: way, health, sync, head: { number, digest, state_root }, rules } = status;
  show($('state'), {
    text: `${words(health.state)}, ${health.ready ? 'ready' : 'not ready'}`,
    tone: health.ready ? 'good' : health.blocker?.alert ? 'bad' : 'warn',
  });
  head(number);
  show($('rate'), `${count(way.per_second)} ${way.unit}/s`);
  show($('left'), left(way.eta));
  const about = way.unit === 'rows' ? 'about ' : '';
  const of = way.unit === 'rows' && way.total === 0 ? `${count(way.done)} rows` : `${amount(way.done, way)} of ${about}${amount(way.total, way)} ${way.unit}`;
  show($('done'), `${percent(way.percent)}: ${of}`);
  $('bar').value = way.percent;
  drawRates(way);
  facts('progress-facts', [
    ['sync', `${sync.phase} (mode ${sync.mode})${sync.bottleneck ? `, bound by ${sync.bottleneck}` : ''}`],
    ['because', sync.reason || null],
    ['ways', sync.plan.ways.length ? sync.plan.ways.map(priced).join('; ') : null],
    ['waiting', sync.phase !== 'idle' && sync.waiting ? sync.waiting.reason : null],
    ['behind', several(health.behind_batches, 'batch', 'batches')],
    ['transactions', `${count(sync.transactions_per_second)}/s; ${status.pool.pending} executable and ${status.pool.queued} waiting in the pool`],
    ['restore', sync.snapshot && `of batch ${sync.snapshot.number}, ${count(sync.snapshot.rows)} rows`],
    ['history', sync.backfill && history(sync.backfill)],
    ['head', { text: short(digest), title: digest }],
    ['state root', { text: short(state_root), title: state_root }],
    ['waypoint', status.waypoint],
    ['rules', rules.next ? `${rules.fork}; next ${rules.next}` : rules.fork],
  ]);
}

function history({ wanted_from, lowest, batches_left, batches_per_second, bytes_per_second, eta_seconds, reason }) {
  const rate = batches_per_second > 0 ? `, ${count(batches_per_second)} batches/s, ${bytes(bytes_per_second)}/s` : '';
  const eta = eta_seconds === null ? '' : `, about ${duration(eta_seconds)} left`;
  return `all from batch ${lowest} on, ${batches_left} left to batch ${wanted_from}${rate}${eta}: ${reason}`;
}

const amount = (value, { unit }) => (unit === 'rows' ? count(value) : value);

function drawRates({ per_second, unit }) {
  if (rates.unit !== unit) rates.length = 0;
  rates.unit = unit;
  rates.push(per_second);
  if (rates.length > RATES_SHOWN) rates.shift();
  const most = Math.max(...rates, 1e-9);
  const at = (rate, index) => `${240 - (240 * (rates.length - 1 - index)) / (RATES_SHOWN - 1)},${(39 - (38 * rate) / most).toFixed(1)}`;
  $('rates').firstElementChild.setAttribute('points', rates.map(at).join(' '));
  show($('rates-text'), `${unit}/s of the last ${several(rates.length, 'look')}; at most ${count(most < 1e-6 ? 0 : most)}`);
}

function stages(sync) {
  table('stages', sync.stages.filter((stage) => stage.busy_seconds > 0), (stage) => stage.stage, (stage) => [
    stage.stage,
    { text: `${stage.busy_percent.toFixed(0)} %`, bar: stage.busy_percent },
    bytes(stage.queue_bytes),
    perSecond(stage.bytes_per_second),
    `${bytes(stage.bytes)} in ${duration(stage.busy_seconds)}`,
  ]);
  const { requests, hedges, audited, audits_skipped, batches, batches_replayed, repair } = sync;
  facts('stages-facts', [
    ['requests', `${requests} under way; ${several(hedges, 'late one')} given to a second peer`],
    ['followed', `${several(batches, 'batch', 'batches')}, ${batches_replayed} executed; ${several(sync.transactions, 'transaction')}`],
    ['received', bytes(sync.bytes_received)],
    ['audits', audited + audits_skipped > 0 ? `${audited} executed again, ${audits_skipped} left out` : null],
    ['repaired', repair && `batch ${repair.number}: ${repair.rows_put} rows put, ${repair.rows_removed} removed`],
  ]);
}

/** Everything that is known of each peer: what sync thinks of it, its connection, and its place in the configuration. */
function known({ sync, peers: connections, configured_peers }) {
  const all = new Map();
  const add = (id, part) => all.set(id, { id, ...all.get(id), ...part });
  for (const peer of configured_peers) {
    const [id, address] = peer.peer.split('@');
    add(id, { configured: peer, address, name: peer.name });
  }
  for (const peer of connections) add(peer.id, { connection: peer, address: peer.address, name: peer.name });
  for (const peer of sync.peers) add(peer.id, { sync: peer, name: peer.name });
  return [...all.values()].sort((a, b) => (b.sync?.score ?? -1) - (a.sync?.score ?? -1) || (a.id < b.id ? -1 : 1));
}

function peers(status) {
  const validators = new Set(status.epoch.validators);
  const chosen = new Set(status.exchange?.chosen ?? []);
  table('peers', known(status), (peer) => peer.id, ({ id, name, address, connection, configured, sync }) => [
    [
      ...called(name, id),
      address ?? null,
      { text: [validators.has(id) && 'validator', configured && (configured.added ? 'added' : 'configured'), chosen.has(id) && 'chosen'].filter(Boolean).join(', '), tone: 'quiet' },
    ],
    [...standing(connection, configured, sync)],
    sync ? [`${sync.score} of 1000`, ...sync.reasons.slice(0, REASONS_SHOWN).map(reason)] : '\u2013',
    sync ? [`${bytes(sync.verified_bytes)} verified, ${perSecond(sync.bytes_per_second)}`, `${sync.batches_replayed} to execute, ${sync.batches_applied} to apply`] : '\u2013',
    [connection ? `${connection.rtt_ms.toFixed(1)} ms round trip` : '\u2013', sync && sync.tail_ms > 0 ? `95 % of answers in ${ms(sync.tail_ms)}` : null],
    sync?.head == null ? '\u2013' : [sync.head, sync.heard_ms_ago === null ? null : { text: `heard ${ms(sync.heard_ms_ago)} ago`, tone: 'quiet' }],
  ]);
  const { exchange, serve, bans, bans_count, removed_peers = [] } = status;
  facts('peers-facts', [
    ['exchange', exchange && `${exchange.chosen.length} of ${exchange.outbound_max} chosen, ${exchange.reached} reached and ${exchange.heard} heard of`],
    ['served', `${several(serve.answers, 'answer')}, ${bytes(serve.bytes)}; ${serve.refused_busy} refused as busy`],
    ...bans.slice(0, BANS_SHOWN).map((ban, at) => [`banned ${at + 1}`, { text: banned(ban), tone: 'bad' }]),
    ['more bans', bans_count > BANS_SHOWN ? `${bans_count - BANS_SHOWN}: \`slipstream peers list\` shows them` : null],
    ...removed_peers.slice(0, BANS_SHOWN).map((removed, at) => [`removed ${at + 1}`, taken(removed)]),
  ]);
}

/** Who is not let in, until when, by whom and why. */
// What a way to the head would take, or why it is not taken.
function priced({ way, seconds, why_not }) {
  const price = seconds === null ? '' : ` ${seconds.toFixed(1)} s`;
  return `${words(way)}${price}${why_not ? ` (${why_not})` : ''}`;
}

function banned({ id, name, by, reason, seconds_left }) {
  const until = seconds_left === null ? 'until it is unbanned' : `for ${duration(seconds_left)}`;
  return `${name ? `${name} ` : ''}${short(id)} ${until}, by this node${by === 'operator' ? "'s operator" : ''}: ${reason}`;
}

/** A peer of the configuration that the operator removed. */
function taken({ peer, name }) {
  return `${name ?? short(peer.split('@')[0])} is in network.peers; \`slipstream peers add\` adds it again`;
}

/** The name of a key with the key below it, or the key alone. Both are shown as text. */
function called(name, key, place = '') {
  const first = { text: place + (name ?? short(key)), title: key };
  return name ? [first, { text: short(key), title: key, tone: 'quiet' }] : [first];
}

/** What a peer is asked for and why, and what keeps it away. */
function standing(connection, configured, sync) {
  const lines = [];
  if (sync) {
    lines.push(words(sync.mode), { text: words(sync.mode_reason), tone: 'quiet' });
    if (sync.banned) lines.push({ text: `banned: ${sync.last_reason}`, tone: 'bad' });
    else if (sync.pause_ms > 0) lines.push({ text: `paused for ${ms(sync.pause_ms)}: ${sync.last_reason}`, tone: 'warn' });
    else if (sync.failures > 0) lines.push({ text: several(sync.failures, 'failure'), tone: 'quiet' });
  } else if (connection) lines.push('connected');
  if (configured && !connection) {
    lines.push({ text: configured.state, tone: configured.state === 'connecting' ? 'warn' : 'bad' });
    if (configured.problem) lines.push({ text: configured.problem, tone: 'bad' });
    if (configured.next_attempt_ms > 0) lines.push({ text: `next attempt in ${ms(configured.next_attempt_ms)}`, tone: 'quiet' });
  }
  return lines;
}

function reason({ what, times, change, seconds_ago }) {
  const sign = change < 0 ? '\u2212' : '+';
  return { text: `${sign}${Math.abs(change)} ${what} (${several(times, 'time')}, ${duration(seconds_ago)} ago)`, tone: change < 0 ? 'warn' : 'quiet' };
}

function consensus({ consensus: own, epoch, peer_id, name, health }) {
  const certify = `epoch ${epoch.number}: ${epoch.quorum} of ${several(epoch.validators.length, 'validator')} certify a batch`;
  if (!own) {
    facts('consensus-facts', [['this node', 'follows; it does not validate'], ...silence(health), ['certified by', certify]]);
    table('validators', [], () => '', () => []);
    return;
  }
  const said = [own.is_primary && 'the primary', own.silence && 'signs nothing', own.complains && 'wants another primary'].filter(Boolean);
  facts('consensus-facts', [
    ['this node', [`validator ${member(own, own.index)}, counted from 0`, ...said].join(', ')],
    ...silence(health),
    ['certified by', certify],
    ['view', `${own.view} of primary ${member(own, own.primary)}${own.changing ? ', which has not begun' : ''}`],
    ['votes', own.voting && `batch ${own.voting.number}: ${own.voting.prepares} prepare it, ${own.voting.commits} commit to it, ${own.quorum} decide`],
    ['diverged', own.divergences > 0 ? { text: `${several(own.divergences, 'time')} from what the others agreed on`, tone: 'bad' } : null],
    ['refused', several(own.refused, 'message')],
    ...own.evidence.map(({ author, kind, number, view }, at) => [`evidence ${at + 1}`, { text: `validator ${member(own, author)} signed two ${kind} for batch ${number} in view ${view}`, tone: 'bad' }]),
  ]);
  const self = { index: own.index, key: peer_id, name, self: true, view: own.view, decided: own.decided, complains: own.complains, changing: own.changing, silence: own.silence };
  const all = [self, ...own.peers].sort((a, b) => a.index - b.index);
  table('validators', all, (validator) => validator.index, (validator) => [
    [...called(validator.name, validator.key, `${validator.index} `), validator.index === own.primary ? { text: 'primary', tone: 'quiet' } : null],
    heard(validator),
    validator.view ?? '\u2013',
    validator.decided ?? '\u2013',
    [
      [validator.silence && validator.silence.state.replaceAll('_', ' '), validator.complains && 'wants another primary', validator.changing && 'waits for the view'].filter(Boolean).join(', ') || '\u2013',
      validator.said_ms_ago === undefined ? null : { text: `said ${ms(validator.said_ms_ago)} ago`, tone: 'quiet' },
    ],
  ]);
}

/** Why a node that is run as a validator signs nothing, and the way out. */
function silence({ silence: own }) {
  return own ? [['silence', { text: own.text, tone: 'bad' }], ['way out', own.way_out]] : [];
}

/** A validator by its position, and by its name if it has one. */
function member(own, index) {
  const name = index === own.index ? own.name : own.peers.find((peer) => peer.index === index)?.name;
  return name ? `${index} (${name})` : `${index}`;
}

/** A validator that is silent for ten seconds is none of the quorum. */
function heard({ self, heard_ms_ago }) {
  if (self) return 'this node';
  if (heard_ms_ago === undefined) return { text: 'not since this node began to validate', tone: 'bad' };
  return { text: `${ms(heard_ms_ago)} ago`, tone: heard_ms_ago > 10_000 ? 'bad' : 'good' };
}

function caches({ sync, hot_cache, serve, stalls }) {
  const use = ({ named, used, reads }) => (reads > 0 ? `named ${share(used, reads)} of ${count(reads)} reads; ${share(named - used, named)} of the named unused` : 'none was needed yet');
  facts('caches-facts', [
    ['hints', use(sync.hints)],
    ['wrong values', sync.hints.values_wrong > 0 ? { text: sync.hints.values_wrong, tone: 'warn' } : null],
    ['predictors', use(sync.foretold)],
    ['hot cache', `${share(hot_cache.hits, hot_cache.hits + hot_cache.misses)} of ${count(hot_cache.hits + hot_cache.misses)} reads; ${count(hot_cache.rows)} rows, ${bytes(hot_cache.bytes)}`],
    ['waited for disk', `${count(stalls.stalls)} times, ${duration(stalls.seconds)} in all`],
    ['answers', `${share(serve.cache_hits, serve.cache_hits + serve.cache_misses)} of ${count(serve.cache_hits + serve.cache_misses)} parts from memory; ${bytes(serve.cache_bytes)} kept`],
  ]);
}

function latency({ health, peers: connections, sync, mesh, stalls }) {
  const trips = connections.map((peer) => peer.rtt_ms).sort((a, b) => a - b);
  const slowest = Math.max(0, ...sync.peers.map((peer) => peer.tail_ms));
  facts('latency-facts', [
    ['age of the head', health.head_age_seconds === null ? 'no batch yet' : age(health.head_age_seconds)],
    ...Object.entries(mesh.codecs).map(([codec, took]) => [`new batches, ${words(codec)}`, decoded(took)]),
    ['pulled', mesh.pulls > 0 || mesh.incomplete > 0 ? `${several(mesh.pulls, 'request')} for what did not come; ${several(mesh.incomplete, 'batch', 'batches')} by sync` : null],
    ['round trips', trips.length > 0 ? `${trips[0].toFixed(1)} to ${trips.at(-1).toFixed(1)} ms, median ${trips[trips.length >> 1].toFixed(1)} ms` : 'no peer is connected'],
    ['answers', slowest > 0 ? `95 % within ${ms(slowest)} from the slowest peer` : 'none yet'],
    ['a read from disk', stalls.stalls > 0 ? `${((1e6 * stalls.seconds) / stalls.stalls).toFixed(0)} \u00b5s on average` : 'none yet'],
  ]);
}

/** From a batch's certificate to the last byte of its parts. */
function decoded({ decoded: classes, decoded_s }) {
  const total = classes.reduce((sum, number) => sum + number, 0);
  if (total === 0) return 'none yet';
  let below = 0;
  const at = classes.findIndex((number) => (below += number) >= 0.95 * total);
  const end = at < DECODED_MS.length ? `within ${ms(DECODED_MS[at])}` : `in more than ${ms(DECODED_MS.at(-1))}`;
  return `${ms((1000 * decoded_s) / total)} on average, 95 % ${end}, of ${count(total)}`;
}

function machine({ process, disk, snapshots }, before) {
  const past = before?.process;
  const time = past && process.pid === past.pid ? (before.read_ms_after / 1000) : 0;
  const used = disk?.used;
  facts('machine-facts', [
    ['memory', bytes(process.memory_bytes)],
    ['CPU', time > 0 ? `${((100 * (process.cpu_seconds - past.cpu_seconds)) / time).toFixed(0)} % of a core; ${duration(process.cpu_seconds)} in all` : `${duration(process.cpu_seconds)} in all`],
    ['up', `${duration(process.uptime_seconds)}, process ${process.pid}`],
    ['threads', process.threads],
    ['open files', process.open_files_max === null ? process.open_files : `${process.open_files} of ${process.open_files_max}`],
    ['disk free', disk && { text: disk.min_bytes > 0 ? `${bytes(disk.free_bytes)}; stops below ${bytes(disk.min_bytes)}` : bytes(disk.free_bytes), tone: disk.min_bytes > 0 && disk.free_bytes < 2 * disk.min_bytes ? 'bad' : '' }],
    ['disk used', used && bytes(used.total_bytes)],
    ['database', used && bytes(used.database_bytes)],
    ['snapshots', `${snapshots.length === 0 ? 'none' : `of batch ${snapshots.join(', ')}`}${used ? `; ${bytes(used.snapshots_bytes)} beside the database` : ''}`],
    ['journal', used && bytes(used.journal_bytes)],
  ]);
}
