// message.js -- how one message looks: text, reasoning, calls of tools, errors, what it cost, and
// what can be done with it.
import { el, icon, iconButton, copy, number } from './dom.js';
import { Markdown } from './markdown.js';
import { branch, isWhole } from './tree.js';

/**
 * @typedef {import('./tree.js').Node} Node
 * @typedef {{ again: (n: Node) => void, edit: (n: Node, text: string) => void, go: (n: Node) =>
 * void, results: (n: Node, texts: string[]) => void }} Deeds
 */

const NAMES = { user: 'You', assistant: 'Answer', tool: 'Result of a tool' };

/** A view of one message; update() after its node changed. */
export class Message {
    /** @param {import('./tree.js').Conversation} conversation @param {Node} node
     * @param {Deeds} deeds */
    constructor(conversation, node, deeds) {
        this.c = conversation;
        this.n = node;
        this.deeds = deeds;
        this.body = el('div', { class: 'body' });
        this.foot = el('div', { class: 'foot' });
        const title = 'h-' + node.id;
        this.node = el('li', { class: 'message ' + node.role, 'data-id': node.id },
            el('article', { 'aria-labelledby': title }, el('h2',
                { class: 'sr', id: title, text: NAMES[node.role] }), this.body, this.foot));
        this.update();
    }

    update() {
        if (this.form)
            return; // what is being typed there stays
        if (this.n.role === 'assistant')
            this.answer();
        else
            this.body.replaceChildren(el(this.n.role === 'tool' ? 'pre' : 'div',
                { class: this.n.role === 'tool' ? 'result' : 'said', text: this.n.content }));
        this.node.classList.toggle('writing', this.n.state === 'writing');
        if (this.n.state === 'writing')
            this.foot.replaceChildren();
        else
            this.footer();
    }

    /** The parts of an answer, made when they are first needed and changed in place: what is open
     * or selected stays so. */
    answer() {
        const { n } = this;
        if (!this.text) {
            this.waiting = el('div', { class: 'waiting', 'aria-hidden': 'true' }, el('i'), el('i'),
                el('i'));
            this.text = new Markdown();
            this.calls = el('div', { class: 'calls' });
            this.notes = el('div', { class: 'notes' });
            this.body.append(this.waiting, this.text.node, this.calls, this.notes);
        }
        if (n.reasoning && !this.fold) {
            this.thought = new Markdown();
            this.foldTitle = el('span');
            this.fold = el('details', { class: 'fold' }, el('summary', {}, icon('right'),
                this.foldTitle), this.thought.node);
            this.body.prepend(this.fold);
        }
        const thinking = n.state === 'writing' && !n.content && !(n.calls && n.calls.length);
        if (this.fold) {
            this.foldTitle.textContent = thinking ? 'Thinking…' : 'Thought about it first';
            this.thought.update(n.reasoning || '');
        }
        this.waiting.hidden = !(thinking && !n.reasoning);
        this.text.update(n.content);
        this.showCalls();
        this.showNotes();
    }

    showCalls() {
        const calls = this.n.calls || [];
        const key = JSON.stringify([calls, this.n.state === 'writing', this.answered()]);
        if (key === this.callsKey)
            return;
        this.callsKey = key;
        this.calls.replaceChildren(...calls.map((t) => {
            let args = t.args;
            try {
                args = JSON.stringify(JSON.parse(t.args), null, 2);
            } catch (e) {
                // It is shown as it is while it grows, and when it is no JSON.
            }
            const title = el('div', { class: 'call-name' }, icon('tool'), 'calls ',
                el('code', { text: t.name }));
            return el('div', { class: 'call' }, title, el('pre', { tabindex: '0', text: args }));
        }));
        if (calls.length && this.n.state === 'done' && calls.every(isWhole) && !this.answered())
            this.calls.append(this.resultsForm(calls));
    }

    answered() {
        return Object.values(this.c.nodes).some((n) => n.parent === this.n.id && n.role === 'tool');
    }

    /** Tools run elsewhere: whoever reads says what they gave. */
    resultsForm(calls) {
        const areas = calls.map((t) => el('textarea', { rows: '2',
            'aria-label': `Result of ${t.name}`, placeholder: `What ${t.name} returned` }));
        return el('form', { class: 'results', onsubmit: (e) => {
            e.preventDefault();
            this.deeds.results(this.n, areas.map((a) => a.value));
        } }, ...areas, el('button', { class: 'primary', text: calls.length > 1 ? 'Send the results'
            : 'Send the result' }));
    }

    showNotes() {
        const { n } = this, notes = [];
        if (n.state === 'failed')
            notes.push(el('div', { class: 'error', role: 'group', 'aria-label': 'Error' },
                el('p', { text: n.error || 'This answer failed.' }),
                el('button', { type: 'button', class: 'primary', text: 'Try again',
                    onclick: () => this.deeds.again(n) })));
        else if (n.state === 'stopped')
            notes.push(el('p', { class: 'note', text: 'Stopped.' }));
        else if (n.finish === 'length')
            notes.push(el('p', { class: 'note',
                text: 'Cut off: the most tokens of an answer, or of the context, were reached.' }));
        this.notes.replaceChildren(...notes);
    }

    figures() {
        const { usage, pace, first } = this.n;
        if (!usage)
            return null;
        const told = [`${number(usage.made)} tokens`];
        if (pace)
            told.push(`${pace.toFixed(pace < 10 ? 1 : 0)} tokens/s`);
        const more =
            [`${number(usage.prompt)} tokens read, ${number(usage.cached)} of them from the cache`];
        if (first)
            more.push(`first token after ${first.toFixed(2)} s`);
        if (this.n.model)
            more.push(this.n.model);
        return el('span', { class: 'figures', title: more.join('\n'), text: told.join(' · ') });
    }

    footer() {
        const { n, c, deeds } = this, { all, at } = branch(c, n);
        const parts = [];
        if (all.length > 1)
            parts.push(el('span', { class: 'branches', role: 'group',
                'aria-label': 'Versions of this message' },
                iconButton('left', 'Earlier version', () => deeds.go(all[at - 1]),
                    { disabled: at === 0 }),
                el('span', { text: `${at + 1}/${all.length}` }),
                iconButton('right', 'Later version', () => deeds.go(all[at + 1]),
                    { disabled: at === all.length - 1 })));
        if (n.content) {
            const button = iconButton('copy', 'Copy', async () => {
                button.replaceChildren(icon((await copy(n.content)) ? 'done' : 'close'));
                setTimeout(() => button.replaceChildren(icon('copy')), 1500);
            });
            parts.push(button);
        }
        if (n.role === 'user')
            parts.push(iconButton('edit', 'Edit', () => this.editor()));
        if (n.role === 'assistant' && n.state !== 'failed')
            parts.push(iconButton('again', 'Write another answer', () => deeds.again(n)));
        this.foot.replaceChildren(...(n.role === 'user' ? [] : [this.figures() || '']), ...parts);
    }

    /** The text of a question as a form; sending it makes a new branch. */
    editor() {
        if (this.form) {
            this.form.querySelector('textarea').focus();
            return;
        }
        const area = el('textarea', { 'aria-label': 'Edit the message',
            rows: String(Math.min(12, this.n.content.split('\n').length + 1)) });
        const leave = () => {
            this.form = null;
            this.update();
            const back = this.foot.querySelector('[aria-label="Edit"]');
            if (back)
                back.focus();
        };
        const form = el('form', { class: 'editor', onsubmit: (e) => {
            e.preventDefault();
            if (area.value.trim())
                this.deeds.edit(this.n, area.value);
        }, onkeydown: (e) => {
            if (e.key === 'Escape') {
                e.stopPropagation();
                leave();
            } else if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
                e.preventDefault();
                form.requestSubmit();
            }
        } }, area, el('div', { class: 'row' },
            el('button', { type: 'button', class: 'plain', text: 'Cancel', onclick: leave }),
            el('button', { class: 'primary', text: 'Send' })));
        area.value = this.n.content;
        this.form = form;
        this.body.replaceChildren(form);
        this.foot.replaceChildren();
        area.focus();
        area.setSelectionRange(area.value.length, area.value.length);
    }
}
