// inline.js -- the Markdown inside a line: code, emphasis, links, breaks. Text from a model is
// never parsed as HTML: it becomes text nodes and elements made here. A budget bounds the work on
// text made of nothing but openers; what is left over is plain text.
import { el } from './dom.js';

const DEPTH = 12;
const SPECIAL = /[\\`*_~[!<\n]|https?:\/\//gi;
const PUNCTUATION = /[!-/:-@[-`{-~]/;

/** An address to link to, or null: http, https and mailto only. */
export function safeUrl(text) {
    const url = text.trim();
    if (/^mailto:[^\s]+$/i.test(url))
        return url;
    if (!/^https?:\/\//i.test(url))
        return null;
    try {
        return new URL(url).href;
    } catch (e) {
        return null;
    }
}

function link(url, children) {
    const safe = safeUrl(url);
    if (!safe)
        return el('span', { title: url }, ...children);
    return el('a', { href: safe, target: '_blank', rel: 'noopener noreferrer nofollow' },
        ...children);
}

/** Where the run that opened at i with `mark` closes; -1: nowhere. */
function closing(s, i, mark, budget) {
    for (let j = s.indexOf(mark, i + mark.length); j >= 0 &&
            budget.left-- > 0; j = s.indexOf(mark, j + 1)) {
        const before = s[j - 1], after = s[j + mark.length] || ' ';
        if (before === '\\' || /\s/.test(before) || j === i + mark.length)
            continue;
        if (mark.length === 1 && (after === mark || before === mark))
            continue; // part of a longer run
        if (mark[0] === '_' && /\w/.test(after))
            continue; // snake_case
        return j;
    }
    return -1;
}

/** [text](url "title") or ![text](url) at i: where its parts end, or null. */
function bracket(s, i) {
    let depth = 0, j = i;
    for (; j < s.length && j < i + 2000; j++) {
        if (s[j] === '\\')
            j++;
        else if (s[j] === '[')
            depth++;
        else if (s[j] === ']' && --depth === 0)
            break;
    }
    if (s[j] !== ']' || s[j + 1] !== '(')
        return null;
    const m = /^\(\s*<?((?:[^\s()<>]|\([^\s()]*\))*)>?(?:\s+"[^"]*")?\s*\)/.exec(s.slice(j + 1,
        j + 2001));
    return m && { text: s.slice(i + 1, j), url: m[1], end: j + 1 + m[0].length };
}

const EMPHASIS = [['***', ['strong', 'em']], ['**', ['strong']], ['__', ['strong']],
    ['~~', ['del']], ['*', ['em']], ['_', ['em']]];

class Inline {
    constructor(s, budget, depth) {
        this.s = s;
        this.i = 0;
        this.budget = budget;
        this.depth = depth;
        this.out = [];
        this.plain = '';
    }

    flush() {
        if (this.plain)
            this.out.push(this.plain);
        this.plain = '';
    }

    put(node, end) {
        this.flush();
        this.out.push(node);
        this.i = end;
        return true;
    }

    inner(text) {
        return this.depth >= DEPTH ? [text] : new Inline(text, this.budget, this.depth + 1).run();
    }

    code() {
        const run = /^`+/.exec(this.s.slice(this.i, this.i + 100))[0];
        for (let j = this.s.indexOf(run, this.i + run.length); j >= 0; j = this.s.indexOf(run,
                j + 1)) {
            if (this.s[j - 1] === '`' || this.s[j + run.length] === '`')
                continue;
            const inside = this.s.slice(this.i + run.length, j).replace(/\n/g, ' ');
            const trimmed = /^ .*[^ ].* $/.test(inside) ? inside.slice(1, -1) : inside;
            return this.put(el('code', { text: trimmed }), j + run.length);
        }
        this.plain += run;
        this.i += run.length;
        return true;
    }

    emphasis() {
        const { s, i } = this;
        for (const [mark, tags] of EMPHASIS) {
            if (!s.startsWith(mark, i) || /\s/.test(s[i + mark.length] || ' '))
                continue;
            if (mark[0] === '_' && /\w/.test(s[i - 1] || ' '))
                continue;
            const j = closing(s, i, mark, this.budget);
            if (j < 0)
                continue;
            let children = this.inner(s.slice(i + mark.length, j));
            for (const tag of [...tags].reverse())
                children = [el(tag, {}, ...children)];
            return this.put(children[0], j + mark.length);
        }
        return false;
    }

    links() {
        const { s, i } = this;
        const image = s[i] === '!';
        const b = (s[i] === '[' || (image && s[i + 1] === '[')) && bracket(s, i + (image ? 1 : 0));
        // a picture would be a request to somebody else's server: its name is shown, as a link
        if (b)
            return this.put(link(b.url, image ? [b.text || b.url] : this.inner(b.text)), b.end);
        const m = s[i] === '<' && /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(s.slice(i,
            i + 2000));
        return m ? this.put(link(m[1], [m[1]]), i + m[0].length) : false;
    }

    bare() {
        const m = /^https?:\/\/[^\s<>"'`]+/i.exec(this.s.slice(this.i, this.i + 2000));
        if (!m || /\w/.test(this.s[this.i - 1] || ' '))
            return false;
        let url = m[0].replace(/[.,;:!?*_~]+$/, '');
        while (url.endsWith(')') && !url.includes('('))
            url = url.slice(0, -1);
        return this.put(link(url, [url]), this.i + url.length);
    }

    special() {
        const ch = this.s[this.i];
        if (ch === '\\') {
            const next = this.s[this.i + 1];
            if (next === '\n')
                return this.put(el('br'), this.i + 2);
            if (!next || !PUNCTUATION.test(next))
                return false;
            this.plain += next;
            this.i += 2;
            return true;
        }
        if (ch === '\n') {
            this.plain = this.plain.trimEnd();
            return this.put(el('br'), this.i + 1);
        }
        if (ch === '`')
            return this.code();
        if (ch === '*' || ch === '_' || ch === '~')
            return this.emphasis();
        return ch === 'h' || ch === 'H' ? this.bare() : this.links();
    }

    run() {
        const { s } = this;
        while (this.i < s.length) {
            SPECIAL.lastIndex = this.i;
            const next = SPECIAL.exec(s);
            if (!next || this.budget.left-- <= 0) {
                this.plain += s.slice(this.i);
                break;
            }
            this.plain += s.slice(this.i, next.index);
            this.i = next.index;
            if (!this.special()) {
                const run = /^([*_~])\1*/.exec(s.slice(this.i, this.i + 1000));
                const n = run ? run[0].length : 1; // a run that opens nothing is looked at once
                this.plain += s.slice(this.i, this.i + n);
                this.i += n;
            }
        }
        this.flush();
        return this.out;
    }
}

/** @param {string} text @returns {(Node|string)[]} */
export function inline(text) {
    return new Inline(text, { left: 20000 }, 0).run();
}
