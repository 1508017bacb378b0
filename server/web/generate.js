// generate.js -- one answer being written: the request, its events into the node, its pace.
import { ApiError, postStream } from './api.js';
import { wire } from './tree.js';

/** @param {import('./tree.js').Node} n @param {any[]} deltas */
function takeCalls(n, deltas) {
    n.calls = n.calls || [];
    for (const d of deltas) {
        const i = d.index === undefined ? n.calls.length : d.index;
        while (n.calls.length <= i && i < 128)
            n.calls.push({ id: '', name: '', args: '' });
        const call = n.calls[i], f = d.function || {};
        if (!call)
            continue;
        call.id += d.id || '';
        call.name += f.name || '';
        call.args += f.arguments || '';
    }
}

export class Job {
    /** @param {import('./tree.js').Conversation} c @param {import('./tree.js').Node} n the answer,
     * a child of what it answers */
    constructor(c, n) {
        this.c = c;
        this.n = n;
        this.abort = new AbortController();
        this.began = performance.now();
        this.firstAt = 0;
        this.lastAt = 0;
        this.pieces = 0;
        this.progress = null; // of reading the prompt, if the server tells
    }

    stop() {
        this.abort.abort();
    }

    /** Tokens a second so far; a piece is a token, but for those that hold back a part of a
     * character or of a call. */
    pace() {
        const seconds = (this.lastAt - this.firstAt) / 1000;
        return this.pieces > 1 && seconds > 0 ? (this.pieces - 1) / seconds : 0;
    }

    take(event) {
        const { n } = this, choice = (event.choices || []).find((c) => !c.index);
        if (event.prompt_progress)
            this.progress = event.prompt_progress;
        if (event.usage) {
            const u = event.usage;
            n.usage = { prompt: u.prompt_tokens, made: u.completion_tokens,
                cached: (u.prompt_tokens_details || {}).cached_tokens || 0 };
        }
        if (!choice)
            return;
        const d = choice.delta || {};
        if (d.content || d.reasoning_content || d.tool_calls) {
            this.lastAt = performance.now();
            this.firstAt = this.firstAt || this.lastAt;
            this.pieces++;
        }
        n.content += d.content || '';
        if (d.reasoning_content)
            n.reasoning = (n.reasoning || '') + d.reasoning_content;
        if (d.tool_calls)
            takeCalls(n, d.tool_calls);
        n.finish = choice.finish_reason || n.finish;
    }

    /** Until the answer is whole, was stopped, or failed: the node says which. Never throws.
     * @param {() => void} onChange */
    async run(model, onChange) {
        const { n } = this;
        const body = { ...this.c.params, ...(model ? { model } : {}),
            messages: wire(this.c, n.parent), stream: true,
            stream_options: { include_usage: true, include_progress: true } };
        n.model = model;
        try {
            await postStream('v1/chat/completions', body, this.abort.signal, (event) => {
                this.take(event);
                onChange();
            });
            n.state = 'done';
        } catch (e) {
            n.state = e.name === 'AbortError' ? 'stopped' : 'failed';
            if (n.state === 'failed') {
                n.error = e instanceof ApiError && e.status === 0 && n.content
                    ? 'The connection broke before the answer was whole.' : e.message;
                n.errorCode = e.code;
                this.error = e;
            }
        }
        if (!n.usage && this.progress && this.pieces) // it did not come to its end
            n.usage = { prompt: this.progress.total || 0, made: this.pieces,
                cached: this.progress.cache || 0 };
        if (this.firstAt) {
            n.first = (this.firstAt - this.began) / 1000;
            const seconds = (this.lastAt - this.firstAt) / 1000, made = n.usage ? n.usage.made
                : this.pieces;
            n.pace = made > 1 && seconds > 0 ? (made - 1) / seconds : undefined;
        }
        onChange();
    }
}
