// settings.js -- system prompt and sampling of a conversation. The fields, their ranges, defaults
// and explanations are the server's own (GET /docs), so a sampler that is added there appears here.
// A field that is left alone is not sent.
import { $, el, iconButton, remember, remembered } from './dom.js';
import { getJson } from './api.js';
import * as chat from './chat.js';
import { query } from './server.js';
import * as store from './store.js';
import { NOT_SET, readParams } from './tree.js';

// Behind the samplers that the server puts in front.
const FRONT = ['max_tokens', 'seed', 'stop'];
let docs = null;

/** What new conversations begin with: what was set last. */
export function defaults() {
    try {
        const kept = JSON.parse(remembered('defaults') || '{}');
        return { system: typeof kept.system === 'string' ? kept.system : '',
            params: readParams(kept.params) };
    } catch (e) {
        return { system: '', params: {} };
    }
}

function changed() {
    const c = chat.conversation();
    remember('defaults', JSON.stringify({ system: c.system, params: c.params }));
    if (Object.keys(c.nodes).length)
        store.save(c);
    $('open-settings').classList.toggle('set',
        Boolean(c.system.trim() || Object.keys(c.params).length));
}

function set(name, value) {
    const c = chat.conversation();
    if (value === undefined)
        delete c.params[name];
    else
        c.params[name] = value;
    changed();
}

/** The frame of a field: name, explanation, the way back to the default. */
function frame(name, field, control, clear) {
    const id = 'f-' + name, reset = iconButton('close', `${name}: back to the default`, () => {
        clear();
        set(name, undefined);
        mark();
    }, { class: 'icon tiny' });
    const box = el('div', { class: 'field' }, el('div', { class: 'field-head' },
        el('label', { for: id, text: name }), reset), control,
        el('p', { class: 'help', id: id + '-help', text: field.description || '' }),
        el('p', { class: 'wrong', id: id + '-wrong', role: 'alert', hidden: true }));
    const mark = () => {
        reset.hidden = !(name in chat.conversation().params);
    };
    mark();
    /** @param {string} text what is wrong, '' for nothing */
    const wrong = (text) => {
        const p = box.querySelector('.wrong');
        p.textContent = text;
        p.hidden = !text;
        box.querySelector('#' + id).setAttribute('aria-invalid', String(Boolean(text)));
        mark();
    };
    return { box, wrong };
}

function range(field) {
    const { minimum: lo, maximum: hi } = field;
    const kind = field.type === 'integer' ? 'a whole number' : 'a number';
    return `wanted ${kind} from ${lo} to ${hi > 1e15 ? '9.2e18' : hi}`;
}

function numberField(name, field) {
    const whole = field.type === 'integer', now = chat.conversation().params[name];
    // Where a slider ends is the server's word, too; fields with a range of at most 2 need none.
    const end = field['x-slider'], top = end || field.maximum,
        low = end ? Math.max(0, field.minimum) : field.minimum;
    const input = el('input', { type: 'text', inputmode: whole ? 'numeric' : 'decimal',
        id: 'f-' + name, autocomplete: 'off',
        placeholder: field.default === undefined ? /model's own/.test(field.description)
        ? 'the model’s own' : 'unlimited' : String(field.default),
        'aria-describedby': `f-${name}-help f-${name}-wrong` });
    const slider = top - low <= 2 || end
        ? el('input', { type: 'range', min: low, max: top, step: whole ? '1' : '0.01',
            'aria-label': name, tabindex: '-1' }) : null;
    const follow = (v) => {
        if (slider)
            slider.value = v === undefined ? field.default === undefined ? low : field.default : v;
    };
    const { box, wrong } = frame(name, field, el('div', { class: slider ? 'pair' : '' }, slider,
            input), () => {
        input.value = '';
        follow(undefined);
        wrong('');
    });
    input.value = now === undefined ? '' : String(now);
    follow(now);
    input.addEventListener('input', () => {
        const text = input.value.trim(), v = Number(text);
        if (text && (!Number.isFinite(v) || (whole && !Number.isInteger(v)) || v < field.minimum ||
                v > field.maximum)) {
            wrong(range(field));
            return;
        }
        set(name, text ? v : undefined);
        follow(text ? v : undefined);
        wrong('');
    });
    if (slider)
        slider.addEventListener('input', () => {
            input.value = slider.value;
            set(name, Number(slider.value));
            wrong('');
        });
    return box;
}

function boolField(name, field) {
    const input = el('input', { type: 'checkbox', id: 'f-' + name, class: 'switch',
        'aria-describedby': `f-${name}-help` });
    const { box, wrong } = frame(name, field, input, () => {
        input.checked = field.default === true;
    });
    const now = chat.conversation().params[name];
    input.checked = now === undefined ? field.default === true : now;
    input.addEventListener('change', () => {
        set(name, input.checked);
        wrong('');
    });
    return box;
}

/** Texts, and JSON for what has parts. */
function textField(name, field) {
    const json = field.type === 'array' || field.type === 'object' || (!field.type && !field.anyOf),
        list = Boolean(field.anyOf);
    const area = el('textarea', { id: 'f-' + name, rows: '2', spellcheck: 'false', class: 'mono',
        'aria-describedby': `f-${name}-help f-${name}-wrong`,
        placeholder: json ? (field.type === 'array' ? '[ … ]' : '{ … }') : list ? 'one a line'
        : '' });
    const { box, wrong } = frame(name, field, area, () => {
        area.value = '';
        wrong('');
    });
    const now = chat.conversation().params[name];
    area.value = now === undefined ? '' : json ? JSON.stringify(now, null, 1) : list
        ? [].concat(now).join('\n') : String(now);
    area.addEventListener('input', () => {
        const text = area.value;
        try {
            set(name, !text.trim() ? undefined : json ? JSON.parse(text) : list
                ? text.split('\n').filter(Boolean) : text);
            wrong('');
        } catch (e) {
            wrong(`This is not JSON yet: ${e.message}`);
        }
    });
    return box;
}

function control(name, field) {
    if (field.type === 'integer' || field.type === 'number')
        return numberField(name, field);
    return field.type === 'boolean' ? boolField(name, field) : textField(name, field);
}

async function load() {
    const endpoint = (await getJson('docs')).endpoints
        .find((e) => e.path === '/v1/chat/completions');
    docs = (endpoint && endpoint.fields) || {};
}

/** The fields, with what this conversation's model is sampled by where nobody says otherwise. */
async function fields() {
    if (!docs)
        await load();
    // it may not be loaded yet
    const { sampling } = await getJson('props' + query()).catch(() => ({}));
    const all = { ...docs };
    for (const [name, value] of Object.entries(sampling || {}))
        if (all[name])
            all[name] = { ...all[name], default: value };
    return all;
}

/** Draws the panel for the conversation shown. */
export async function draw() {
    const panel = $('settings'), c = chat.conversation();
    const system = el('textarea', { id: 'f-system', rows: '4',
            placeholder: 'How the model should answer', oninput: () => {
        c.system = system.value;
        changed();
    } });
    system.value = c.system;
    const more = el('div', { class: 'fields' });
    panel.replaceChildren(
        el('div', { class: 'panel-head' }, el('h2', { text: 'Settings' }),
            iconButton('close', 'Close the settings', () => $('open-settings').click())),
        el('div', { class: 'field' }, el('div', { class: 'field-head' },
            el('label', { for: 'f-system', text: 'System prompt' })), system,
            el('p', { class: 'help',
                text: 'Said before this conversation. ' +
                    'New conversations begin with the same settings.' })),
        more);
    changed();
    let all;
    try {
        all = await fields();
    } catch (e) {
        more.replaceChildren(el('p', { class: 'wrong', role: 'alert',
            text: `The list of settings could not be read: ${e.message}` }));
        return;
    }
    const names = Object.keys(all).filter((n) => !NOT_SET.has(n) &&
        !/^(accepted, ignored|not supported)/.test(all[n].description));
    const first = [...names.filter((n) => all[n]['x-front']),
        ...FRONT.filter((n) => names.includes(n))], rest = names.filter((n) => !first.includes(n));
    const parts = rest.filter((n) => !['integer', 'number', 'boolean'].includes(all[n].type)),
        samplers = rest.filter((n) => !parts.includes(n));
    const section = (title, list) => el('details', { class: 'fold',
        open: list.some((n) => n in c.params) }, el('summary', {}, title),
        ...list.map((n) => control(n, all[n])));
    more.replaceChildren(...first.map((n) => control(n, all[n])),
        section('More samplers', samplers), section('Tools and forms of answers', parts),
        el('button', { type: 'button', class: 'plain', text: 'All back to defaults',
                onclick: () => {
            c.params = {};
            changed();
            draw();
        } }));
}
