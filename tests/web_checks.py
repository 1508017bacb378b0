"""web_checks.py -- what a page has to be for everybody, looked at in the page itself: names,
labels, ids, headings, contrasts."""

LOOK = r"""() => {
    const wrong = [];
    const open = document.querySelector('dialog[open]');
    const root = open || document.body;
    const seen = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) &&
        !e.closest('[aria-hidden="true"]') && !e.closest('.sr');
    const say = (what, e) => wrong.push(what + ': ' + e.outerHTML.slice(0, 120));
    const said = (id) => (document.getElementById(id) || {}).textContent || '';
    const text = (ids) => ids.split(' ').map(said).join(' ');
    const by = (e) => e.getAttribute('aria-labelledby');
    const named = (e) => by(e) && text(by(e));
    const labels = (e) => e.labels && [...e.labels].map((l) => l.textContent).join(' ');
    const own = (e) => /^(BUTTON|A|SUMMARY|LEGEND)$/.test(e.tagName) ? e.textContent : '';
    const name = (e) =>
        (e.getAttribute('aria-label') || named(e) || labels(e) || own(e) || '').trim();

    for (const e of root.querySelectorAll('button, a[href], input:not([type=hidden]), textarea, ' +
            'select, summary, [role=meter], [role=region], progress'))
        if (e.checkVisibility() && !name(e))
            say('no name', e);
    for (const e of document.querySelectorAll('dialog[open], nav, aside, article'))
        if (!name(e))
            say('no name', e);
    for (const e of document.querySelectorAll('[aria-controls], [aria-describedby], ' +
            '[aria-labelledby]:not(dialog:not([open]))'))
        for (const a of ['aria-controls', 'aria-describedby', 'aria-labelledby'])
            for (const id of (e.getAttribute(a) || '').split(' ').filter(Boolean))
                if (!document.getElementById(id))
                    say(a + ' leads nowhere', e);
    const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
    ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => wrong.push('id twice: ' + id));
    if (document.querySelectorAll('h1').length !== 1)
        wrong.push('h1 is not one');
    if (!document.documentElement.lang || !document.title)
        wrong.push('no language or title');
    for (const e of document.querySelectorAll('[tabindex]'))
        if (Number(e.getAttribute('tabindex')) > 0)
            say('tabindex', e);
    for (const e of root.querySelectorAll('*'))
        if (seen(e) && e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0 &&
                /auto|scroll/.test(getComputedStyle(e).overflowX) &&
                !/^(TEXTAREA|INPUT)$/.test(e.tagName))
            say('scrolls and takes no focus', e);

    const parse = (c) => {
        const m = c.match(/[\d.]+/g).map(Number);
        return [m[0], m[1], m[2], m.length > 3 ? m[3] : 1];
    };
    const over = (top, under) =>
        [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
    const ground = (e) => {
        const layers = [];
        for (let a = e; a; a = a.parentElement) {
            const c = parse(getComputedStyle(a).backgroundColor);
            if (c[3] > 0)
                layers.push(c);
            if (c[3] === 1)
                break;
        }
        return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
    };
    const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = (c) => {
        const [r, g, b] = c.slice(0, 3).map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (a, b) => {
        const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05);
    };
    const faint = (e) => {
        let o = 1;
        for (let a = e; a; a = a.parentElement)
            o *= Number(getComputedStyle(a).opacity);
        return o;
    };
    const contrast = (e, wanted, pseudo) => {
        const style = getComputedStyle(e, pseudo), under = ground(e), ink = parse(style.color);
        ink[3] *= faint(e);
        const r = ratio(over(ink, under), under);
        if (r < wanted)
            say('contrast ' + r.toFixed(2) + ', wanted ' + wanted, e);
    };
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const e = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !seen(e) || e.closest(':disabled, option'))
            continue;
        const size = parseFloat(getComputedStyle(e).fontSize);
        contrast(e, size >= 24 ? 3 : 4.5);
    }
    for (const e of root.querySelectorAll('input[placeholder], textarea[placeholder]'))
        if (seen(e) && !e.value)
            contrast(e, 4.5, '::placeholder');
    for (const e of root.querySelectorAll('button.icon:not(:disabled), .send:not(:disabled)'))
        if (seen(e))
            contrast(e, 3);
    for (const e of root.querySelectorAll('input:not([type=range]):not([type=checkbox]), textarea'))
        if (seen(e) && !e.closest('.box, .search')) {
            const around = ground(e.parentElement);
            const edge = parse(getComputedStyle(e).borderTopColor);
            const r = Math.max(ratio(edge, around), ratio(ground(e), around));
            if (r < 3)
                say('edge ' + r.toFixed(2) + ', wanted 3', e);
        }
    return [...new Set(wrong)];
}"""


def all_of(page, check, where):
    wrong = page.evaluate(LOOK)
    check("for_everybody_" + where, not wrong, wrong)
