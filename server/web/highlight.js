// highlight.js -- modest colours for code: comments, strings, numbers, words of the language, names
// that are called. One regular expression per family of languages, from left to right; what it does
// not know is plain text.
import { el } from './dom.js';

const C_COMMENT = '\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)';
const HASH_COMMENT = '#[^\\n]*';
const STRINGS = '"(?:[^"\\\\\\n]|\\\\[\\s\\S])*"?|\'(?:[^\'\\\\\\n]|\\\\[\\s\\S])*\'?';
const NUMBER =
    '\\b(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)' +
    '[a-zA-Z]{0,3}\\b';

const words = (text) => `\\b(?:${text.trim().split(/\s+/).join('|')})\\b`;
const family = (comment, string, keyword, flags = 'g') =>
    new RegExp(`(?<c>${comment})|(?<s>${string})|(?<n>${NUMBER})|(?<k>${keyword})|` +
        '(?<f>\\b[A-Za-z_]\\w*(?=\\())', flags);

const C_WORDS =
    `auto bool break case char class const constexpr continue default delete do double else enum
    extern false float for friend goto if inline int long namespace new noexcept nullptr NULL
    operator private protected public register restrict return short signed sizeof static struct
    switch template this throw true try catch typedef typename union unsigned using virtual void
    volatile while size_t uint8_t int32_t uint32_t int64_t uint64_t include define ifdef ifndef
    endif`;
const JS_WORDS =
    `abstract as async await break case catch class const continue debugger default delete do else
    enum export extends false finally for from function get if implements import in instanceof
    interface let new null of private protected public readonly return set static super switch this
    throw true try type typeof undefined var void while yield boolean number string any`;
const MORE_WORDS =
    `abstract as async await bool boolean break byte case catch chan class const continue crate data
    def defer do double dyn else enum extends extern false final finally float fn for foreach func
    fun go if impl implements import in int interface internal let long loop map match mod move mut
    namespace new nil null object out override package private protected pub public range readonly
    ref return sealed self short static string struct super switch synchronized this throw throws
    trait true try type typeof unsafe use using val var virtual void where while yield`;

const FAMILIES = {
    c: family(C_COMMENT, STRINGS, words(C_WORDS)),
    js: family(C_COMMENT, '`(?:[^`\\\\]|\\\\[\\s\\S])*`?|' + STRINGS, words(JS_WORDS)),
    more: family(C_COMMENT, '`[^`]*`?|' + STRINGS, words(MORE_WORDS)),
    python: family(HASH_COMMENT,
        '[rbfu]{0,2}(?:"""[\\s\\S]*?(?:"""|$)|\'\'\'[\\s\\S]*?(?:\'\'\'|$))|[rbfu]{0,2}(?:' +
        STRINGS + ')', words(`and as assert async await break class continue def del elif else
            except False finally for from global if import in is lambda match case None nonlocal
            not or pass raise return self True try while with yield`)),
    ruby: family(HASH_COMMENT, STRINGS,
        words(`alias and begin break case class def defined do else elsif end ensure false for
            if in module next nil not or redo rescue retry return self super then true undef
            unless until when while yield require local function repeat`)),
    lua: family('--\\[\\[[\\s\\S]*?(?:\\]\\]|$)|--[^\\n]*', STRINGS,
        words(`and break do else elseif end false for function goto if in local nil not or
            repeat return then true until while`)),
    sh: family('(?<![$\\w])#[^\\n]*', '"(?:[^"\\\\]|\\\\[\\s\\S])*"?|\'[^\']*\'?',
        words(`if then else elif fi for while until do done case esac in function return exit
            local export readonly set unset echo cd source sudo`) + '|\\$\\{?\\w+\\}?'),
    sql: family('--[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)', STRINGS,
        words(`select from where and or not in is null as join left right inner outer full cross
            on group by order having limit offset insert into values update set delete create
            table index view drop alter add primary key foreign references unique default
            distinct union all case when then else end with exists between like asc desc int
            integer text varchar boolean date`),
            'gi'),
    json: family('\\/\\/[^\\n]*', '"(?:[^"\\\\\\n]|\\\\.)*"?', words('true false null')),
    conf: family('[#;][^\\n]*', STRINGS, '^\\s*[\\w.-]+(?=\\s*[:=])|^\\[[^\\]\\n]*\\]|' +
        words('true false yes no null'), 'gm'),
    css: family('\\/\\*[\\s\\S]*?(?:\\*\\/|$)', STRINGS,
        '@[\\w-]+|(?<![\\w-])--[\\w-]+|(?<![\\w-])[\\w-]+(?=\\s*:[^:{]*[;}\\n])'),
    html: family('<!--[\\s\\S]*?(?:-->|$)', STRINGS,
        '<\\/?[\\w:-]+|\\/?>|(?<![\\w:-])[\\w:-]+(?==)'),
};

const NAMES = {
    c: 'c h cpp c++ cc cxx hpp objc cuda glsl opencl arduino',
        js: 'js javascript ts typescript jsx tsx mjs node',
    more: 'java go golang rust rs kotlin kt swift scala cs csharp c# php dart zig groovy',
    python: 'python py python3 gdscript', ruby: 'ruby rb elixir julia crystal',
    lua: 'lua', sh: 'sh bash shell zsh fish console terminal dockerfile makefile make',
    sql: 'sql sqlite postgresql mysql', json: 'json json5 jsonc jsonl',
    conf: 'yaml yml toml ini conf properties', css: 'css scss less', html: 'html xml svg vue htm',
};
const BY_NAME = new Map(Object.entries(NAMES).flatMap(([f, list]) => list.split(' ')
    .map((n) => [n, FAMILIES[f]])));

function diff(text) {
    const kinds = { '+': 't-s', '-': 't-d', '@': 't-k' };
    return text.split(/(?<=\n)/).map((line) => (kinds[line[0]]
        ? el('span', { class: kinds[line[0]], text: line }) : line));
}

/** @param {string} text @param {string} language as after a code fence
 * @returns {(Node|string)[]} */
export function highlight(text, language) {
    const name = language.toLowerCase(), rules = BY_NAME.get(name);
    if (name === 'diff' || name === 'patch')
        return diff(text);
    if (!rules || text.length > 50000)
        return [text];
    const out = [];
    let at = 0;
    for (const m of text.matchAll(rules)) {
        if (!m[0])
            continue;
        const kind = Object.keys(m.groups).find((g) => m.groups[g] !== undefined);
        if (m.index > at)
            out.push(text.slice(at, m.index));
        out.push(el('span', { class: 't-' + kind, text: m[0] }));
        at = m.index + m[0].length;
    }
    out.push(text.slice(at));
    return out;
}
