// sidebar.js -- the list of conversations: search, open, rename, delete, export, import.
import { $, el, iconButton, toast } from './dom.js';
import * as chat from './chat.js';
import * as store from './store.js';

const DAY = 86400000;
let opened = () => {};
let renaming = '';

function group(time) {
    const midnight = new Date().setHours(0, 0, 0, 0);
    if (time >= midnight)
        return 'Today';
    if (time >= midnight - DAY)
        return 'Yesterday';
    if (time >= midnight - 7 * DAY)
        return 'This week';
    return new Date(time).toLocaleDateString('en', { month: 'long', year: 'numeric' });
}

function download(name, text) {
    const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
    el('a', { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function open(c) {
    chat.show(c);
    list();
    opened();
}

function rename(c) {
    const input = el('input', { class: 'rename', 'aria-label': 'New name', maxlength: '300' });
    const leave = (take) => {
        if (renaming !== c.id)
            return;
        renaming = '';
        if (take && input.value.trim()) {
            c.title = input.value.trim();
            c.named = true;
            store.save(c);
            if (c.id === chat.conversation().id)
                chat.render();
        }
        list();
        const back = $('conversations').querySelector(`[data-id="${c.id}"] .open`);
        if (back)
            back.focus();
    };
    input.value = c.title;
    input.addEventListener('keydown', (e) => {
        if (e.key !== 'Enter' && e.key !== 'Escape')
            return;
        e.preventDefault();
        e.stopPropagation();
        leave(e.key === 'Enter');
    });
    input.addEventListener('blur', () => leave(true));
    renaming = c.id;
    $('conversations').querySelector(`[data-id="${c.id}"]`).replaceChildren(input);
    input.focus();
    input.select();
}

function remove(c) {
    chat.drop(c.id);
    store.remove(c.id);
    if (c.id === chat.conversation().id)
        chat.show();
    list();
    const next = $('conversations').querySelector('.open') || $('new');
    next.focus();
    toast(`“${c.title}” was deleted`, 'Undo', () => {
        store.save(c);
        list();
    });
}

function item(c) {
    const now = c.id === chat.conversation().id;
    return el('li', { class: now ? 'now' : '', 'data-id': c.id },
        el('button', { type: 'button', class: 'open', text: c.title, title: c.title,
            'aria-current': now ? 'true' : null, onclick: () => open(c),
            ondblclick: () => rename(c) }),
        el('span', { class: 'deeds' },
            iconButton('edit', `Rename ${c.title}`, () => rename(c)),
            iconButton('save', `Export ${c.title}`, () => download('conversation.json',
                store.exportText([c]))),
            iconButton('delete', `Delete ${c.title}`, () => remove(c))));
}

/** Draws the list anew. */
export function list() {
    if (renaming)
        return;
    const found = store.search($('search').value), groups = new Map();
    const held = document.activeElement.closest('#conversations li'),
        label = document.activeElement.getAttribute('aria-label');
    for (const c of found)
        groups.set(group(c.updated), [...(groups.get(group(c.updated)) || []), c]);
    const parts = [...groups].flatMap(([name, own]) => [el('h2', { text: name }),
        el('ul', {}, ...own.map(item))]);
    const none = $('search').value ? 'Nothing has these words.'
        : 'Conversations will be kept here.';
    $('conversations').replaceChildren(...(parts.length ? parts
        : [el('p', { class: 'none', text: none })]));
    const again = held && $('conversations').querySelector(`[data-id="${held.dataset.id}"]`);
    if (again)
        ([...again.querySelectorAll('button')]
            .find((b) => b.getAttribute('aria-label') === label) || again.firstChild).focus();
}

async function importFile() {
    const file = $('import-file').files[0];
    $('import-file').value = '';
    if (!file)
        return;
    try {
        const n = await store.importText(await file.text());
        toast(n ? `${n} conversation${n > 1 ? 's' : ''} imported`
            : 'All of these are here already');
        list();
    } catch (e) {
        toast(`${file.name}: ${e.message}`);
    }
}

/** @param {() => void} onOpen a conversation was chosen */
export function setup(onOpen) {
    opened = onOpen;
    $('search').addEventListener('input', list);
    $('search').addEventListener('keydown', (e) => {
        if (e.key === 'Escape' && $('search').value) {
            e.stopPropagation();
            $('search').value = '';
            list();
        } else if (e.key === 'ArrowDown') {
            e.preventDefault();
            const first = $('conversations').querySelector('.open');
            if (first)
                first.focus();
        }
    });
    $('conversations').addEventListener('keydown', (e) => {
        const all = [...$('conversations').querySelectorAll('.open')],
            at = all.indexOf(document.activeElement);
        if (at < 0 || (e.key !== 'ArrowDown' && e.key !== 'ArrowUp'))
            return;
        e.preventDefault();
        const next = all[at + (e.key === 'ArrowDown' ? 1 : -1)];
        (next || $('search')).focus();
    });
    $('export').addEventListener('click', () => {
        const all = store.list();
        if (all.length)
            download(`pith-conversations-${new Date().toISOString().slice(0, 10)}.json`,
                store.exportText(all));
        else
            toast('There is nothing to export yet');
    });
    $('import').addEventListener('click', () => $('import-file').click());
    $('import-file').addEventListener('change', importFile);
}
