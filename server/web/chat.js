// chat.js -- the conversation in the middle: its messages, the answers being written, what is done
// with them.
import { $, announce, number } from './dom.js';
import { Job } from './generate.js';
import { Message } from './message.js';
import * as store from './store.js';
import { add, newConversation, path, pick } from './tree.js';

/** @type {import('./tree.js').Conversation} */
let current;
/** @type {Map<string, Job>} by conversation */
const jobs = new Map();
/** @type {Map<string, Message>} by node, of what is shown */
let shown = new Map();
let hooks = { changed: () => {}, listed: () => {}, refused: (_) => {}, answered: () => {},
    model: () => '', defaults: () => ({ system: '', params: {} }) };
let following = true, painting = false, savedAt = 0;

/**
 * @param {Partial<typeof hooks>} h changed: what is shown; listed: the list of conversations;
 * refused: an error that may be about the server;
 *   answered: an answer has ended
 */
export function setup(h) {
    hooks = { ...hooks, ...h };
    const box = $('scroll');
    box.addEventListener('scroll', () => {
        following = box.scrollHeight - box.scrollTop - box.clientHeight < 48;
        $('to-end').hidden = following;
    }, { passive: true });
    $('to-end').addEventListener('click', toEnd);
    addEventListener('pagehide', () => jobs.forEach((j) => {
        j.n.state = 'stopped';
        keepOn(j.c);
    }));
    store.watch(changedElsewhere);
}

function changedElsewhere(id, gone) {
    if (gone)
        drop(id);
    if (gone && id === current.id)
        show();
    else if (id === current.id)
        render();
    hooks.listed();
}

export const conversation = () => current;
export const job = () => jobs.get(current.id);

export function toEnd() {
    following = true;
    $('scroll').scrollTop = $('scroll').scrollHeight;
    $('to-end').hidden = true;
}

/** @param {import('./tree.js').Conversation} [c] none: a new one */
export function show(c) {
    const { system, params } = hooks.defaults();
    current = c || newConversation(system, params);
    shown = new Map();
    $('messages').replaceChildren();
    render();
    toEnd();
}

const deeds = {
    again: (n) => {
        if (n.state === 'failed' && !n.content && !busy())
            delete current.nodes[n.id]; // an answer that never began is no version of it
        answer(n.parent);
    },
    edit: (n, text) => {
        if (!busy())
            send(text, n.parent);
    },
    go: (n) => {
        pick(current, n);
        keep();
        render();
        const view = shown.get(n.id),
            back = view && view.foot.querySelector('.branches button:not(:disabled)');
        if (back)
            back.focus();
    },
    results: (n, texts) => {
        if (busy())
            return;
        let parent = n.id;
        n.calls.forEach((t, i) => {
            parent = add(current, { parent, role: 'tool', content: texts[i], callId: t.id }).id;
        });
        answer(parent);
    },
};

function busy() {
    if (job())
        announce('An answer is being written; stop it first.');
    return Boolean(job());
}

function keep() {
    store.save(current);
    hooks.listed();
}

/** What was deleted meanwhile stays deleted. */
function keepOn(c) {
    if (store.get(c.id))
        store.save(c);
}

/** Views of the path shown: those that stay are kept, in order. */
export function render() {
    const nodes = path(current), list = $('messages');
    const before = shown;
    shown = new Map();
    nodes.forEach((n, i) => {
        const view = before.get(n.id) || new Message(current, n, deeds);
        if (before.has(n.id))
            view.update();
        shown.set(n.id, view);
        if (list.children[i] !== view.node)
            list.insertBefore(view.node, list.children[i] || null);
    });
    while (list.children.length > nodes.length)
        list.lastChild.remove();
    $('empty').hidden = nodes.length > 0;
    $('title').textContent = current.title;
    document.title = nodes.length ? `${current.title} · pith` : 'pith';
    if (following)
        toEnd();
    hooks.changed();
}

/** A new message below `parent` (default: the end of what is shown), and the answer to it. */
export function send(text, parent) {
    const nodes = path(current), last = nodes[nodes.length - 1];
    if (busy())
        return;
    const n = add(current, { role: 'user', content: text, parent: parent !== undefined ? parent
        : last ? last.id : '' });
    following = true;
    answer(n.id);
}

/** Paints at most once a frame, and keeps what there is every two seconds. */
function paint(j) {
    if (performance.now() - savedAt > 2000) {
        savedAt = performance.now();
        keepOn(j.c);
    }
    if (painting)
        return;
    painting = true;
    requestAnimationFrame(() => {
        painting = false;
        const view = shown.get(j.n.id);
        if (view && j.c === current) {
            view.update();
            if (following)
                toEnd();
        }
        hooks.changed();
    });
}

async function answer(parent) {
    if (busy())
        return;
    const c = current, j = new Job(c, add(c, { role: 'assistant', parent, state: 'writing' }));
    jobs.set(c.id, j);
    keep();
    render();
    if (document.activeElement === document.body)
        $('scroll').focus({ preventScroll: true }); // the button that asked for it is gone
    announce('The answer is being written.');
    await j.run(hooks.model(), () => paint(j));
    jobs.delete(c.id);
    c.updated = Date.now();
    keepOn(c);
    hooks.listed();
    if (c === current)
        render();
    tell(j.n);
    if (j.error)
        hooks.refused(j.error);
    else
        hooks.answered();
}

/** To those who listen: how it ended, and its beginning; not each token. */
function tell(n) {
    if (n.state === 'failed')
        announce('Error: ' + n.error);
    else if (n.state === 'stopped')
        announce('Stopped.');
    else
        announce('The answer is there, ' +
            `${number(n.content.split(/\s+/).filter(Boolean).length)} words. ` +
            n.content.slice(0, 400));
}

export function stop() {
    const j = job();
    if (j)
        j.stop();
    return Boolean(j);
}

/** Opens the editor of the last question. */
export function editLast() {
    const last = path(current).reverse().find((n) => n.role === 'user');
    if (last && !job())
        shown.get(last.id).editor();
}

/** Writes the last answer again. */
export function regenerate() {
    const last = path(current).reverse().find((n) => n.role === 'assistant');
    if (last)
        answer(last.parent);
}

/** To the version before (-1) or after (+1) of the last message that has several. */
export function step(by) {
    const nodes = path(current).reverse();
    for (const n of nodes) {
        const all = Object.values(current.nodes).filter((o) => o.parent === n.parent);
        if (all.length > 1) {
            const next = all[all.indexOf(n) + by];
            if (next && !job())
                deeds.go(next);
            return;
        }
    }
}

/** Answers that are being written in a conversation that goes. */
export function drop(id) {
    const j = jobs.get(id);
    if (j)
        j.stop();
}
