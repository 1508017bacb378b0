// dialogs.js -- the list of shortcuts, and the question for an API key.
import { $, el, iconButton } from './dom.js';
import { setKey } from './api.js';

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const MOD = MAC ? '⌘' : 'Ctrl';

const SHORTCUTS = [
    ['Send the message', 'Enter'],
    ['New line', 'Shift', 'Enter'],
    ['Stop the answer', 'Esc'],
    ['Edit the last question (in an empty box)', '↑'],
    ['Write the last answer again', MOD, 'Shift', 'Enter'],
    ['Other version of the last message', 'Alt', '← →'],
    ['New conversation', MOD, 'Shift', 'O'],
    ['Search', MOD, 'K'],
    ['Settings', MOD, ','],
    ['Message box', '/'],
    ['This list', '?'],
];

function row([what, ...keys]) {
    return el('div', {}, el('dt', { text: what }), el('dd', {},
        ...keys.map((k) => el('kbd', { text: k }))));
}

export function shortcuts() {
    const dialog = $('keys');
    dialog.replaceChildren(el('div', { class: 'panel-head' },
        el('h2', { id: 'keys-title', text: 'Keyboard' }), iconButton('close', 'Close',
        () => dialog.close())),
        el('dl', { class: 'keys' }, ...SHORTCUTS.map(row)));
    dialog.showModal();
}

/** @param {string} why @param {() => void} then */
export function login(why, then) {
    const dialog = $('login');
    if (dialog.open)
        return;
    const input = el('input', { id: 'key', type: 'password', autocomplete: 'current-password',
        required: true, 'aria-describedby': 'key-help' });
    const keep = el('input', { id: 'key-keep', type: 'checkbox', class: 'switch' });
    dialog.replaceChildren(el('div', { class: 'panel-head' },
        el('h2', { id: 'login-title', text: 'API key' })),
        el('form', { method: 'dialog', class: 'login', onsubmit: () => {
            setKey(input.value.trim(), keep.checked);
            then();
        } }, el('p', { text: why }), el('label', { for: 'key', text: 'Key' }), input,
        el('p', { class: 'help', id: 'key-help',
            text: 'It is sent to this server only, and kept until this tab is closed.' }),
        el('label', { class: 'check' }, keep, 'Keep it in this browser'),
        el('div', { class: 'row' }, el('button', { class: 'primary', text: 'Go on' }))));
    dialog.showModal();
    input.focus();
}
