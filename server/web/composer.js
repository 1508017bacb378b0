// composer.js -- where messages are written; below it the pace of the answer and how much of the
// context is used.
import { $, icon, number } from './dom.js';
import { postJson } from './api.js';
import * as chat from './chat.js';
import { asked as modelAsked, isThere } from './server.js';
import { used } from './tree.js';

let limit = 0; // tokens of the context
let draft = 0, asked = '', asking = 0;

/** @param {number} n tokens of the context, 0: not known */
export function setLimit(n) {
    limit = n;
    showMeter();
}

function grow() {
    const box = $('box');
    box.style.height = 'auto';
    box.style.height = Math.min(box.scrollHeight, innerHeight * 0.4) + 'px';
}

function submit() {
    const text = $('box').value;
    if (!text.trim() || chat.job())
        return;
    $('box').value = '';
    draft = 0;
    grow();
    chat.send(text);
}

/** Tokens of the draft, counted by the server when the writer pauses. */
function countDraft() {
    const text = $('box').value;
    clearTimeout(asking);
    if (!text.trim() || !isThere()) { // counting does not load a model
        draft = 0;
        showMeter();
        return;
    }
    asking = setTimeout(async () => {
        asked = text;
        try {
            const { count } = await postJson('tokenize', { content: text,
                ...(modelAsked() ? { model: modelAsked() } : {}) });
            if (asked === text && $('box').value === text)
                draft = count;
        } catch (e) {
            draft = 0; // a figure is missing, nothing else; sending tells what is wrong
        }
        showMeter();
    }, 400);
}

function showMeter() {
    const job = chat.job(), before = used(chat.conversation()) || 0;
    const now = draft + (job && job.progress ? job.progress.total + job.pieces : before),
        meter = $('meter'), bar = $('meter-bar');
    meter.hidden = !limit || !now;
    if (meter.hidden)
        return;
    const share = Math.min(1, now / limit);
    $('meter-text').textContent = `${number(now)} of ${number(limit)} tokens`;
    bar.firstElementChild.style.width = 100 * share + '%';
    bar.setAttribute('aria-valuemax', String(limit));
    bar.setAttribute('aria-valuenow', String(Math.min(now, limit)));
    meter.classList.toggle('near', share > 0.8);
    meter.classList.toggle('over', now >= limit);
}

function showPace() {
    const job = chat.job(), pace = $('pace');
    if (!job)
        pace.textContent = '';
    else if (job.firstAt)
        pace.textContent = job.pace() ? `${job.pace().toFixed(1)} tokens/s` : 'Writing…';
    else if (job.progress && job.progress.total)
        pace.textContent =
            `Reading: ${number(job.progress.processed || 0)} of ` +
            `${number(job.progress.total)} tokens`;
    else
        pace.textContent = isThere() ? 'Reading…' : 'Waiting until the model is loaded…';
}

/** After anything changed in the conversation. */
export function update() {
    const busy = Boolean(chat.job()), send = $('send');
    if (send.classList.contains('stop') !== busy) {
        send.classList.toggle('stop', busy);
        send.setAttribute('aria-label', busy ? 'Stop' : 'Send');
        send.title = busy ? 'Stop (Esc)' : '';
        send.replaceChildren(icon(busy ? 'stop' : 'send'));
    }
    send.disabled = !busy && !$('box').value.trim();
    showPace();
    showMeter();
}

export function focus() {
    $('box').focus();
}

export function write(text) {
    $('box').value = text;
    grow();
    update();
    countDraft();
    focus();
}

export function setup() {
    const box = $('box');
    box.addEventListener('input', () => {
        grow();
        update();
        countDraft();
    });
    box.addEventListener('keydown', (e) => {
        if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
            e.preventDefault();
            submit();
        } else if (e.key === 'ArrowUp' && !box.value && !e.isComposing) {
            e.preventDefault();
            chat.editLast();
        }
    });
    $('composer').addEventListener('submit', (e) => {
        e.preventDefault();
        if (!chat.stop())
            submit();
    });
}
