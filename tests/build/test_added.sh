#!/usr/bin/env bash
# test_added.sh -- a sampler is added as ARCHITECTURE.md says: a function and a line. This one looks
# at a window of the history and learns, too: it raises the token that was the third last, by as
# much as it has been told of choices. It stands in the default chain, before top_k.
. "$(dirname "$0")"/../report.sh

compiler=${CC:-gcc}
command -v "$compiler" >/dev/null || skip_all added "$compiler is not installed"
if nm "$B/rooms.a" 2>/dev/null | grep -q -E '__(asan|ubsan|tsan)_'; then
    skip_all added "this build's archive needs the runtime of a sanitizer"
fi
mkdir -p "$dir/run/sample"
cp src/run/sample/* "$dir/run/sample"
sed -i '/^SAMPLER(top_n_sigma,/i\
SAMPLER(echo, W, LEARNS, IS(1, 0), CUTS, 0, "parrot", P(last_n, INT, -1, 1e6, 8)\
        P(much, REAL, 0, LARGE, 0))' "$dir/run/sample/samplers.def"
cat >>"$dir/run/sample/sample_steps.c" <<'END'
void sample_echo(struct pith_sampler *s, struct sample_step *t)
{
    const struct sample_history *h = &s->history;
    int32_t n = t->p[0] < 0 || t->p[0] > h->cap ? h->cap : (int32_t)t->p[0];
    if (t->p[1] == 0 || n < 3 || h->n < 3)
        return;
    candidates_add(&s->list, history_last(h, 2), t->p[1] * t->state[0]);
    candidates_settle(&s->list);
}
void sampled_echo(struct pith_sampler *s, struct sample_step *t, int32_t at)
{
    t->state[0] += candidates_id(&s->list, at) >= 0;
}
END
cat >"$dir/main.c" <<'END'
#include <pith.h>
#include <stdio.h>

int main(void)
{
    static const float logits[64] = {0};
    static const char *const chains[] = {"echo:much=1000", "parrot:much=1000,last_n=3",
                                         "echo:much=1000,last_n=-1"};
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err = {0};
    for (int i = 0; i < 3; i++) {
        int n = 0;
        p.samplers = chains[i];
        pith_sampler *s = pith_sampler_open(64, &p, &err);
        for (int k = 0; s && k < 40; k++) {
            int32_t id = pith_sample(s, logits);
            n += k >= 3 && id == 1 + (k - 3) % 7;
            pith_sampler_accept(s, 1 + k % 7);
        }
        printf("%s: %d\n", chains[i], s ? n : -1);
        pith_sampler_close(s);
    }
    p.samplers = NULL;
    pith_sampler_defaults(NULL, NULL, &p, &err);
    pith_sampler *s = pith_sampler_open(64, &p, &err);
    printf("best: %d\n", s ? pith_sampler_best(s) : -1);
    pith_sampler_close(s);
    p.samplers = "echo;echo;echo";
    s = pith_sampler_open(64, &p, &err);
    printf("%s\n", s ? "three" : err.msg);
    return 0;
}
END
read -ra packages < <(sed -n 's/^PKGS *?= *//p' Makefile)
read -ra libs < <(pkg-config --libs "${packages[@]}")
if ! "$compiler" -std=gnu11 -D_GNU_SOURCE -O1 -Wall -Wextra -Wshadow -Werror -I"$dir" -Isrc \
    -Iinclude -o "$dir/added" "$dir/main.c" "$dir"/run/sample/*.c "$B/shared.a" "$B/rooms.a" \
    "${libs[@]}" -lm -ldl -pthread >"$dir/log" 2>&1; then
    fail added "$(grep -m 1 -E 'error|undefined|multiple' "$dir/log" || tail -n 1 "$dir/log")"
    finish
fi
"$dir/added" >"$out" 2>&1
same added "$(cat "$out")" "echo:much=1000: 37
parrot:much=1000,last_n=3: 37
echo:much=1000,last_n=-1: 37
best: 40
sampler echo is there more than 2 times in a chain; wanted at most that"
finish
