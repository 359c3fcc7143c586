// Numbers and names as people read them. The units are those of `slipstream status`.

export const count = (value) => scaled(value, 1000, ['', '\u00a0k', '\u00a0M', '\u00a0G']);
export const bytes = (value) => scaled(value, 1024, ['\u00a0B', '\u00a0KiB', '\u00a0MiB', '\u00a0GiB', '\u00a0TiB']);
export const perSecond = (value) => `${bytes(value)}/s`;

function scaled(value, step, units) {
  const whole = Number.isInteger(value) && value < step;
  let unit = 0;
  // A value that would round to a whole step is shown in the next unit.
  while (value >= step - 0.5 && unit + 1 < units.length) {
    value /= step;
    unit += 1;
  }
  return value.toFixed(whole || value >= 99.95 ? 0 : 1) + units[unit];
}

export function duration(seconds) {
  const whole = Math.round(seconds);
  const two = (value) => String(Math.floor(value)).padStart(2, '0');
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${two((whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} days ${two((whole / 3600) % 24)} h`;
}

// The age of something that a clock stamped, which may be another one than the node's.
export const age = (seconds) => (seconds < -0.5 ? `${duration(-seconds)} ahead of the node's clock` : duration(Math.max(0, seconds)));
export const ms = (value) => duration(value / 1000);
/** A part of a whole; nothing of nothing is no share. */
export const share = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(0)} %` : 'none yet');
/** A name of the status as words: `nothing_new`. */
export const words = (name) => String(name).replaceAll('_', ' ');
/** A key or a digest, short enough for a line and long enough to be told from others. */
export const short = (key) => (key.length > 20 ? `${key.slice(0, 10)}\u2026${key.slice(-6)}` : key);
/** One thing, or several of them. */
export const several = (number, one, more = `${one}s`) => `${number} ${number === 1 ? one : more}`;

export function left(eta) {
  return eta.state === 'left' ? `about ${duration(eta.seconds)}` : words(eta.state);
}

/** Rounded down: what is not done is never 100 %. */
export const percent = (value) => `${(Math.floor(value * 10) / 10).toFixed(1)} %`;
