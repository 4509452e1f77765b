'use strict';
// The page of flexd's status socket: it shows the documents of docs/status.md and changes
// nothing. Names, paths and messages come from pods and from tools: they become text nodes
// without control characters, never markup. A field that an older flexd does not have is left
// out.

const poll = 2000;          // ms between two answers
const hidden = 30_000;      // the same while the page is hidden
const longestPause = 15_000; // after an answer that did not come
const timeout = 8000;       // flexd itself answers within 5 s that it is busy

const narrow = matchMedia('(max-width: 899.9px)'); // one volume is shown instead of the list
const $ = id => document.getElementById(id);

// Text.

const most = 4000; // characters of one text
const clean = s => (s = String(s), s.length > most ? `${s.slice(0, most)}…` : s).replace(/[^\S\n]/g, ' ').replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}]/gu, c => c === '\n' ? c : '?');

// el makes an element: "tag.class", properties and attributes, children. Strings are text.
function el(kind, props, ...children) {
  const [tag, ...classes] = kind.split('.');
  const e = document.createElement(tag || 'span');
  if (classes.length) e.className = classes.join(' ');
  for (const [name, value] of Object.entries(props ?? {})) if (value != null) e.setAttribute(name, clean(value));
  for (const c of children.flat(9)) if (c != null && c !== false && c !== '') e.append(c instanceof Node ? c : clean(c));
  return e;
}

function size(bytes) {
  let v = bytes, unit = -1;
  if (v < 1024) return `${v} B`;
  for (; v >= 1023.5 && unit < 5; unit++) v /= 1024;
  return `${v.toFixed(v < 9.995 ? 2 : v < 99.95 ? 1 : 0)} ${'KMGTPE'[unit]}iB`;
}

const number = n => n.toLocaleString('en-US');
const many = (n, one) => `${number(n)} ${one}${n === 1 ? '' : 's'}`;

function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s}s`;
  if (s < 600) return `${Math.floor(s / 60)}m${String(s % 60).padStart(2, '0')}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor(s / 60) % 60).padStart(2, '0')}m`;
  return `${Math.floor(s / 86400)}d${Math.floor(s / 3600) % 24}h`;
}

const took = s => typeof s !== 'number' ? s : s < 0.9995 ? `${Math.round(s * 1000)}ms` : s < 59.95 ? `${s.toFixed(1)}s` : span(s * 1000);

// Times are shown in the node's zone, as its logs have them.
const clock = t => String(t).slice(11, 19);
const day = t => String(t).slice(0, 10);

// age is a time that the page keeps current: "for 12s", "12s ago", "in 12s".
function age(t, form) {
  const e = el('time.age', { datetime: t, title: t, 'data-form': form });
  tick(e);
  return e;
}

function tick(e) {
  const passed = now() - Date.parse(e.dateTime), form = e.dataset.form;
  const text = form === 'ago' ? (passed < 1000 ? 'now' : `${span(passed)} ago`) :
    form === 'in' ? (passed > -1000 ? 'now' : `in ${span(-passed)}`) : form === 'for' ? `for ${span(passed)}` : span(passed);
  if (e.textContent !== text) e.textContent = text;
}

// States.

const tones = {
  stuck: 'bad', failed: 'bad', missing: 'bad', faulty: 'bad', refused: 'warn', uncertain: 'warn', orphaned: 'warn', full: 'warn',
  waiting: 'busy', working: 'busy', mounted: 'ok', active: 'quiet', idle: 'quiet',
  ok: 'ok', unusable: 'bad', unknown: 'warn', // of groups
};
const urgency = Object.keys(tones);
const tone = state => Object.hasOwn(tones, state) ? tones[state] : 'warn';
const rank = state => (urgency.indexOf(state) + urgency.length) % urgency.length;

// What is known.

let list = null;       // the last List
let skew = 0;          // the node's clock minus ours, ms
let answered = 0;      // when it answered last, our clock
let failing = null;    // since when and why flexd does not answer
let version = '';
let opened = '';       // the path of the volume that is shown
let current = '';      // that of the row that has the focus, or had it last
let story = null;      // the last VolumeDetail of the opened one
let events = null;     // its events
let eventsAt = 0, eventsOf = '', keepsEvents = true; // an older flexd keeps none
const wanted = new Set(); // states
let attention = 0, allTrouble = false;

// The clock stands still while flexd does not answer: what was true then need not be so now.
const now = () => (failing ? answered : Date.now()) + skew;

// A volume's path is its name, or its uuid if two volumes have the name.
const named = v => `${encodeURIComponent(v.vg)}/${encodeURIComponent(v.lv)}`;
const title = path => { try { return path.split('/').map(decodeURIComponent).join('/'); } catch { return path; } };

// Asking.

class NoAnswer extends Error {}

// get returns what flexd answers with one of the codes.
async function get(path, codes) {
  const r = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(timeout) })
    .catch(e => { throw new NoAnswer(e.name === 'TimeoutError' ? `no answer within ${timeout / 1000} s` : ''); });
  const at = Date.parse(r.headers.get('Date'));
  if (at) {
    const d = at + 500 - Date.now(); // the header has whole seconds
    if (Math.abs(d - skew) > 1000) skew = d;
  }
  const doc = await r.json().catch(() => { throw new NoAnswer('the answer is no JSON, or has been cut'); });
  if (!codes.includes(r.status)) throw new NoAnswer(doc?.error ?? `HTTP status ${r.status}`);
  return { code: r.status, doc };
}

let timer = 0, pause = 0, asking = false, again = false;

// ask asks for everything that is shown, and sets the time of the next question: at once if
// something else was chosen meanwhile, and never so soon that flexd is busy with us alone.
async function ask() {
  clearTimeout(timer);
  if (asking) { again = true; return; }
  asking = true;
  again = false;
  const began = Date.now();
  let wait;
  try {
    const { doc } = await get('/v1/volumes', [200]);
    if (version && doc.version !== version) { location.reload(); return; } // another flexd has another page
    ({ version } = list = doc);
    answered = Date.now();
    failing = null;
    pause = 0;
    render();
    if (opened) await askVolume();
    wait = Math.max(document.hidden ? hidden : poll, 10 * (Date.now() - began));
  } catch (e) {
    failing ??= { since: answered || Date.now() };
    failing.why = e.message;
    failing.ours = !(e instanceof NoAnswer);
    if (failing.ours) reportError(e);
    wait = pause = Math.min(pause * 2 || 1000, longestPause);
  }
  asking = false;
  renderLive(wait);
  timer = setTimeout(ask, again ? 0 : wait);
}

async function askVolume() {
  const path = opened, a = await get('/v1/volumes/' + path, [200, 404]);
  if (path !== opened) return;
  if (a.code === 200) story = a.doc;
  renderStory(a.code === 404 ? a.doc?.error ?? 'flexd knows no such volume' : '');
  if (a.code !== 200) return;
  const state = JSON.stringify([path, story.history?.[0], story.state, story.step, story.error, story.claims?.length]);
  if (state === eventsOf && Date.now() - eventsAt < 10_000) return;
  eventsOf = state;
  eventsAt = Date.now();
  if (!keepsEvents) return;
  const b = await get(`/v1/events?limit=100&target=${encodeURIComponent(path.startsWith('-/') ? story.uuid : `${story.vg}/${story.lv}`)}`, [200, 404, 503]);
  if (path !== opened) return;
  keepsEvents = b.code !== 404;
  if (b.code === 200) events = b.doc;
  else eventsOf = ''; // flexd is busy
  renderHistory();
}

// Showing.

// show replaces what an element contains if the data it is made from has changed: else a
// selection of text and the focus would be lost with every answer.
function show(e, data, make) {
  const key = JSON.stringify(data) ?? '';
  if (e.shown === key) return;
  e.shown = key;
  e.replaceChildren(...[make(data)].flat(9).filter(Boolean));
}

// showEach does the same for each element of a list.
function showEach(e, items, make) {
  const keys = items.map(i => JSON.stringify(i)), all = new Set(keys), made = new Map();
  for (const c of [...e.children]) if (all.has(c.shown) && !made.has(c.shown)) made.set(c.shown, c); else c.remove();
  let at = e.firstChild;
  items.forEach((item, i) => {
    let c = made.get(keys[i]);
    made.delete(keys[i]); // a second one is made anew
    if (c && c === at) { at = at.nextSibling; return; }
    c ??= make(item);
    c.shown = keys[i];
    e.insertBefore(c, at);
  });
}

const state = (name, ...more) => el(`.state.${tone(name)}`, null, name, more.length ? el('em', null, ...more) : null);
const stateOf = v => v.step ? state(v.state, v.step, v.stepSince ? [' ', age(v.stepSince, '')] : '') : state(v.state);
const link = (vg, lv) => el('a.text', { href: `#${named({ vg, lv })}` }, `${vg}/${lv}`);
const podName = p => (p.name ? `${p.namespace}/${p.name}` : `pod ${p.uid}`) + (p.readOnly ? ' (ro)' : '');
const none = () => el('.none', null, '–');
const isTrouble = v => ['bad', 'warn'].includes(tone(v.state));

function render() {
  $('node').textContent = clean(list.node);
  $('version').textContent = list.version ? clean(list.version) : '';
  const trouble = troubles(list);
  attention = trouble.length;
  document.title = `${trouble.length ? `(${trouble.length}) ` : ''}${clean(list.node)} · flexd`;
  $('attention').hidden = !trouble.length;
  $('attention-count').textContent = trouble.length ? number(trouble.length) : '';
  renderTrouble(trouble);
  const notes = (list.disagreements ?? []).filter(d => d.informational);
  $('notes').hidden = !notes.length;
  $('notes-count').textContent = number(notes.length);
  showEach($('notes-list'), notes.slice(0, 200).map(d => finding(d, 'quiet')), card);
  const groups = groupsOf(list);
  $('groups').hidden = !groups.length;
  showEach($('group-list'), groups, renderGroup);
  renderRows();
}

const finding = (d, t) => ({ tone: t, kind: d.class, vg: d.vg, lv: d.lv, dir: d.vg ? '' : d.dir, text: d.message, remedy: d.hint, since: d.since });
const refusal = r => ({
  tone: 'warn', kind: `${r.verb} refused`, vg: r.vg, lv: r.lv, dir: r.lv ? '' : r.dir, pod: r.pod, text: r.message,
  remedy: r.hint, last: r.last, count: r.count,
});
const failure = v => ({
  tone: tone(v.state), kind: v.state, vg: v.vg, lv: v.lv, since: v.error ? null : v.stepSince, last: v.error?.at, next: v.error?.next,
  text: v.error ? `${v.error.step}: ${v.error.message}` : v.state === 'stuck' ? `${v.step ?? 'a process'} does not end` : filling(v)?.text,
  remedy: v.error?.hint ?? (v.state === 'full' ? 'remove files in it, or give the volume a larger size' : ''),
});

// troubles lists what an operator should look at, the most urgent first.
function troubles(l) {
  const found = (l.disagreements ?? []).filter(d => !d.informational), refused = l.refusedCalls ?? [];
  const volumes = new Map(l.volumes.map(v => [named(v), v])), differ = new Set(found.map(named)), shown = new Set();
  const causeOf = r => { // the volume that is in its state because of the call
    const v = volumes.get(named(r));
    return v?.error && (v.error.callID === r.callID || String(v.error.message).endsWith(r.message)) ? v : null;
  };
  for (const r of refused) if (causeOf(r)) shown.add(causeOf(r));
  const all = [
    ...(l.problems ?? []).map(text => ({ tone: 'bad', kind: 'problem', text })),
    ...(l.groups ?? []).filter(g => g.state !== 'ok').map(g => ({ tone: tone(g.state), kind: `group ${g.state}`, dir: g.name, text: g.error ?? '' })),
    // A finding or a refusal says more than the state that follows from it.
    ...l.volumes.filter(v => isTrouble(v) && (v.error || !differ.has(named(v))) && !shown.has(v)).map(failure),
    ...found.map(d => finding(d, tone(volumes.get(named(d))?.state) === 'bad' ? 'bad' : 'warn')),
    ...refused.map(r => ({ ...refusal(r), tone: tone((causeOf(r) ?? r).state), next: causeOf(r)?.error.next })),
  ];
  return all.sort((a, b) => (a.tone !== 'bad') - (b.tone !== 'bad'));
}

function card(t) {
  const about = t.vg && t.lv ? link(t.vg, t.lv) : (t.dir || t.vg) && el('.text', null, t.dir || t.vg);
  return el(`li.card.${t.tone}`, null,
    el('.title', null, el('.kind', null, t.kind), about, t.pod && el('.text', null, podName(t.pod)),
      t.count > 1 && el('.muted', null, `${number(t.count)} times`),
      el('.when', null, t.next && ['again ', age(t.next, 'in'), ' · '], t.since ? ['since ', age(t.since, '')] : t.last && age(t.last, 'ago'))),
    t.text && el('.text', null, t.text),
    t.remedy && el('.remedy.text', null, el('b', null, 'Remedy: '), t.remedy));
}

function renderTrouble(all) {
  const few = 12, some = !allTrouble && all.length > few + 2;
  showEach($('attention-list'), some ? all.slice(0, few) : all, card);
  $('attention-more').hidden = !some;
  $('attention-more').textContent = `Show all ${number(all.length)}`;
}

// groupsOf returns the groups. An older flexd reports the thin pools of claimed volumes only.
function groupsOf(l) {
  const groups = (l.groups ?? []).map(({ observedAt, ...g }) => ({ ...g, known: observedAt != null, locks: g.locks && { ...g.locks, observedAt: 0, renewed: 0 } }));
  for (const p of l.groups ? [] : l.pools ?? []) {
    let g = groups.find(g => g.name === p.vg);
    if (!g) groups.push(g = { name: p.vg, thinPools: [] });
    g.thinPools.push({
      name: p.name, size: p.dataTotal, used: p.dataUsed, metadataSize: p.metadataTotal, metadataUsed: p.metadataUsed,
      state: p.problem ? 'full' : p.active ? 'ok' : 'inactive', warning: p.warning, problem: p.problem,
    });
  }
  const count = Object.create(null);
  for (const v of l.volumes) if (v.uuid) count[v.vg] = (count[v.vg] ?? 0) + 1;
  return groups.map(g => ({ ...g, volumes: count[g.name] ?? 0 }));
}

const percent = (part, whole) => `${(100 * part / whole).toFixed(0)} %`;

// bar shows how much of a whole is used.
function bar(kind, used, whole, label) {
  const i = el('i');
  i.style.width = `${Math.max(0, Math.min(100, 100 * used / whole))}%`;
  return el(`.bar.${kind}`, { role: 'img', 'aria-label': label, title: label }, i);
}

const spaceBar = (kind, used, whole, what) => bar(kind, used, whole, `${what}: ${size(used)} of ${size(whole)} used`);

// filling is how full a filesystem is, as df computes it, or its inodes if these are scarcer.
// It returns a bar, the percentage, and all in words.
function filling(v) {
  if (!(v.filesystemSize > 0)) return null;
  const used = v.filesystemUsed ?? 0, whole = used + (v.filesystemFree ?? 0) || 1, space = used / whole, inodes = v.inodes > 0 ? (v.inodesUsed ?? 0) / v.inodes : 0;
  const share = Math.max(space, inodes), text = `${size(used)} of ${size(v.filesystemSize)} used, ${size(v.filesystemFree ?? 0)} free${v.inodes > 0 ? `; ${percent(inodes, 1)} of the inodes` : ''}`;
  return { bar: bar(`small.${share >= 0.95 ? 'bad' : share >= 0.85 ? 'warn' : 'ok'}`, share, 1, text), percent: percent(share, 1) + (inodes > space ? ' inodes' : ''), text };
}

function renderGroup(g) {
  const part = (kind, name, used, whole, note) => [
    el('.text', null, name), whole > 0 ? spaceBar(`small.${kind}`, used, whole, name) : el(),
    el('.muted', null, note ?? (whole > 0 ? `${percent(used, whole)} of ${size(whole)}` : '–'))];
  const wrong = (t, text) => text && el(`.wrong.text.${t}`, null, text);
  const disks = g.disks ?? [], pools = g.thinPools ?? [];
  return el('.group', null,
    el('.title', null, el('b.text', null, g.name), el('.muted', null, [g.provider, many(g.volumes, 'volume')].filter(Boolean).join(' · ')), g.state && state(g.state)),
    g.known && g.size > 0 && [
      spaceBar(tone(g.state), g.size - g.free, g.size, g.name),
      el('.figures', null, el('', null, el('b', null, size(g.size - g.free)), ' used'), el('', null, el('b', null, size(g.free)), ` free of ${size(g.size)}`),
        g.largestVolume != null && el('', null, 'a new volume gets at most ', el('b', null, size(g.largestVolume))))],
    wrong(tone(g.state), g.error),
    g.locks && el('.figures', null, el('', null, 'locks ', el('b', null, g.locks.state), [g.locks.type, g.locks.hostID && `host id ${g.locks.hostID}`, g.locks.watchdog === 'none' && 'no watchdog'].filter(Boolean).map(t => ` · ${t}`).join(''))),
    g.locks && g.locks.reason !== g.error && wrong(g.locks.state === 'starting' ? 'warn' : 'bad', g.locks.reason),
    disks.length + pools.length > 0 && el('.parts', null,
      disks.map(d => [disks.length > 1 || d.problem ? part(d.problem ? 'warn' : 'ok', d.device || 'a missing disk', d.size - d.free, d.size, `${size(d.free)} free`) :
        [el('.wide.muted.text', null, d.device)], wrong('warn', d.problem)]),
      pools.map(p => [
        part(p.problem ? 'bad' : p.warning ? 'warn' : 'ok', `pool ${p.name}`, p.used, p.size, p.state === 'inactive' ? 'not active' : null),
        p.metadataSize > 0 && p.metadataUsed / p.metadataSize >= 0.5 && part(p.problem ? 'bad' : p.warning ? 'warn' : 'ok', '– metadata', p.metadataUsed, p.metadataSize),
        wrong('bad', p.problem), wrong('warn', p.warning)])));
}

// The volumes.

function renderRows() {
  const seen = new Set(), twice = new Set(), found = new Map(), focused = document.activeElement.dataset.path;
  for (const v of list.volumes) (seen.has(named(v)) ? twice : seen).add(named(v));
  for (const d of list.disagreements ?? []) if (!d.informational && !found.has(named(d))) found.set(named(d), d);
  showEach($('rows'), list.volumes.map(({ filesystemObservedAt, ...v }) => [v, twice.has(named(v)) && v.uuid ? `-/${encodeURIComponent(v.uuid)}` : named(v), found.get(named(v))?.message]), makeRow);
  if (focused && document.activeElement.dataset.path !== focused) row(focused)?.focus();
  renderStates();
  filter();
}

const row = path => [...$('rows').children].find(e => e.dataset.path === path);

function makeRow([v, path, finding]) {
  const pods = v.pods ?? [], full = filling(v), why = v.waiting ? v.waiting.reason : v.error ? `${v.error.step}: ${v.error.message}` : finding;
  const e = el('.row', { role: 'row', tabindex: -1, 'data-path': path },
    el('', { role: 'gridcell' }, stateOf(v)),
    el('.name', { role: 'gridcell', title: `${v.vg}/${v.lv}` }, el('', null, `${v.vg}/`), v.lv),
    el('', { role: 'gridcell' }, v.size ? size(v.size) : none()),
    el('.muted', { role: 'gridcell', title: v.device }, v.device ?? none()),
    el('', { role: 'gridcell' }, full ? el('.fs', null, v.filesystem, full.bar, el('.muted', null, full.percent)) : v.filesystem ?? none()),
    el('', { role: 'gridcell', title: pods.map(podName).join('\n') }, pods.length ? pods.slice(0, 20).map(podName).join(', ') : none()),
    why && el(`.why.${isTrouble(v) ? tone(v.state) : 'warn'}`, { role: 'gridcell', title: why }, why.replace(/\s*\n\s*/g, ' ')));
  e.state = v.state;
  e.words = [`${v.vg}/${v.lv}`, v.uuid, v.state, v.device, v.filesystem, v.step, why,
    ...pods.flatMap(p => [`${p.namespace ?? ''}/${p.name ?? ''}`, p.uid, p.dir])].join('\n').toLowerCase();
  return e;
}

function renderStates() {
  const count = Object.create(null);
  for (const v of list.volumes) count[v.state] = (count[v.state] ?? 0) + 1;
  for (const s of wanted) count[s] ??= 0;
  const all = Object.keys(count).sort((a, b) => rank(a) - rank(b));
  show($('states'), [all.map(s => [s, count[s]]), [...wanted]], ([each]) => each.map(([s, n]) => {
    const b = el('button', { type: 'button', 'aria-pressed': wanted.has(s), 'data-state': s }, state(s), el('.muted', null, number(n)));
    b.addEventListener('click', () => {
      if (!wanted.delete(s)) wanted.add(s);
      renderStates();
      filter();
      [...$('states').children].find(o => o.dataset.state === s)?.focus();
    });
    return b;
  }));
}

const visible = () => [...$('rows').children].filter(e => !e.hidden);

// filter hides the rows that are not searched for: each word must occur. One row can be
// reached with Tab.
function filter() {
  const words = $('search').value.toLowerCase().split(/\s+/).filter(Boolean), all = [...$('rows').children];
  for (const e of all) {
    e.hidden = wanted.size > 0 && !wanted.has(e.state) || !words.every(w => e.words.includes(w));
    e.ariaSelected = String(e.dataset.path === opened);
    e.tabIndex = -1;
  }
  const shown = visible(), first = shown.find(e => e.dataset.path === current) ?? shown[0];
  if (first) first.tabIndex = 0;
  $('volume-count').textContent = shown.length === all.length ? number(all.length) : `${number(shown.length)} of ${number(all.length)}`;
  $('none').textContent = all.length ? 'No volume fits. Esc shows all.' : 'No pod has asked for a volume on this node.';
  $('none').hidden = shown.length > 0;
  $('grid').hidden = !shown.length;
}

// select moves the focus to a row, and shows its volume if one is shown.
function select(e) {
  if (!e) return;
  current = e.dataset.path;
  if (opened && opened !== current) {
    history.replaceState(null, '', `#${current}`);
    openHash();
  } else filter();
  e.focus();
  e.scrollIntoView({ block: 'nearest' });
}

function move(by) {
  const all = visible(), at = all.findIndex(e => e.dataset.path === current);
  select(all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))]);
}

// One volume.

function openHash() {
  const path = location.hash.slice(1).split('/').slice(0, 2).map(p => encodeURIComponent(title(p))).join('/');
  if (path === opened) return;
  opened = path.includes('/') ? path : '';
  story = events = null;
  eventsOf = '';
  document.body.classList.toggle('open', opened !== '');
  $('detail').hidden = !opened;
  if (opened) current = opened;
  filter();
  if (!opened) return;
  $('detail').scrollTop = 0;
  if (narrow.matches) scrollTo(0, 0);
  const v = row(opened)?.shown;
  if (v) story = { ...JSON.parse(v)[0], partial: true }; // until the rest arrives
  renderStory('');
  clearTimeout(timer);
  timer = setTimeout(ask, 100); // after the last of several keys
}

function close() {
  history.pushState(null, '', location.pathname);
  openHash();
  select(row(current) ?? visible()[0]);
}

function renderStory(gone) {
  const v = story ?? { vg: '', lv: '', pods: [] };
  $('detail-name').textContent = clean(story ? `${v.vg}/${v.lv}` : title(opened));
  $('detail').classList.toggle('stale', gone !== '');
  $('detail-gone').hidden = !gone;
  $('detail-gone').textContent = clean(gone) + (gone && story ? ' Below is what was known last.' : '');
  for (const s of $('detail').querySelectorAll('section')) s.hidden = !story || story.partial || story.state === 'refused' && !s.contains($('history'));
  show($('detail-head'), [v.state, v.step, v.stepSince, v.size, v.uuid], () => story && [
    stateOf(v), v.size > 0 && el('', null, size(v.size)), v.uuid && el('.mono', null, v.uuid)]);
  show($('detail-trouble'), [isTrouble(v) || v.error ? v.error : null, v.stuck, v.disagreements, v.refusedCalls, v.state, v.waiting], ([error, stuck, found, refused, , waiting]) => [
    waiting && card({ tone: 'busy', kind: `${waiting.step} waits`, since: waiting.since, text: waiting.reason }),
    stuck && card({ tone: 'bad', kind: 'stuck', since: stuck.since, remedy: stuck.hint,
      text: `${stuck.step}, pid ${stuck.pid}, does not end${stuck.wchan ? `; it waits in the kernel, in ${stuck.wchan}` : ''}` }),
    error && v.state !== 'refused' && card({ ...failure(v), kind: isTrouble(v) ? v.state : 'last error' }),
    (found ?? []).map(d => card({ ...finding(d, d.informational ? 'quiet' : 'warn'), vg: '', lv: '', dir: d.dir })),
    (refused ?? []).map(r => card({ ...refusal(r), vg: '', lv: '' }))]);
  if (!story || story.partial) return;
  const g = list?.groups?.find(g => g.name === v.vg);
  const group = g && { state: g.state, disks: (g.disks ?? []).map(d => d.device || 'a missing disk').join(', '), space: g.size > 0 ? `${size(g.free)} free of ${size(g.size)}` : '' };
  show($('chain'), [v.vg, v.lv, v.size, v.device, v.filesystem, v.filesystemSize, v.filesystemUsed, v.filesystemFree, v.inodes, v.inodesUsed, v.state, v.step, v.claims, v.pods, v.error?.step, group], () => chain(v, group));
  show($('detail-now'), [v.calls, v.plan, v.refused, v.lease], ([calls, plan, refused, lease]) => {
    const items = [
      ...(calls ?? []).map(c => el('li.busy.text', null, `${c.verb} waits `, age(c.since, 'for'), ', is answered at the latest ', age(c.deadline, 'in'), el('.muted', null, ` (call ${c.id}${c.dir ? `, ${c.dir}` : ''})`))),
      ...(plan ?? []).map(p => el('li.busy.text', null, 'next: ', p)),
      ...(refused ?? []).map(r => el('li.warn.text', null, 'would refuse: ', r)),
      lease && el('li.quiet.text', null, lease.live ? ['is kept active until ', clock(lease.until), ', ', age(lease.until, 'in')] : 'the lease has ended: flexd deactivates the volume'),
    ];
    return items.some(Boolean) ? el('ul', null, items) : el('.muted', null, 'Nothing to do.');
  });
  show($('facts'), v.observed, all => (all ?? []).map(f => [el('dt', null, f.name), el('dd.text', null, f.value)]));
  renderHistory();
}

// Which part of the chain a step works on.
const stage = step => /mkfs|fsck|format|check|probe|grow|resize/.test(step ?? '') ? 'fs' : /mount|stage|publish|bind/.test(step ?? '') ? 'mount' : 'lv';

function chain(v, group) {
  const at = stage(v.step ?? v.error?.step);
  const toneAt = (part, there) => v.step && at === part ? (v.state === 'stuck' ? 'bad' : 'busy') :
    isTrouble(v) && v.error && at === part ? tone(v.state) : there ? 'ok' : 'quiet';
  const li = (t, what, name, more, ...rest) => el(`li.${t}`, null, el('div.what', null, el('', null, what), el('', null, el('b.text', null, name), ' ', el('.muted', null, more))), rest);
  const full = filling(v), fsTone = v.state === 'faulty' ? 'bad' : v.state === 'full' ? 'warn' : toneAt('fs', v.filesystem);
  const claims = v.claims ?? [], others = (v.pods ?? []).filter(p => !claims.some(c => c.dir === p.dir));
  const mount = c => {
    const t = c.phase !== 'held' ? 'busy' : c.mounted ? (v.state === 'orphaned' ? 'warn' : 'ok') : 'bad';
    return li(t, 'mount', c.kind === 'staged' ? 'kubelet’s global directory' : c.kind === 'published' ? 'pod’s directory' : c.kind, [c.phase, ' ', age(c.since, 'for'), c.mounted ? '' : ', not mounted'],
      el('.more-text.text.mono', null, c.dir), c.note && el('.more-text.text.wrong', null, c.note),
      c.pod && el('div.pod', null, el('.muted', null, 'pod '), el('b.text', null, podName(c.pod)), el('.more-text.mono', null, c.pod.uid)));
  };
  return [
    li(group ? tone(group.state) : 'quiet', 'disk', group?.disks || `group ${v.vg}`, [group?.disks && `group ${v.vg}`, group?.space].filter(Boolean).join(', ')),
    li(v.state === 'uncertain' ? 'warn' : v.state === 'missing' && !v.device ? 'bad' : toneAt('lv', v.device), 'LV', v.lv,
      [v.size > 0 && size(v.size), v.device ?? 'not active'].filter(Boolean).join(', ')),
    li(fsTone, 'filesystem', v.filesystem ?? 'none known', full?.text ?? '', full?.bar),
    ...claims.map(mount),
    ...others.map(p => li('ok', 'mount', 'pod’s directory', 'without a claim', el('.more-text.text.mono', null, p.dir), el('div.pod', null, el('.muted', null, 'pod '), el('b.text', null, podName(p))))),
    claims.length + others.length === 0 && li(toneAt('mount', false), 'mounts', 'none', ''),
  ];
}

// historyOf returns what has happened, the newest first: the events, or from a flexd without
// them the operations since its start.
function historyOf() {
  if (!events) return (story.history ?? []).map(o => ({ at: o.started, what: o.step, text: o.error, took: o.seconds, calls: o.callIDs, tone: o.error ? 'bad' : 'ok' }));
  const tones = { stuck: 'bad', found: 'warn', lost: 'warn', flexd: 'quiet' };
  return [...events.events, ...(events.waiting ?? []).map(e => ({ ...e, waits: true }))].map(e => ({
    id: e.id, at: e.time, what: e.waits ? `${e.verb} waits` : e.verb || e.step || (e.type === 'found' || e.type === 'resolved' ? `${e.code} ${e.type}` : e.type), text: e.message, took: e.duration,
    calls: e.callIDs ?? (e.callID ? [e.callID] : []), count: e.count, first: e.first, pod: e.type === 'call' && e.pod && podName(e.pod), call: e.type === 'call',
    tone: e.waits ? 'busy' : tones[e.type] ?? (e.code && e.type !== 'resolved' && e.type !== 'ended' ? 'bad' : 'ok'),
  })).sort((a, b) => Date.parse(b.at) - Date.parse(a.at) || b.id - a.id);
}

function renderHistory() {
  if (!story || story.partial) return;
  show($('history'), [historyOf(), events?.more, events?.problems, !events && keepsEvents], ([all, more, problems, reading]) => {
    if (!all.length) return el('.muted', null, reading ? 'Reading the events…' : 'Nothing is known to have happened to it.');
    const oldest = all.at(-1), from = Date.parse(oldest.first ?? oldest.at), whole = Math.max(1, now() - from, Date.parse(all[0].at) - from);
    const zone = String(all[0].at).replace(/^.{19}(\.\d+)?/, '');
    const strip = el('.strip', { role: 'img', 'aria-label': `${many(all.length, 'event')} since ${oldest.at}` }, all.map(o => {
      const i = el(`i.${o.tone}`, { title: `${clock(o.at)} ${o.what}` }), length = typeof o.took === 'number' ? 100_000 * o.took / whole : 0;
      i.style.left = `min(${100 * (Date.parse(o.at) - from) / whole - (events ? length : 0)}%, 100% - 3px)`; // an event has the time of its end
      i.style.width = `${length}%`;
      return i;
    }));
    let last = day(all[0].at), calls = '';
    return [strip,
      el('.ends', null, el('', null, day(oldest.first ?? oldest.at), ' ', clock(oldest.first ?? oldest.at)), el('', null, `now (the node’s times, ${zone === 'Z' ? 'UTC' : `UTC${zone}`})`)),
      el('ol.line', null, all.map(o => [
        day(o.at) !== last && el('li.day', null, last = day(o.at)),
        el(`li.${o.tone}`, null, el('time', { datetime: o.at, title: o.at }, clock(o.at)),
          el('.text', null, el(o.call ? 'b' : '', null, o.what), o.pod && el('.muted', null, ` for ${o.pod}`), o.count > 1 && el('.muted', null, ` ${number(o.count)} times since ${clock(o.first)}`),
            o.text && el('.more-text.text.wrong', null, o.text), calls !== (calls = (o.calls ?? []).join(', ')) && calls && el('.more-text', null, `call ${calls}`)),
          el('.took', null, o.took ? took(o.took) : ''))])),
      more && el('.muted.text', null, `Older ones: flexd events ${story.vg}/${story.lv}`), (problems ?? []).map(p => el('.wrong.warn.text', null, p))];
  });
}

// Whether flexd answers.

function renderLive(wait) {
  document.body.classList.toggle('stale', failing !== null);
  const at = answered ? new Date(answered).toLocaleTimeString('en-GB') : '';
  $('live').textContent = failing ? 'not live' : attention ? `live, ${number(attention)} to look at` : 'live, all is well';
  $('live').title = at && `last answer ${at}, your clock`;
  $('gone').hidden = !failing;
  if (failing) {
    const text = failing.ours ? `This page cannot show what flexd answers: ${failing.why}\nRemedy: reload it; on the node: flexd status` : `flexd has not answered since ${new Date(failing.since).toLocaleTimeString('en-GB')}${failing.why ? ` (${failing.why})` : ''}; trying again every ${Math.round(wait / 1000)} s.` +
      (list ? ' The page shows the last answer.' : '') + `\nRemedy: see whether the ssh tunnel still runs; on the node: systemctl status flexd`;
    if ($('gone').textContent !== text) $('gone').textContent = text;
  }
}

// Keys.

document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.isComposing) return;
  const typing = e.target === $('search'), onRow = e.target.dataset?.path !== undefined, free = onRow || e.target === document.body;
  const done = () => { e.preventDefault(); };
  if (e.key === 'Escape') {
    if (opened) close();
    else if ($('search').value || wanted.size) { $('search').value = ''; wanted.clear(); renderStates(); filter(); }
    else if (typing) $('search').blur();
    return done();
  }
  if (typing) {
    if (e.key === 'ArrowDown' || e.key === 'Enter') { select(visible()[0]); done(); }
    return;
  }
  switch (e.key) {
    case '/': if (opened && narrow.matches) close(); $('search').focus(); $('search').select(); return done();
    case 'j': move(1); return done();
    case 'k': move(-1); return done();
    case 'ArrowDown': if (free) { move(1); done(); } return;
    case 'ArrowUp': if (free) { move(-1); done(); } return;
    case 'Home': if (onRow) { move(-Infinity); done(); } return;
    case 'End': if (onRow) { move(Infinity); done(); } return;
    case 'PageDown': if (onRow) { move(15); done(); } return;
    case 'PageUp': if (onRow) { move(-15); done(); } return;
    case 'Enter': if (onRow) { location.hash = e.target.dataset.path; $('detail').focus(); done(); } return;
  }
});

$('rows').addEventListener('click', e => {
  const path = e.target.closest('.row')?.dataset.path;
  if (!path || !getSelection().isCollapsed) return; // text is being selected
  current = path;
  location.hash = path;
});
$('search').addEventListener('input', filter);
$('attention-more').addEventListener('click', () => { allTrouble = true; render(); });
$('close').addEventListener('click', close);
addEventListener('hashchange', openHash);
addEventListener('popstate', openHash);
addEventListener('online', ask);
document.addEventListener('visibilitychange', () => { if (!document.hidden) ask(); });
setInterval(() => { if (!document.hidden && !failing) document.querySelectorAll('.age').forEach(tick); }, 1000);
openHash();
ask();
