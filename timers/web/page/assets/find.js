// The dialog of one timer, or of a list of a topic's timers; and the changes,
// which need the token.
import { $, make, moment, shown, span, count } from './dom.js';
import { decode, hex, pretty, start, text } from './payload.js';

const stored = 'lapse-token';
let writable = false;
export const redisNow = { offset: 0 };
export const now = () => Date.now() + redisNow.offset;

export const token = () => sessionStorage.getItem(stored) || '';

// ask calls the API and gives its JSON, or throws an Error with its message.
async function ask(path, body) {
  const headers = {};
  if (token()) headers.Authorization = `Bearer ${token()}`;
  if (body) headers['Content-Type'] = 'application/json';
  let r;
  try {
    r = await fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), cache: 'no-store' });
  } catch {
    throw new Error('Lapse does not answer.');
  }
  const v = await r.json().catch(() => ({ message: `Lapse answered ${r.status}.` }));
  if (r.ok) return v;
  if (r.status === 401 && token()) {
    sessionStorage.removeItem(stored);
    lock();
  }
  throw Object.assign(new Error(v.message || `Lapse answered ${r.status}.`), { word: v.error });
}

export function say(message) {
  $('said').textContent = message;
}

function lock() {
  const b = $('lock');
  b.hidden = !writable;
  b.textContent = token() ? 'Lock changes' : 'Unlock changes';
}

export function about(v) {
  writable = v.writable;
  lock();
}

function fault(e) {
  const p = $('timer-error');
  p.hidden = !e;
  p.textContent = e ? e.message : '';
}

let current = null; // the timer in the dialog, for what comes back late

// open shows the timer.
export async function open(topic, id) {
  const mine = (current = { topic, id });
  const dialog = $('timer');
  $('timer-title').replaceChildren(shown(id));
  fault(null);
  $('timer-body').replaceChildren(make('p', { className: 'quiet' }, 'Reading …'));
  if (!dialog.open) dialog.showModal();
  $('timer-title').focus();
  try {
    const t = await ask(`/api/timer?${new URLSearchParams({ topic, id })}`);
    if (current === mine) show(t);
  } catch (e) {
    if (current !== mine) return;
    $('timer-body').replaceChildren(make('p', { className: 'quiet' }, e.word === 'not_found' ? 'It was never set, or it is over: delivered or cancelled. What fired is in the stream.' : ''));
    fault(e);
  }
}

function fact(list, name, ...value) {
  list.append(make('dt', {}, name), make('dd', {}, ...value));
}

function show(t) {
  const facts = make('dl', { className: 'facts' });
  fact(facts, 'Topic', shown(t.topic));
  fact(facts, 'State', make('span', { className: `tag tag-${t.state}` }, t.state), t.reason ? make('span', {}, ': ', shown(t.reason)) : null);
  const ahead = new Date(t.due) - now();
  fact(facts, 'Due', `${moment(t.due)}, ${ahead >= 0 ? `in ${span(ahead)}` : `${span(-ahead)} ago`}`);
  if (t.schedule) fact(facts, 'Asked for', shown(t.schedule));
  fact(facts, 'Attempts', `${t.attempts}${t.fired ? `, the last at ${moment(t.fired)}` : ''}`);
  fact(facts, 'Revision', String(t.rev));
  const body = $('timer-body');
  body.replaceChildren(facts);
  if (t.withheld) {
    body.append(make('p', { className: 'row quiet' }, `Payload (${count(t.size)} bytes) and headers need the token. `, button('Unlock', () => unlock(() => open(t.topic, t.id)))));
  } else {
    if (t.headers) {
      const table = make('table', { className: 'heads' }, make('caption', { className: 'vh' }, 'Headers'));
      const b = table.createTBody();
      for (const h of t.headers) b.append(make('tr', {}, make('th', { '@scope': 'row' }, shown(h.name)), make('td', {}, shown(h.value))));
      body.append(make('h3', {}, 'Headers'), table);
    }
    body.append(...payload(t));
  }
  if (writable) body.append(changes(t));
}

function payload(t) {
  const bytes = decode(t.payload);
  const cut = bytes.length < t.size;
  const plain = text(bytes, cut);
  const views = {};
  if (plain !== null) {
    const json = cut ? null : pretty(plain);
    if (json !== null) views.JSON = json;
    views.Text = plain;
  }
  views.Hex = null; // made when it is looked at
  const pre = make('pre', { tabIndex: 0, '@aria-label': 'Payload' });
  const switches = make('span', { className: 'views', '@role': 'group', '@aria-label': 'Show the payload as' });
  const look = (name) => {
    views[name] ??= hex(bytes);
    pre.className = name === 'Hex' ? 'hex' : '';
    pre.replaceChildren(name === 'Hex' ? views[name] : shownText(start(views[name])));
    for (const b of switches.children) b.setAttribute('aria-pressed', b.textContent === name);
  };
  for (const name of Object.keys(views)) switches.append(button(name, () => look(name)));
  const size = `${count(t.size)} bytes${cut ? `, the first ${count(bytes.length)} shown` : ''}`;
  const title = make('h3', {}, 'Payload ', make('span', { className: 'quiet' }, size), t.size ? switches : null);
  if (!t.size) return [title];
  look(Object.keys(views)[0]);
  return [title, pre];
}

// shownText keeps line breaks and tabs, which shown would name.
function shownText(s) {
  const out = document.createDocumentFragment();
  for (const part of s.split(/(\r?\n|\t)/)) out.append(/^[\r\n\t]/.test(part) ? part : shown(part));
  return out;
}

function button(name, act, kind = '') {
  const b = make('button', { type: 'button', className: kind }, name);
  b.addEventListener('click', act);
  return b;
}

function changes(t) {
  const box = make('div', {}, make('h3', {}, 'Change'));
  if (!token()) {
    box.append(make('p', { className: 'row' }, button('Unlock changes', () => unlock(() => open(t.topic, t.id)))));
    return box;
  }
  const what = { topic: t.topic, id: t.id, rev: t.rev };
  const act = async (verb, body, done) => {
    fault(null);
    for (const b of box.querySelectorAll('button')) b.disabled = true;
    try {
      await ask(`/api/${verb}`, body);
      say(done);
      if (verb === 'cancel') {
        $('timer-body').replaceChildren(make('p', {}, done));
        $('timer-title').focus();
      } else {
        await open(t.topic, t.id);
      }
    } catch (e) {
      fault(e);
      for (const b of box.querySelectorAll('button')) b.disabled = false;
    }
  };
  const row = make('div', { className: 'row' });
  if (t.state === 'dead') row.append(button('Retry now', () => act('retry', what, 'It is due now, and its attempts are counted anew.'), 'main'));
  // Asked twice, where it is: a confirm() would hide what it is about.
  let sure = false;
  const cancel = button(t.state === 'dead' ? 'Drop it' : 'Cancel the timer', () => {
    if (sure) return act('cancel', what, t.state === 'dead' ? 'It was dropped.' : 'It was cancelled and will not be delivered.');
    sure = true;
    cancel.textContent = t.state === 'dead' ? 'Really drop it' : 'Really cancel it';
    setTimeout(() => { sure = false; cancel.textContent = t.state === 'dead' ? 'Drop it' : 'Cancel the timer'; }, 4000);
  }, 'danger');
  row.append(cancel);
  const form = make('form', { className: 'row' },
    make('label', { htmlFor: 'schedule' }, 'Set anew'),
    make('input', { id: 'schedule', placeholder: '@in 30m or @at 2030-01-02T09:00:00Z', required: true, spellcheck: false, autocomplete: 'off' }),
    make('button', { type: 'submit' }, 'Set'));
  form.addEventListener('submit', (e) => {
    e.preventDefault();
    act('set', { ...what, schedule: $('schedule').value.trim() }, 'It was set anew, with the same payload and headers.');
  });
  box.append(row, form);
  return box;
}

// list shows the timers of a topic and below, soonest first.
async function list(topic) {
  const mine = (current = { topic });
  $('timer-title').replaceChildren('Timers of ', shown(topic));
  fault(null);
  const table = make('table', { className: 'list' }, make('caption', { className: 'vh' }, 'Timers of the topic, soonest first'));
  table.createTHead().append(make('tr', {}, ...['id', 'topic', 'due', 'state'].map((h) => make('th', { '@scope': 'col' }, h))));
  const body = table.createTBody();
  const more = button('More', () => next());
  const note = make('p', { className: 'quiet' }, 'Reading …');
  $('timer-body').replaceChildren(table, note, more);
  if (!$('timer').open) $('timer').showModal();
  $('timer-title').focus();
  let cursor = '';
  async function next() {
    more.hidden = true;
    try {
      // A page may be empty before the last.
      for (let pages = 0; pages < 20; pages++) {
        const p = await ask(`/api/timers?${new URLSearchParams({ topic, cursor, limit: 50 })}`);
        if (current !== mine) return;
        for (const t of p.timers) {
          const b = button('', () => open(t.topic, t.id), 'id');
          b.append(shown(t.id));
          body.append(make('tr', {}, make('td', {}, b), make('td', {}, shown(t.topic)), make('td', { title: moment(t.due) }, `in ${span(new Date(t.due) - now())}`), make('td', { className: `tag tag-${t.state}` }, t.state)));
        }
        cursor = p.cursor;
        if (!cursor || p.timers.length) break;
      }
      note.textContent = body.rows.length ? '' : cursor ? 'None so far.' : 'This topic, and what is below it, has no timers.';
      more.hidden = !cursor;
    } catch (e) {
      fault(e);
    }
  }
  await next();
}

let afterwards = null;
function unlock(then) {
  afterwards = then;
  $('unlock-error').hidden = true;
  $('token').value = '';
  $('unlock').showModal();
  $('token').focus();
}

export function begin() {
  $('find').addEventListener('submit', (e) => {
    e.preventDefault();
    const topic = $('find-topic').value.trim(), id = $('find-id').value;
    if (id) open(topic, id);
    else list(topic);
  });
  document.addEventListener('keydown', (e) => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName) || document.querySelector('dialog[open]')) return;
    e.preventDefault();
    $('find-topic').focus();
  });
  // The event of a close comes late: it may be open again, for another timer.
  $('timer').addEventListener('close', () => { if (!$('timer').open) current = null; });
  $('lock').addEventListener('click', () => {
    if (!token()) return unlock(null);
    sessionStorage.removeItem(stored);
    lock();
    say('Changes are locked.');
  });
  $('unlock-form').addEventListener('submit', async (e) => {
    e.preventDefault();
    sessionStorage.setItem(stored, $('token').value);
    try {
      await ask('/api/unlock', {});
    } catch (err) {
      sessionStorage.removeItem(stored);
      $('unlock-error').hidden = false;
      $('unlock-error').textContent = err.message;
      return;
    }
    $('unlock').close();
    lock();
    say('Changes are unlocked.');
    if (afterwards) afterwards();
  });
  $('check').addEventListener('click', async () => {
    try {
      await ask('/api/check', {});
      say('The checks run again.');
    } catch (e) {
      say(e.message);
    }
  });
}
