// Building blocks of the page. Everything that comes from outside becomes a
// text node; nothing here or elsewhere makes HTML from strings.

export const $ = (id) => document.getElementById(id);

// make builds an element: properties by name, attributes with a leading @,
// children as nodes or text.
export function make(tag, props = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props)) {
    if (k[0] === '@') e.setAttribute(k.slice(1), v);
    else e[k] = v;
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

// put changes a text only where it differs, so that an idle page stays idle.
export function put(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// What would turn, hide or cut the text around it is shown by its number.
const tricks = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]/u;

// shown gives nodes for a text of unknown origin: isolated from the direction
// of what stands around it, with control characters as signs.
export function shown(text) {
  const out = make('bdi');
  let plain = '';
  for (const ch of text) {
    if (!tricks.test(ch)) {
      plain += ch;
      continue;
    }
    if (plain) out.append(plain);
    plain = '';
    out.append(make('span', { className: 'sign' }, `<U+${ch.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}>`));
  }
  if (plain) out.append(plain);
  return out;
}

// rows brings a table in line with items: rows of a key that stays are kept,
// with the focus in them. While a pointer or the focus is in the table it
// stands still, or nobody could ever hit a row.
export function rows(table, items, key, build, update) {
  if (held(table)) {
    table.later = () => rows(table, items, key, build, update);
    return;
  }
  const body = table.tBodies[0];
  const old = new Map();
  for (const tr of body.rows) old.set(tr.dataset.key, tr);
  let at = body.firstElementChild;
  for (const item of items) {
    const k = key(item);
    let tr = old.get(k);
    if (tr) {
      old.delete(k);
    } else {
      tr = build(item);
      tr.dataset.key = k;
    }
    if (update) update(tr, item);
    if (tr === at) at = at.nextElementSibling;
    else body.insertBefore(tr, at);
  }
  for (const tr of old.values()) tr.remove();
}

// hold makes the table stand still while somebody is at it.
export function hold(table) {
  const section = table.closest('section');
  const note = section.querySelector('.held');
  const box = table.closest('.scroll');
  const look = () => {
    const is = held(table);
    if (note) note.hidden = !is;
    if (!is && table.later) {
      const later = table.later;
      table.later = null;
      later();
    }
  };
  box.addEventListener('pointerenter', (e) => { if (e.pointerType === 'mouse') { table.pointed = true; look(); } });
  box.addEventListener('pointerleave', () => { table.pointed = false; look(); });
  box.addEventListener('focusin', look);
  box.addEventListener('focusout', () => setTimeout(look));
}

function held(table) {
  return table.pointed || (table.contains(document.activeElement) && !document.querySelector('dialog[open]'));
}

const thousands = new Intl.NumberFormat('en');
export const count = (n) => thousands.format(n);

export function milliseconds(v) {
  if (v === null || v === undefined) return '–';
  if (v < 10) return `${v.toFixed(1)} ms`;
  if (v < 1000) return `${Math.round(v)} ms`;
  if (v < 60_000) return `${(v / 1000).toFixed(1)} s`;
  return span(v);
}

// span is a length of time for people: two units at most.
export function span(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const two = (big, bigUnit, small, smallUnit) => (small ? `${big} ${bigUnit} ${small} ${smallUnit}` : `${big} ${bigUnit}`);
  const m = Math.floor(s / 60);
  if (m < 60) return two(m, 'm', Math.floor(s % 60), 's');
  const h = Math.floor(m / 60);
  if (h < 24) return two(h, 'h', m % 60, 'm');
  return two(Math.floor(h / 24), 'd', h % 24, 'h');
}

const pad = (n, w = 2) => String(n).padStart(w, '0');
export function clock(ms, fine = true) {
  const d = new Date(ms);
  return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}${fine ? `.${pad(d.getMilliseconds(), 3)}` : ''}`;
}

// moment is a full time, here and as Lapse wrote it.
export function moment(text) {
  const d = new Date(text);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${clock(d)} (${text})`;
}
