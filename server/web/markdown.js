// markdown.js -- Markdown as it comes from a model, to DOM nodes. Blocks are found line by line;
// the text of each top-level block is its key, so while an answer grows only its last block is made
// again. No HTML is read: what looks like it is text.
import { el, iconButton, copy, icon } from './dom.js';
import { inline } from './inline.js';
import { highlight } from './highlight.js';

const DEPTH = 10;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const SPLIT = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*(\|\s*)?$/;

/** Index behind the block that begins at line i, and its kind. */
function scan(lines, i) {
    const line = lines[i], fence = FENCE.exec(line);
    let j = i + 1;
    if (fence) {
        const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
        while (j < lines.length && !close.test(lines[j]))
            j++;
        return { kind: 'code', end: Math.min(j + 1, lines.length), closed: j < lines.length };
    }
    if (HEADING.test(line))
        return { kind: 'heading', end: j };
    if (RULE.test(line))
        return { kind: 'rule', end: j };
    if (QUOTE.test(line)) {
        while (j < lines.length && (QUOTE.test(lines[j]) || (lines[j].trim() &&
            !interrupts(lines[j]))))
            j++;
        return { kind: 'quote', end: j };
    }
    if (ITEM.test(line))
        return { kind: 'list', end: listEnd(lines, i) };
    if (line.includes('|') && j < lines.length && SPLIT.test(lines[j]) && lines[j].includes('-') &&
            cells(line).length === cells(lines[j]).length) {
        for (j++; j < lines.length && lines[j].trim() && lines[j].includes('|'); j++);
        return { kind: 'table', end: j };
    }
    while (j < lines.length && lines[j].trim() && !interrupts(lines[j]))
        j++;
    return { kind: 'text', end: j };
}

const interrupts = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) ||
    QUOTE.test(line) || ITEM.test(line);

const ordered = (mark) => /\d/.test(mark);

function listEnd(lines, i) {
    const first = ITEM.exec(lines[i]);
    let j = i + 1, indent = first[1].length;
    for (; j < lines.length; j++) {
        if (!lines[j].trim()) {
            let k = j + 1;
            while (k < lines.length && !lines[k].trim())
                k++;
            const m = ITEM.exec(lines[k] || '');
            if (k === lines.length || (/^ */.exec(lines[k])[0].length <= indent &&
                !(m && ordered(m[2]) === ordered(first[2]))))
                return j;
            j = k - 1;
            continue;
        }
        const m = ITEM.exec(lines[j]);
        if (m && m[1].length <= indent && ordered(m[2]) !== ordered(first[2]))
            return j;
        if (!m && !/^\s/.test(lines[j]) && (!lines[j - 1].trim() || interrupts(lines[j])))
            return j;
        if (RULE.test(lines[j]))
            return j;
    }
    return j;
}

function cells(line) {
    const inside = line.trim().replace(/^\|/, '').replace(/([^\\]|^)\|$/, '$1');
    return inside.split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, '|'));
}

function table(lines) {
    const align = cells(lines[1]).map((c) => (/^:-+:$/.test(c) ? 'center' : c.endsWith(':')
        ? 'right' : ''));
    const row = (tag, line) => {
        const own = cells(line);
        return el('tr', {}, ...align.map((side, k) => el(tag,
            { class: side, ...(tag === 'th' ? { scope: 'col' } : {}) }, ...inline(own[k] || ''))));
    };
    return el('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table' },
        el('table', {}, el('thead', {}, row('th', lines[0])),
        el('tbody', {}, ...lines.slice(2).map((l) => row('td', l)))));
}

function list(lines, depth) {
    const first = ITEM.exec(lines[0]), items = [];
    const start = ordered(first[2]) ? parseInt(first[2], 10) : 1;
    let own = null, width = 0, loose = false; // loose: a blank line between its items
    for (const line of lines) {
        const m = ITEM.exec(line);
        if (m && (!own || m[1].length < width)) {
            width = m[1].length + m[2].length + (m[3].length > 4 ? 1 : m[3].length || 1);
            loose = loose || (own !== null && !own[own.length - 1].trim());
            own = [m[4]];
            items.push(own);
        } else {
            own.push(line.slice(Math.min(width, /^ */.exec(line)[0].length)));
        }
    }
    const tag = ordered(first[2]) ? 'ol' : 'ul';
    return el(tag, start !== 1 ? { start } : {}, ...items.map((item) => {
        const task = /^\[([ xX])\]\s+/.exec(item[0]);
        if (task)
            item[0] = item[0].slice(task[0].length);
        const inside = blocks(item, depth + 1);
        if (!loose && inside.filter((e) => e.tagName === 'P').length === 1 &&
            inside[0].tagName === 'P')
            inside.splice(0, 1, ...inside[0].childNodes);
        if (!task)
            return el('li', {}, ...inside);
        const done = task[1] !== ' ';
        return el('li', { class: 'task' },
            el('input', { type: 'checkbox', disabled: true, checked: done, 'aria-label': done
            ? 'done' : 'open' }), ...inside);
    }));
}

function code(lines, closed) {
    const fence = FENCE.exec(lines[0]), language = fence[2].trim().split(/\s+/)[0] || '';
    const indent = /^ */.exec(lines[0])[0].length;
    const text = lines.slice(1, closed ? -1 : undefined).map((l) =>
        l.slice(Math.min(indent, /^ */.exec(l)[0].length))).join('\n');
    const button = iconButton('copy', 'Copy the code', async () => {
        button.replaceChildren(icon((await copy(text)) ? 'done' : 'close'));
        setTimeout(() => button.replaceChildren(icon('copy')), 1500);
    });
    return el('div', { class: 'code' }, el('div', { class: 'code-bar' },
        el('span', { text: language || 'text' }), button),
        el('pre', { tabindex: '0' }, el('code', {}, ...highlight(text, language))));
}

function build(lines, b, depth) {
    switch (b.kind) {
    case 'code':
        return code(lines, b.closed);
    case 'heading': {
        const m = HEADING.exec(lines[0]); // the page has an h1 and each message an h2
        return el('h' + Math.min(m[1].length + 2, 6), { class: 'h' + m[1].length },
            ...inline((m[2] || '').trimEnd().replace(/(^|\s)#+$/, '').trimEnd()));
    }
    case 'rule':
        return el('hr');
    case 'quote':
        return el('blockquote', {}, ...blocks(lines.map((l) => (QUOTE.exec(l) || [l, l])[1]),
            depth + 1));
    case 'list':
        return list(lines, depth);
    case 'table':
        return table(lines);
    default:
        return el('p', {}, ...inline(lines.map((l) => l.replace(/^\s+/, '')).join('\n').trimEnd()));
    }
}

function blocks(lines, depth) {
    if (depth > DEPTH)
        return [el('p', { text: lines.join('\n') })];
    const out = [];
    for (let i = 0; i < lines.length;) {
        if (!lines[i].trim()) {
            i++;
            continue;
        }
        const b = scan(lines, i);
        out.push(build(lines.slice(i, b.end), b, depth));
        i = b.end;
    }
    return out;
}

/** A view of Markdown that may grow: update(text) changes only the blocks that differ. */
export class Markdown {
    constructor() {
        this.node = el('div', { class: 'md' });
        this.keys = [];
        this.nodes = [];
    }

    update(text) {
        const lines = text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n');
        let n = 0;
        for (let i = 0; i < lines.length;) {
            if (!lines[i].trim()) {
                i++;
                continue;
            }
            const b = scan(lines, i), own = lines.slice(i, b.end), key = own.join('\n');
            if (this.keys[n] !== key) {
                const fresh = build(own, b, 0);
                if (this.nodes[n])
                    this.nodes[n].replaceWith(fresh);
                else
                    this.node.append(fresh);
                this.nodes[n] = fresh;
                this.keys[n] = key;
            }
            n++;
            i = b.end;
        }
        this.keys.length = n;
        this.nodes.splice(n).forEach((e) => e.remove());
    }
}
