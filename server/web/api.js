// api.js -- requests to the server this page came from, and what its errors mean in words.
import { number, remembered, remember } from './dom.js';

let key = sessionKey() || remembered('key') || '';

function sessionKey() {
    try {
        return sessionStorage.getItem('pith.key');
    } catch (e) {
        return null;
    }
}

/** @param {string} text @param {boolean} keep beyond this tab */
export function setKey(text, keep) {
    key = text;
    remember('key', keep ? text : null);
    try {
        sessionStorage.setItem('pith.key', text);
    } catch (e) {
        // It lives as long as the page.
    }
}

/** Whether requests send a key, which a link cannot. */
export function hasKey() {
    return key !== '';
}

/** A refusal or a failure: `status` 0 is a server that did not answer. */
export class ApiError extends Error {
    /** @param {number} status @param {any} error the server's error object @param {number}
     * [retryAfter] seconds */
    constructor(status, error, retryAfter) {
        super(words(status, error || {}, retryAfter));
        this.status = status;
        this.code = (error && error.code) || '';
        this.retryAfter = retryAfter || 0;
        this.progress = error && error.progress;
    }
}

function words(status, error, retryAfter) {
    if (status === 0)
        return `The server at ${location.host} does not answer. Is pith serve still running?`;
    if (error.code === 'context_length_exceeded' && error.n_ctx)
        return `This conversation has ${number(error.n_prompt)} tokens and the model's context ` +
            `holds ${number(error.n_ctx)}: ${number(error.n_over)} too many. Shorten or edit a ` +
            'message, begin a new conversation, or start the server with a larger --ctx.';
    if (status === 401)
        return 'This server wants an API key.';
    if (status === 429)
        return 'The server is busy: its queue is full.' +
            (retryAfter ? ` It asks to wait ${number(retryAfter)} s.` : '');
    if (status === 503 && error.code === 'model_loading')
        return 'The model is still being loaded.';
    return error.message || `The server answered with status ${status}.`;
}

async function request(path, options = {}) {
    const headers = { ...(key ? { Authorization: 'Bearer ' + key } : {}),
        ...(options.body ? { 'Content-Type': 'application/json' } : {}) };
    let r;
    try {
        r = await fetch(path, { ...options, headers, cache: 'no-store' });
    } catch (e) {
        throw e.name === 'AbortError' ? e : new ApiError(0, null);
    }
    if (r.ok)
        return r;
    const body = await r.json().catch(() => null);
    throw new ApiError(r.status, body && body.error, Number(r.headers.get('Retry-After')) || 0);
}

export async function getJson(path) {
    return (await request(path)).json();
}

export async function getText(path) {
    return (await request(path)).text();
}

export async function postJson(path, body, signal) {
    return (await request(path, { method: 'POST', body: JSON.stringify(body), signal })).json();
}

/**
 * POST with an answer of server-sent events.
 * @param {string} path
 * @param {any} body
 * @param {AbortSignal} signal
 * @param {(event: any) => void} onEvent
 */
export async function postStream(path, body, signal, onEvent) {
    const r = await request(path, { method: 'POST', body: JSON.stringify(body), signal });
    const reader = r.body.getReader(), decoder = new TextDecoder();
    let rest = '', whole = false;
    for (;;) {
        let part;
        try {
            part = await reader.read();
        } catch (e) {
            throw e.name === 'AbortError' ? e : new ApiError(0, null);
        }
        rest += decoder.decode(part.value || new Uint8Array(), { stream: !part.done });
        const lines = rest.split('\n');
        rest = lines.pop();
        for (const line of lines) {
            if (!line.startsWith('data: '))
                continue; // comments keep the connection awake
            if (line === 'data: [DONE]') {
                whole = true;
                continue;
            }
            const event = JSON.parse(line.slice(6));
            if (event.error)
                throw new ApiError(event.error.status || 500, event.error);
            onEvent(event);
        }
        if (part.done)
            break;
    }
    if (!whole)
        throw new ApiError(0, null);
}
