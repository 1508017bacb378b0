// tree.js -- a conversation as data. Messages are nodes of a tree: editing or writing an answer
// again adds a sibling, so nothing is lost. What is shown is one path from a root to a leaf: at
// each node the child that was picked last, else the newest.
import { newId } from './dom.js';

/**
 * @typedef {{ id: string, parent: string, role: 'user'|'assistant'|'tool', content: string,
 * reasoning?: string, calls?: Call[], callId?: string,
 *   state: 'writing'|'done'|'stopped'|'failed', error?: string, errorCode?: string, retryAfter?:
 *   number, finish?: string, model?: string,
 *   usage?: { prompt: number, cached: number, made: number }, pace?: number, first?: number, time:
 *   number }} Node
 *   parent: '' of a root; pace: tokens a second; first: seconds until the first one
 * @typedef {{ id: string, name: string, args: string }} Call
 * @typedef {{ id: string, title: string, named: boolean, created: number, updated: number, system:
 * string, params: Object<string, any>,
 *   nodes: Object<string, Node>, picks: Object<string, string> }} Conversation
 */

/** @returns {Conversation} */
export function newConversation(system, params) {
    const now = Date.now();
    return { id: newId(), title: 'New conversation', named: false, created: now, updated: now,
        system, params: { ...params }, nodes: {}, picks: {} };
}

/** @param {Conversation} c @param {string} parent */
export function children(c, parent) {
    return Object.values(c.nodes).filter((n) => n.parent === parent);
}

/** The nodes shown, from the root on. @param {Conversation} c @returns {Node[]} */
export function path(c) {
    const out = [];
    for (let at = ''; ;) {
        const below = children(c, at);
        const next = below.find((n) => n.id === c.picks[at]) || below[below.length - 1];
        if (!next)
            return out;
        out.push(next);
        at = next.id;
    }
}

/** @param {Conversation} c @param {Partial<Node>} fields @returns {Node} */
export function add(c, fields) {
    const n = { id: newId(), parent: '', role: 'user', content: '', state: 'done', time: Date.now(),
        ...fields };
    c.nodes[n.id] = n;
    c.picks[n.parent] = n.id;
    c.updated = n.time;
    if (!c.named && n.role === 'user' && n.parent === '')
        c.title = titleOf(n.content);
    return n;
}

export function titleOf(text) {
    const line = text.trim().split('\n')[0].replace(/\s+/g, ' ');
    return line.length > 60 ? line.slice(0, 57).trimEnd() + '…' : line || 'New conversation';
}

/** Which of its siblings a node is. @returns {{ all: Node[], at: number }} */
export function branch(c, n) {
    const all = children(c, n.parent);
    return { all, at: all.indexOf(n) };
}

export function pick(c, n) {
    c.picks[n.parent] = n.id;
}

/** Whether all of a call is there: an answer that was stopped may end in the middle of one.
 * @param {Call} t */
export function isWhole(t) {
    try {
        return Boolean(JSON.parse(t.args));
    } catch (e) {
        return false;
    }
}

/** What the server is asked: the path up to and with the node `last`, after the system prompt. */
export function wire(c, last) {
    const up = [];
    for (let n = c.nodes[last]; n; n = c.nodes[n.parent])
        up.push(n);
    const messages = c.system.trim() ? [{ role: 'system', content: c.system }] : [];
    for (const n of up.reverse()) {
        if (n.role === 'tool')
            messages.push({ role: 'tool', tool_call_id: n.callId, content: n.content });
        else if (n.role === 'user')
            messages.push({ role: 'user', content: n.content });
        else if (n.calls && n.calls.length && n.calls.every(isWhole))
            messages.push({ role: 'assistant', content: n.content,
                tool_calls: n.calls.map((t) => ({ id: t.id, type: 'function',
                    function: { name: t.name, arguments: t.args } })) });
        else if (n.content || n.state !== 'failed')
            messages.push({ role: 'assistant', content: n.content });
    }
    return messages;
}

/** Tokens of the context that the path takes, by the last answer that counted them; null: not
 * known. */
export function used(c) {
    const counted = path(c).filter((n) => n.usage);
    const last = counted[counted.length - 1];
    return last ? last.usage.prompt + last.usage.made : null;
}

/** @type {WeakSet<Node>} nodes that another page writes */
const foreign = new WeakSet();

/**
 * What another page has made of the same conversation comes in: messages that are not here, and
 * answers it has got further with. What is shown stays. newer: it was changed there just now, so
 * its title and settings are taken, too. @returns {boolean} whether anything came
 * @param {Conversation} c @param {Conversation} other
 */
export function merge(c, other, newer) {
    let came = false;
    for (const n of Object.values(other.nodes)) {
        const own = c.nodes[n.id], more = own && n.content.length - own.content.length;
        const further = more > 0 || (more === 0 && own.state === 'stopped' && n.state === 'done');
        if (own && (further ? foreign.has(own) || own.state === 'stopped'
            : foreign.has(own) && newer)) {
            Object.assign(own, n);
            foreign.add(own);
            came = true;
        } else if (!own && (n.parent === '' || c.nodes[n.parent]) &&
                (n.state !== 'failed' || n.content)) {
            c.nodes[n.id] = { ...n };
            foreign.add(c.nodes[n.id]);
            came = true;
        }
    }
    c.updated = Math.max(c.updated, other.updated);
    if (newer)
        Object.assign(c, { title: other.title, named: other.named, system: other.system,
            params: other.params });
    return came;
}

/** Fields of a request that are not for people, or that the page sets itself; besides those that
 * the server takes and does not use. */
export const NOT_SET = new Set(
    `model messages stream stream_options return_progress n modalities logprobs top_logprobs
        tool_choice add_generation_prompt max_completion_tokens timeout priority
        samplers`.split(/\s+/));

/** Settings from anywhere: what their panel does not show is not sent either. */
export function readParams(v) {
    return v && typeof v === 'object' && !Array.isArray(v)
        ? Object.fromEntries(Object.entries(v).filter(([name]) => !NOT_SET.has(name))) : {};
}

const text = (v, most) => (typeof v === 'string' ? v.slice(0, most) : '');
const real = (v, otherwise) => (Number.isFinite(v) ? v : otherwise);

/** A conversation from a file or a store, which may hold anything. @returns {Conversation|null} */
export function readConversation(v) {
    if (!v || typeof v !== 'object' || !v.nodes || typeof v.nodes !== 'object')
        return null;
    const now = Date.now(), nodes = {}, picks = {};
    for (const n of Object.values(v.nodes)) {
        if (!n || !/^m[0-9a-f]{18}$/.test(n.id) || (n.parent !== '' && !nodes[n.parent]) ||
            !['user', 'assistant', 'tool'].includes(n.role))
            continue; // parents come first, so there is no cycle
        nodes[n.id] = { id: n.id, parent: n.parent, role: n.role, content: text(n.content, 1e7),
            reasoning: text(n.reasoning, 1e7) || undefined,
            calls: Array.isArray(n.calls) ? n.calls.map((t) => ({ id: text(t && t.id, 200),
                name: text(t && t.name, 200), args: text(t && t.args, 1e6) })) : undefined,
            callId: text(n.callId, 200) || undefined, state: ['done', 'failed'].includes(n.state) ||
            n.role === 'user' ? n.state : 'stopped',
            error: text(n.error, 2000) || undefined, errorCode: text(n.errorCode, 100) || undefined,
            finish: text(n.finish, 40) || undefined,
            model: text(n.model, 300) || undefined, pace: real(n.pace, undefined),
            first: real(n.first, undefined), time: real(n.time, now),
            usage: n.usage && Number.isFinite(n.usage.prompt) && Number.isFinite(n.usage.made)
                ? { prompt: n.usage.prompt, cached: real(n.usage.cached, 0), made: n.usage.made }
                    : undefined };
    }
    for (const [from, to] of Object.entries(v.picks || {}))
        if (nodes[to] && nodes[to].parent === from)
            picks[from] = to;
    return { id: /^m[0-9a-f]{18}$/.test(v.id) ? v.id : newId(),
        title: text(v.title, 300) || 'Conversation', named: v.named === true,
        created: real(v.created, now), updated: real(v.updated, now), system: text(v.system, 1e6),
        params: readParams(v.params), nodes, picks };
}
