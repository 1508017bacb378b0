// app.js -- puts the parts together: first load, what the banner says, colours, drawers, shortcuts.
import { $, announce, el, icon, remember, remembered, toast } from './dom.js';
import { getJson } from './api.js';
import * as chat from './chat.js';
import * as composer from './composer.js';
import * as dialogs from './dialogs.js';
import * as model from './model.js';
import * as server from './server.js';
import * as settings from './settings.js';
import * as sidebar from './sidebar.js';
import * as store from './store.js';

const IDEAS = [
    'Explain how a hash table works, with a short example in Python',
    'Write a haiku about the sea in autumn',
    'Compare TCP and UDP in a small table',
    'Plan a week of simple dinners for two',
];

/* ---------------------------------------------------------------- the server's state */

/** Asked for at each try: what has the focus stays, so only what differs is made again. */
function banner(text, action, act, progress) {
    const b = $('banner');
    b.hidden = !text;
    if (text && b.firstChild && b.firstChild.textContent === text)
        return;
    b.replaceChildren();
    if (!text)
        return;
    b.append(el('span', { text }));
    if (progress !== undefined) {
        const bar = el('progress', { max: '1', 'aria-label': 'Loading',
            ...(progress === null ? {} : { value: progress }) });
        b.append(bar);
    }
    if (action)
        b.append(el('button', { type: 'button', class: 'link', text: action, onclick: act }));
}

let told = '', said = '';
async function serverChanged() {
    const { state, words, progress, models, model: name } = server.server;
    if (state === 'loading') {
        const seconds = Math.round((Date.now() - server.server.since) / 1000);
        const far = progress ? `, ${Math.round(100 * progress)} %` : seconds > 1
            ? `, ${seconds} s so far` : '';
        banner(`The model is being loaded${far}. You can write already.`, '', null, progress);
    } else if (state === 'away') {
        banner(words + ' The page tries again by itself.', 'Try now', server.connect);
    } else if (state === 'locked') {
        banner(words, 'Enter it', () => dialogs.login(words, server.connect));
        dialogs.login(words, server.connect);
    } else {
        banner('');
    }
    if (said !== state && !$('banner').hidden)
        announce($('banner').firstChild.textContent); // once, not at each try
    said = state;
    $('model-name').textContent = name;
    $('model-name').hidden = !name || models.length > 1;
    $('models').hidden = models.length < 2;
    $('models').replaceChildren(...models.map((m) => el('option',
        { value: m.id, text: m.id, selected: m.id === name })));
    const now = state + name + server.isThere();
    if (state === 'ready' && told !== now) {
        told = now;
        const own = server.chosen() || {};
        composer.setLimit(own.max_model_len || 0);
        const props = server.isThere() ? await getJson('props' + server.query()).catch(() => null)
            : null;
        if (props && props.n_ctx)
            composer.setLimit(props.n_ctx);
        if (props && props.generates === false) {
            banner('This model makes embeddings; it cannot chat.');
            announce($('banner').textContent);
        }
    }
    if (state !== 'ready')
        told = '';
}

/* ---------------------------------------------------------------- colours and drawers */

const THEMES = ['auto', 'light', 'dark'];

function setTheme(name) {
    remember('theme', name === 'auto' ? null : name);
    if (name === 'auto')
        delete document.documentElement.dataset.theme;
    else
        document.documentElement.dataset.theme = name;
    const label = { auto: 'Colours: as the system', light: 'Colours: light',
        dark: 'Colours: dark' }[name];
    $('theme').setAttribute('aria-label', label);
    $('theme').title = label;
}

/** What a drawer covers takes no focus. */
function cover() {
    document.querySelector('.main').inert = getComputedStyle($('scrim')).display !== 'none';
}

function drawer(open) {
    $('sidebar').classList.toggle('open', open);
    $('scrim').hidden = !open && $('settings').hidden;
    cover();
    $('open-sidebar').setAttribute('aria-expanded', String(open));
    if (open)
        $('new').focus();
    else if ($('sidebar').contains(document.activeElement))
        $('open-sidebar').focus();
}

function panel(open) {
    $('settings').hidden = !open;
    $('open-settings').setAttribute('aria-expanded', String(open));
    $('scrim').hidden = !open;
    cover();
    if (open)
        settings.draw().then(() => $('f-system').focus());
    else
        $('open-settings').focus();
}

const narrow = () => matchMedia('(max-width: 860px)').matches;

function fresh() {
    chat.show();
    settle();
    composer.focus();
}

/** After another conversation is shown. */
function settle() {
    sidebar.list();
    if (narrow())
        drawer(false);
    if (!$('settings').hidden)
        settings.draw();
    const c = chat.conversation();
    $('open-settings').classList.toggle('set', Boolean(c.system.trim() ||
        Object.keys(c.params).length));
    remember('last', c.id);
}

/* ---------------------------------------------------------------- keys */

function shortcut(e) {
    const mod = e.ctrlKey || e.metaKey,
        typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    const key = e.key.toLowerCase();
    if (document.querySelector('dialog[open]'))
        return false;
    if (key === 'escape') {
        if (!$('settings').hidden)
            panel(false);
        else if ($('sidebar').classList.contains('open'))
            drawer(false);
        else
            return chat.stop();
        return true;
    }
    if (mod && key === 'k') {
        if (narrow())
            drawer(true);
        $('search').focus();
        $('search').select();
        return true;
    }
    if (mod && e.shiftKey && key === 'o')
        return fresh(), true;
    if (mod && e.shiftKey && key === 'enter')
        return chat.regenerate(), true;
    if (mod && key === ',')
        return panel($('settings').hidden), true;
    if (e.altKey && (key === 'arrowleft' || key === 'arrowright') &&
        !(typing && document.activeElement.value))
        return chat.step(key === 'arrowleft' ? -1 : 1), true;
    if (typing || mod || e.altKey)
        return false;
    if (key === '?')
        return dialogs.shortcuts(), true;
    if (key === '/')
        return composer.focus(), true;
    return false;
}

/* ---------------------------------------------------------------- start */

function wireUp() {
    $('new').addEventListener('click', fresh);
    $('open-model').addEventListener('click', model.open);
    $('model-name').addEventListener('click', model.open);
    $('models').addEventListener('change', () => server.choose($('models').value));
    $('open-keys').addEventListener('click', dialogs.shortcuts);
    $('theme').addEventListener('click',
        () => setTheme(THEMES[(THEMES.indexOf(remembered('theme') || 'auto') + 1) % 3]));
    $('open-sidebar').addEventListener('click', () => drawer(true));
    $('close-sidebar').addEventListener('click', () => drawer(false));
    $('open-settings').addEventListener('click', () => panel($('settings').hidden));
    $('scrim').addEventListener('click', () => ($('settings').hidden ? drawer(false)
        : panel(false)));
    addEventListener('resize', cover);
    addEventListener('keydown', (e) => {
        if (!e.defaultPrevented && shortcut(e))
            e.preventDefault();
    });
    for (const d of document.querySelectorAll('dialog'))
        d.addEventListener('click', (e) => {
            if (e.target === d && d.id !== 'login')
                d.close(); // beside it
        });
    const idea = (text) => el('button', { type: 'button', onclick: () => composer.write(text) },
        el('span', { text }), icon('right'));
    $('ideas').replaceChildren(...IDEAS.map((text) => el('li', {}, idea(text))));
}

async function start() {
    setTheme(remembered('theme') || 'auto');
    wireUp();
    await store.open((text) => {
        toast(text);
        announce(text);
    });
    chat.setup({
        changed: composer.update,
        listed: sidebar.list,
        refused: server.heard,
        answered: () => server.isThere() || server.connect(),
        model: server.asked,
        defaults: settings.defaults,
    });
    chat.show(store.get(remembered('last')));
    composer.setup();
    sidebar.setup(settle);
    settle();
    server.setup(serverChanged);
    server.connect();
    if (!narrow())
        composer.focus();
}

start();
