// Draws the page. Peers choose names and reasons, so that everything becomes text: nothing here reads markup.

export const $ = (id) => document.getElementById(id);

/** Sets what an element shows: a text, a list of lines, or a line with a tone, a title or a bar. Draws only what is new. */
export function show(element, value) {
  const key = JSON.stringify(value);
  if (element.shown === key) return;
  element.shown = key;
  const lines = Array.isArray(value) ? value.filter((line) => line !== null) : [value];
  element.replaceChildren(...lines.map(line));
}

function line(value) {
  const span = document.createElement('span');
  const { text, tone, title, bar } = typeof value === 'object' && value !== null ? value : { text: value };
  span.textContent = text;
  if (tone) span.className = tone;
  if (title) span.title = title;
  if (bar !== undefined) {
    const progress = document.createElement('progress');
    progress.max = 100;
    progress.value = Math.min(bar, 100);
    progress.setAttribute('aria-hidden', 'true');
    span.append(progress);
  }
  return span;
}

/** Keeps one child for each item, in their order, and lets `draw` fill it. Children stay while their item does. */
export function each(parent, items, key, make, draw) {
  const old = new Map([...parent.children].map((child) => [child.key, child]));
  const children = items.map((item) => {
    const child = old.get(key(item)) ?? make(item);
    child.key = key(item);
    draw(child, item);
    return child;
  });
  const same = children.length === parent.children.length && children.every((child, at) => child === parent.children[at]);
  if (!same) parent.replaceChildren(...children);
}

/** Fills a table: a row for each item, a cell for each of `cells`. */
export function table(id, items, key, cells) {
  const element = $(id);
  const labels = [...element.tHead.rows[0].cells].map((cell) => cell.textContent);
  element.classList.toggle('none', items.length === 0);
  element.classList.toggle('some', items.length > 0);
  const make = () => {
    const row = document.createElement('tr');
    row.setAttribute('role', 'row');
    for (const label of labels) {
      const cell = row.insertCell();
      cell.setAttribute('role', 'cell');
      cell.dataset.label = label;
    }
    return row;
  };
  each(element.tBodies[0], items, key, make, (row, item) =>
    cells(item).forEach((value, at) => show(row.cells[at], value)));
}

/** Fills a list of names and values; what has no value is left out. */
export function facts(id, pairs) {
  const parts = pairs
    .filter(([, value]) => value !== null && value !== undefined)
    .flatMap(([name, value]) => [['dt', name, name], ['dd', name, value]]);
  each($(id), parts, ([tag, name]) => `${tag} ${name}`, ([tag]) => document.createElement(tag), (child, [, , value]) => show(child, value));
}
