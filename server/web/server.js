// server.js -- what the page knows of its server: whether it is there, which models it has, how
// large their context is. When the server is away or loads its model, it is asked again until it
// answers.
import { ApiError, getJson } from './api.js';
import { remember, remembered } from './dom.js';

const AGAIN_MS = 1500;

/** @type {{ models: any[], model: string, state: 'unknown'|'ready'|'loading'|'away'|'locked',
 *   words: string, progress: number|null, since: number }} */
export const server = { models: [], model: '', state: 'unknown', words: '', progress: null,
    since: Date.now() };

let onChange = () => {};
let timer = 0;

function become(state, words, progress = null) {
    if (server.state !== state)
        server.since = Date.now();
    Object.assign(server, { state, words, progress });
    onChange();
}

/** @param {() => void} f is called when anything here changes */
export function setup(f) {
    onChange = f;
}

/** An error that may be about the server, and not about one request. */
export function heard(e) {
    if (!(e instanceof ApiError))
        return;
    if (e.status === 401)
        become('locked', e.message);
    else if (e.status === 0 || (e.status === 503 && e.code === 'model_loading'))
        connect();
}

/** Asks what there is, and again while there is no answer. */
export async function connect() {
    clearTimeout(timer);
    try {
        const { data } = await getJson('v1/models');
        server.models = data;
        const kept = remembered('model');
        server.model = (data.find((m) => m.id === server.model) ||
            data.find((m) => m.id === kept) || data[0] || { id: '' }).id;
        become('ready', '');
    } catch (e) {
        if (e.status === 401) {
            become('locked', e.message);
            return;
        }
        const loading = e.status === 503;
        become(loading ? 'loading' : 'away', e.message, typeof e.progress === 'number' ? e.progress
            : null);
        timer = setTimeout(connect, AGAIN_MS);
    }
}

export function choose(id) {
    server.model = id;
    remember('model', id);
    onChange();
}

/** The model chosen, as /v1/models has it. */
export const chosen = () => server.models.find((m) => m.id === server.model);

/** Whether the model chosen is in memory, as far as is known; one of several may have to be loaded
 * first. */
export const isThere = () => !chosen() || !chosen().state || chosen().state === 'ready';

/** What is sent as "model": nothing when there is only one. */
export const asked = () => (server.models.length > 1 ? server.model : '');

export const query = () => (server.models.length > 1 ? '?model=' + encodeURIComponent(server.model)
    : '');
