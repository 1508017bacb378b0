// dom.js -- making elements, and writing figures. Text becomes text nodes only: nothing here parses
// HTML.

/**
 * An element. Properties: "class", "text", functions as listeners ("onclick"), true and false as
 * boolean attributes, others as attributes.
 * @param {string} tag
 * @param {Object<string, any>} [props]
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {HTMLElement}
 */
export function el(tag, props = {}, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) {
        if (typeof value === 'function')
            e.addEventListener(name.slice(2), value);
        else if (name === 'text')
            e.textContent = value;
        else if (value === true)
            e.setAttribute(name, '');
        else if (value !== false && value !== null && value !== undefined)
            e.setAttribute(name, value);
    }
    e.append(...children.filter((c) => c || c === ''));
    return e;
}

/** @param {string} id @returns {any} */
export const $ = (id) => document.getElementById(id);

/** One of the page's icons, which are symbols in index.html. */
export function icon(name) {
    const ns = 'http://www.w3.org/2000/svg';
    const svg = document.createElementNS(ns, 'svg');
    const use = document.createElementNS(ns, 'use');
    use.setAttribute('href', '#i-' + name);
    svg.setAttribute('aria-hidden', 'true');
    svg.append(use);
    return svg;
}

/** A button that is an icon; its label is also its tooltip. */
export function iconButton(name, label, onclick, props = {}) {
    return el('button', { type: 'button', class: 'icon', 'aria-label': label, title: label, onclick,
        ...props }, icon(name));
}

const whole = new Intl.NumberFormat('en');
export const number = (n) => whole.format(Math.round(n));

export function bytes(n) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let i = 0;
    for (; n >= 1024 && i < units.length - 1; i++)
        n /= 1024;
    return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

/** 630167424 -> "630 M" */
export function count(n) {
    for (const [unit, size] of [['T', 1e12], ['B', 1e9], ['M', 1e6], ['K', 1e3]])
        if (n >= size)
            return `${n / size >= 100 ? Math.round(n / size) : (n / size).toFixed(1)} ${unit}`;
    return String(n);
}

/** For people who listen: said once, after what is being said. */
export function announce(text) {
    $('live').textContent = text;
}

let hiding = 0;
/** A line that goes by itself; with an action, as "Undo". */
export function toast(text, action, act) {
    const hide = () => {
        $('toast').hidden = true;
    };
    clearTimeout(hiding);
    $('toast').replaceChildren(el('span', { text }));
    if (action)
        $('toast').append(el('button', { type: 'button', class: 'link', text: action,
            onclick: () => { hide(); act(); } }));
    $('toast').hidden = false;
    hiding = setTimeout(hide, action || text.length > 60 ? 8000 : 4000);
}

/** Pages that are not served over TLS, nor from this machine, have no clipboard of the newer
 * kind. */
export async function copy(text) {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch (e) {
        const area = el('textarea', { class: 'sr', 'aria-hidden': 'true' });
        area.value = text;
        document.body.append(area);
        area.select();
        const done = document.execCommand('copy');
        area.remove();
        return done;
    }
}

/** Storage of small things; a browser that keeps nothing forgets them. */
export function remembered(name) {
    try {
        return localStorage.getItem('pith.' + name);
    } catch (e) {
        return null;
    }
}

export function remember(name, value) {
    try {
        if (value === null)
            localStorage.removeItem('pith.' + name);
        else
            localStorage.setItem('pith.' + name, value);
    } catch (e) {
        // Forgotten; store.js tells once that this browser keeps nothing.
    }
}

export function newId() {
    const b = crypto.getRandomValues(new Uint8Array(9));
    // begins with a letter: keys keep their order
    return 'm' + [...b].map((x) => x.toString(16).padStart(2, '0')).join('');
}
