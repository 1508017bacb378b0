// model.js -- the page about the model and the machine: what is loaded, memory by purpose, speed
// beside what the machine allows, where the work goes.
import { $, bytes, count, el, iconButton, number } from './dom.js';
import { getJson, getText, hasKey } from './api.js';
import { chosen, isThere, query, server } from './server.js';

let refreshing = 0;
let machine = null; // as the server measured it

/** Counters of Prometheus' text for the model chosen. @returns {(name: string) => number} */
function counters(text) {
    const found = new Map();
    for (const line of text.split('\n')) {
        const m = /^([\w:]+)\{([^}]*)\} (\S+)$/.exec(line);
        if (!m || m[2].includes('le="'))
            continue;
        const named = /model_name="((?:[^"\\]|\\.)*)"/.exec(m[2]);
        if (!named || named[1].replace(/\\(.)/g, '$1') === server.model)
            found.set(m[1], (found.get(m[1]) || 0) + Number(m[3]));
    }
    return (name) => found.get(name) || 0;
}

const fact = (name, value, title) => el('div', { class: 'fact', title }, el('dt', { text: name }),
    el('dd', { text: value }));

function facts(model, props) {
    const meta = model.meta || {}, list = [];
    const put = (name, value, title) => value !== undefined && value !== null && value !== '' &&
        list.push(fact(name, String(value), title));
    put('Architecture', props.arch || meta.arch);
    put('Parameters', meta.n_params && count(meta.n_params));
    put('Type of weights', props.type || meta.type);
    put('File', meta.size && bytes(meta.size));
    put('Context here', props.n_ctx && `${number(props.n_ctx)} tokens`);
    put('Trained for', meta.n_ctx_train && `${number(meta.n_ctx_train)} tokens`);
    put('Vocabulary', props.n_vocab && number(props.n_vocab));
    put('At once', props.parallel && `${props.parallel} conversations`);
    put('Chat template', props.chat_template_from && props.chat_template_from.split(':')[0],
        props.chat_template_from);
    put('Instructions', props.isa, 'the instruction set that runs');
    return el('dl', { class: 'facts' }, ...list);
}

const PURPOSES = { weights: 'Weights', cache: 'Context cache', scratch: 'Scratch',
    vocab: 'Vocabulary', meta: 'Descriptions', server: 'Server' };

function memory(props) {
    const all = Object.entries(props.memory || {}).filter(([, n]) => n > 0)
        .sort((a, b) => b[1] - a[1]);
    const total = all.reduce((sum, [, n]) => sum + n, 0);
    if (!total)
        return null;
    const bar = el('div', { class: 'stack', 'aria-hidden': 'true' }),
        legend = el('ul', { class: 'legend' });
    all.forEach(([name, n], i) => {
        const part = el('span', { class: 'm' + (i % 6) });
        part.style.width = 100 * n / total + '%';
        bar.append(part);
        legend.append(el('li', {}, el('i', { class: 'm' + (i % 6) }),
            el('span', { text: PURPOSES[name] || name }), el('b', { text: bytes(n) })));
    });
    return section('Memory', bytes(total), bar, legend);
}

function section(title, figure, ...parts) {
    return el('section', {}, el('div', { class: 'section-head' }, el('h3', { text: title }),
        el('span', { class: 'figure', text: figure || '' })), ...parts);
}

/** Seconds that products and attention take at least: their bytes or their operations, whichever
 * take longer. */
function least(ops) {
    return ops.reduce((sum, o) => {
        const product = o.op.includes('matmul'),
            whole = product && !/^(f32|f16|bf16)$/.test(o.weight);
        if (!product && o.op !== 'attn')
            return sum;
        return sum + Math.max(o.bytes / machine.read_bytes_per_second,
            o.ops / (whole ? machine.int8_ops_per_second : machine.f32_ops_per_second));
    }, 0);
}

/** A figure by its name; with a share (0 to 1) also as a bar. */
function gauge(label, words, share) {
    const fill = el('span', { class: 'fill' });
    fill.style.width = 100 * Math.min(1, share || 0) + '%';
    return el('div', { class: 'gauge' }, el('div', { class: 'gauge-words' },
        el('span', { text: label }), el('b', { text: words })),
        share !== undefined && el('span', { class: 'track', role: 'meter', 'aria-label': label,
            'aria-valuemin': '0', 'aria-valuemax': '100',
            'aria-valuenow': String(Math.round(100 * share)) }, fill));
}

function speed(ops, metric) {
    const gap = metric('vllm:inter_token_latency_seconds_sum'),
        n = metric('vllm:inter_token_latency_seconds_count');
    const seconds = metric('pith:step_seconds_total'), parts = [];
    if (n && gap)
        parts.push(gauge('One conversation, on average', `${(n / gap).toFixed(1)} tokens/s`));
    if (seconds) {
        const tokens = metric('vllm:generation_tokens_total') + metric('vllm:prompt_tokens_total');
        parts.push(gauge('All of them, read and written',
            `${(tokens / seconds).toFixed(1)} tokens/s`));
    }
    if (seconds && machine) {
        const share = least(ops) / seconds;
        parts.push(gauge('Share of what this machine allows', `${Math.round(100 * share)} %`,
            share));
        const reads = (machine.read_bytes_per_second / 1e9).toFixed(1),
            does = number(machine.int8_ops_per_second / 1e9);
        parts.push(el('p', { class: 'help',
            text: `${machine.cpu}, ${machine.threads} thread${machine.threads > 1 ? 's' : ''}: ` +
            `reads ${reads} GB/s and does ${does} Gop/s in integers, by measurement. ` +
            'The share is the least time in which it could do ' +
            'the products and the attention of all steps, by the time they took.' +
            (share > 1
                ? ' More than all: weights as small as these stay in the processor\'s caches, ' +
                    'which are faster than memory.'
                : '') }));
    }
    const cached = metric('vllm:prefix_cache_hits_total'),
        asked = metric('vllm:prefix_cache_queries_total');
    if (asked)
        parts.push(gauge('Prompt tokens found in the cache',
            `${number(cached)} of ${number(asked)}`, cached / asked));
    const waiting = metric('vllm:num_requests_waiting');
    const now =
        `${number(metric('vllm:num_requests_running'))} running` +
        (waiting ? `, ${number(waiting)} waiting` : '');
    return section('Speed', now, ...(parts.length ? parts
        : [el('p',
        { class: 'help', text: 'Nothing has run yet. Say something, then look here again.' })]));
}

function work(ops) {
    const total = ops.reduce((sum, o) => sum + o.bytes, 0);
    if (!total)
        return null;
    const cell = (text, i) => el('td', { class: i > 1 ? 'right' : null, text });
    const rows = [...ops].sort((a, b) => b.bytes - a.bytes).map((o) => {
        const cells = [o.weight || '–', o.kernel + (o.fallback ? ' (fallback)' : ''),
            number(o.runs), bytes(o.bytes), `${(100 * o.bytes / total).toFixed(1)} %`];
        return el('tr', { class: o.fallback ? 'fallback' : null },
            el('th', { scope: 'row', text: o.op }), ...cells.map(cell));
    });
    const heads = ['Op', 'Weights', 'Kernel', 'Runs', 'Bytes',
        'Share'].map((text, i) => el('th', { scope: 'col', class: i > 2 ? 'right' : null, text }));
    const table = el('table', {}, el('thead', {}, el('tr', {}, ...heads)),
        el('tbody', {}, ...rows));
    const slow = ops.filter((o) => o.fallback).length,
        title = `Where the bytes go: ${ops.length} kinds of work`;
    return el('details', { class: 'fold' }, el('summary', {},
        title + (slow ? `, ${slow} of them not as fast as they could be` : '')),
        el('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Kinds of work' },
            table));
}

/** Puts parts in the place of those that differ; what is open stays open, and what has the focus
 * stays. */
function change(body, parts) {
    parts.forEach((fresh, i) => {
        const old = body.children[i];
        if (!old) {
            body.append(fresh);
            return;
        }
        if (old.open)
            fresh.open = true;
        if (old.outerHTML !== fresh.outerHTML && !old.contains(document.activeElement))
            old.replaceWith(fresh);
    });
    while (body.children.length > parts.length)
        body.lastChild.remove();
}

/** Of several models, one that is not in memory. */
function absent(model) {
    if (model.error)
        return el('p', { text: `It could not be loaded: ${model.error}` });
    return el('p', { text: model.state === 'loading' ? 'It is being loaded.'
        : 'It is not loaded. The next message to it loads it.' });
}

function others() {
    const list = server.models.filter((m) => m.id !== server.model);
    return list.length ? section('Other models', String(list.length), el('ul', { class: 'legend' },
        ...list.map((m) => el('li', {}, el('span', { text: m.id }),
            el('b', { text: m.state || '' }))))) : null;
}

async function draw() {
    const body = $('model').querySelector('.dialog-body');
    try {
        server.models = (await getJson('v1/models')).data;
        if (!isThere()) {
            change(body, [absent(chosen()), others()].filter(Boolean));
            return;
        }
        // it is measured while nothing runs
        machine = machine || await getJson('v1/machine' + query()).catch((e) => {
            if (e.code !== 'busy')
                throw e;
            return null;
        });
        const [props, report, metrics] = await Promise.all([getJson('props' + query()),
            getJson('v1/report' + query()), getText('metrics')]);
        const metric = counters(metrics), ops = report.ops || [];
        change(body, [facts(chosen() || {}, props), memory(props), speed(ops, metric), work(ops),
            others(),
            el('p', { class: 'help end' }, `pith ${props.version}. `,
                el('a', { href: 'docs', target: '_blank', rel: 'noopener', text: 'Interface' }),
                ...(hasKey() ? [] : [' · ', el('a', { href: 'metrics', target: '_blank',
                    rel: 'noopener', text: 'Metrics' })]))].filter(Boolean));
    } catch (e) {
        body.replaceChildren(el('div', { class: 'error' }, el('p', { text: e.message }),
            el('button', { type: 'button', class: 'primary', text: 'Try again', onclick: draw })));
    }
}

export function open() {
    const dialog = $('model'),
        title = el('h2', { id: 'model-title', text: server.model || 'Model' });
    dialog.replaceChildren(el('div', { class: 'panel-head' }, title,
        iconButton('close', 'Close', () => dialog.close())),
        el('div', { class: 'dialog-body' },
            el('p', { class: 'help', text: 'Asking the server…' })));
    dialog.showModal();
    clearInterval(refreshing);
    refreshing = setInterval(() => dialog.open ? draw() : clearInterval(refreshing), 3000);
    draw();
}
