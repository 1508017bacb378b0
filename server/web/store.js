// store.js -- conversations in the browser: all of them in memory, each kept in IndexedDB when it
// changes. A browser that keeps nothing (a private window, a full disk) is told about once; the
// page goes on with what is in memory. Several pages may be open: each tells the others what it
// keeps, and takes in what they have added before it writes over it (merge).
import { merge, readConversation } from './tree.js';
import { newId } from './dom.js';

const FORMAT = 'pith-conversations';

/** @type {Map<string, import('./tree.js').Conversation>} */
const all = new Map();
const others = new BroadcastChannel('pith-conversations');
let db = null;
let tell = (_) => {};

function promise(request) {
    return new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });
}

function failed(e) {
    tell(`This browser does not keep conversations (${(e && e.message) || 'no storage'}). ` +
        'They are here until the page is closed; export what you want to have later.');
    tell = (_) => {};
}

/** @param {(text: string) => void} onTrouble is told when nothing can be kept */
export async function open(onTrouble) {
    tell = onTrouble;
    try {
        const r = indexedDB.open('pith', 1);
        r.onupgradeneeded = () => r.result.createObjectStore('conversations', { keyPath: 'id' });
        db = await promise(r);
        db.onversionchange = () => db.close();
        for (const v of await promise(db.transaction('conversations').objectStore('conversations')
                .getAll())) {
            const c = readConversation(v);
            if (c)
                all.set(c.id, c);
        }
    } catch (e) {
        db = null;
        failed(e);
    }
}

/** Newest first. */
export function list() {
    return [...all.values()].sort((a, b) => b.updated - a.updated);
}

export const get = (id) => all.get(id);

/** Done when it is kept: a full disk may refuse only then. */
async function write(change) {
    if (!db)
        return;
    try {
        const t = db.transaction('conversations', 'readwrite');
        const kept = new Promise((resolve, reject) => {
            t.oncomplete = resolve;
            t.onabort = () => reject(t.error);
        });
        await Promise.all([kept, change(t.objectStore('conversations'))]);
    } catch (e) {
        failed(e);
    }
}

export async function save(c) {
    all.set(c.id, c);
    await write(async (s) => {
        const before = promise(s.get(c.id));
        s.put(c); // at once: the page may be going
        const kept = readConversation(await before);
        if (kept && merge(c, kept, false))
            s.put(c);
    });
    others.postMessage({ kept: c });
}

export async function remove(id) {
    all.delete(id);
    await write((s) => s.delete(id));
    others.postMessage({ gone: id });
}

/** @param {(id: string, gone: boolean) => void} onChange another page has changed or deleted a
 * conversation */
export function watch(onChange) {
    others.onmessage = ({ data: { kept, gone } }) => {
        if (gone) {
            all.delete(gone);
        } else {
            all.set(kept.id, all.get(kept.id) || { ...kept, nodes: {}, picks: { ...kept.picks } });
            merge(all.get(kept.id), kept, true);
        }
        onChange(gone || kept.id, Boolean(gone));
    };
}

/** Conversations that hold all words, in their title or in a message. */
export function search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length)
        return list();
    return list().filter((c) => {
        const hay = [c.title, ...Object.values(c.nodes).map((n) => n.content)].join('\n')
            .toLowerCase();
        return words.every((w) => hay.includes(w));
    });
}

export function exportText(conversations) {
    return JSON.stringify({ format: FORMAT, version: 1, exported: new Date().toISOString(),
        conversations }, null, 1);
}

/** Adds what a file holds; what is here already is kept beside it. Throws an Error with words.
 * @returns {Promise<number>} how many */
export async function importText(text) {
    let file;
    try {
        file = JSON.parse(text);
    } catch (e) {
        throw new Error(`This is not JSON: ${e.message}`);
    }
    if (!file || file.format !== FORMAT || !Array.isArray(file.conversations))
        throw new Error('This is no file of conversations: ' +
            `wanted "format": "${FORMAT}" and a list "conversations"`);
    if (file.version !== 1)
        throw new Error(`This file has version ${String(file.version).slice(0, 20)}; wanted 1`);
    const read = file.conversations.map(readConversation).filter(Boolean);
    if (!read.length)
        throw new Error('There is no conversation in this file');
    let n = 0;
    for (const c of read) {
        if (all.has(c.id) && JSON.stringify(all.get(c.id)) === JSON.stringify(c))
            continue;
        if (all.has(c.id))
            c.id = newId();
        await save(c);
        n++;
    }
    return n;
}
