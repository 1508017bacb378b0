/* pull_file.c -- one file from its address to its place; pull.h says what is kept meanwhile.
 *
 * What NAME.part is the beginning of is known by its SHA-256, if the server tells one before, and
 * then by nothing else: addresses and tags may change. Without one it is known by its address and
 * the server's tag or date (If-Range). What is not known to be the beginning of what is wanted is
 * thrown away. SHA-256 is nettle's, which is linked in.
 *
 * The architecture stands among the first bytes: a model that this build does not run is refused
 * when they are here. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/models/local.h"
#include "cli/pull/pull.h"

struct transfer {
    struct pull *p;
    struct pull_file *f;
    char path[PATH_MAX], part[PATH_MAX + 8], note[PATH_MAX + 16];
    const char *name; /* of the file, without folders */
    int fd;
    int64_t have, total; /* bytes in the part and of the file; total -1: not known */
    int64_t bytes_after;
    int hashes; /* hash is that of the part's bytes */
    struct sha256_ctx hash;
    char etag[256], modified[64]; /* of what the part is the beginning of */
    struct meter meter;
    int answered, restart,
        code; /* of the answer that is coming in: begun; not what was wanted: anew; refused */
    int64_t look_at; /* bytes of the part that may tell the architecture; -1: it is known */
};

/* ---------------------------------------------------------------- SHA-256 */

/* Takes the first bytes of an open file into a hash. Returns an exit code. */
static int hash_bytes(const char *path, int fd, int64_t bytes, struct sha256_ctx *hash)
{
    enum { STEP = 1 << 20 };
    char *buf = malloc(STEP);
    int code = buf ? CLI_OK : cli_no_memory();
    sha256_init(hash);
    for (int64_t at = 0; at < bytes && !code;) {
        ssize_t got = pread(fd, buf, bytes - at < STEP ? (size_t)(bytes - at) : STEP, at);
        if (interrupt_asked())
            code = cli_say(CLI_INTERRUPTED, "interrupted");
        else if (!got || (got < 0 && errno != EINTR))
            code = cli_say(CLI_SYSTEM, "%s: cannot read: %s", path,
                           got ? strerror(errno) : "it ends early");
        else if (got > 0)
            sha256_update(hash, (size_t)got, (const uint8_t *)buf);
        at += got > 0 ? got : 0;
    }
    free(buf);
    return code;
}

static void hash_text(const struct sha256_ctx *hash, char *out)
{
    struct sha256_ctx copy = *hash;
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(&copy, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

int pull_hash(const char *path, int64_t bytes, char out[65])
{
    struct sha256_ctx hash;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cli_say(CLI_SYSTEM, "%s: cannot read: %s", path, strerror(errno));
    int code = hash_bytes(path, fd, bytes, &hash);
    close(fd);
    if (!code)
        hash_text(&hash, out);
    return code;
}

/* ---------------------------------------------------------------- what the part is the beginning
 * of */

static void read_note(struct transfer *t, int *is_beginning)
{
    json_t *root = json_load_file(t->note, 0, NULL);
    const char *url = json_string_value(json_object_get(root, "url")),
               *etag = json_string_value(json_object_get(root, "etag"));
    const char *modified = json_string_value(json_object_get(root, "modified")),
               *sha256 = json_string_value(json_object_get(root, "sha256"));
    if (*t->f->sha256) {
        *is_beginning = sha256 && !strcmp(sha256, t->f->sha256);
    } else {
        *is_beginning = url && etag && modified && !strcmp(url, t->f->url) && (*etag || *modified);
        snprintf(t->etag, sizeof t->etag, "%s", *is_beginning ? etag : "");
        snprintf(t->modified, sizeof t->modified, "%s", *is_beginning ? modified : "");
    }
    json_decref(root);
}

static int write_note(struct transfer *t)
{
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:I}", "url", t->f->url, "etag", t->etag, "modified",
                  t->modified, "sha256", t->f->sha256, "bytes", (json_int_t)t->total);
    char *text =
        json_dumps(root, JSON_INDENT(1)); /* NULL: what came is no text, and not kept then */
    int why = cli_replace_file(t->note, text ? text : "{}");
    json_decref(root);
    free(text);
    return why ? cli_say(CLI_SYSTEM, "%s: cannot write: %s", t->note, strerror(why)) : CLI_OK;
}

static int start_anew(struct transfer *t)
{
    t->have = 0;
    t->hashes = 1;
    sha256_init(&t->hash);
    if (ftruncate(t->fd, 0))
        return cli_say(CLI_SYSTEM, "%s: cannot write: %s", t->part, strerror(errno));
    return CLI_OK;
}

/* Takes up what an earlier pull has left. */
static int take_up(struct transfer *t)
{
    struct stat sb;
    char bytes[32];
    int is_beginning = 0;
    if (fstat(t->fd, &sb))
        return cli_say(CLI_SYSTEM, "%s: cannot read: %s", t->part, strerror(errno));
    t->have = sb.st_size;
    if (t->have && access(t->note, F_OK)) /* ours have had one since their first byte */
        return cli_say(CLI_INPUT,
                       "%s: is there and was not left by a pull (it has no %s.json beside it); "
                       "move it or remove it",
                       t->part, strrchr(t->part, '/') ? strrchr(t->part, '/') + 1 : t->part);
    if (t->have)
        read_note(t, &is_beginning);
    if (!is_beginning || (t->total >= 0 && t->have > t->total))
        return start_anew(t);
    say_bytes(t->have, bytes, sizeof bytes);
    cli_say(CLI_OK, "%s: going on after the %s that are here", t->name, bytes);
    t->hashes = *t->f->sha256 != 0;
    return t->hashes ? hash_bytes(t->part, t->fd, t->have, &t->hash) : CLI_OK;
}

/* ---------------------------------------------------------------- bytes as they come */

static int check_room(struct transfer *t)
{
    struct statvfs v;
    char want[32], has[32];
    int64_t need = (t->total < 0 ? 0 : t->total - t->have) + t->bytes_after;
    if (fstatvfs(t->fd, &v) || (uint64_t)need <= (uint64_t)v.f_bavail * v.f_frsize)
        return CLI_OK;
    say_bytes(need, want, sizeof want);
    say_bytes((int64_t)((uint64_t)v.f_bavail * v.f_frsize), has, sizeof has);
    return cli_say(CLI_SYSTEM,
                   "%s: %s are still to come and the disk of %s has %s free; make room, or set "
                   "PITH_MODELS to a folder elsewhere",
                   t->name, want, t->part, has);
}

/* The first bytes of an answer: are they what was asked for? Sets t->restart, or t->code with the
 * message out. */
static void begin(struct transfer *t, const struct http_answer *a)
{
    struct pull_file *f = t->f;
    int other = !*f->sha256 && a->status == 206 && *t->etag && *a->etag && strcmp(t->etag, a->etag);
    if (t->have && (other || (a->status == 206 && a->from != t->have))) {
        t->restart = 1;
        return;
    }
    if (f->bytes >= 0 && a->total >= 0 && a->total != f->bytes) {
        t->code =
            cli_say(CLI_INPUT, "%s: the server has %lld bytes for it, and there should be %lld",
                    t->name, (long long)a->total, (long long)f->bytes);
        return;
    }
    if (a->status == 200 && t->have) {
        meter_clear(&t->meter);
        cli_say(CLI_OK, "%s: the server begins at the beginning, and so do we", t->name);
        t->code = start_anew(t);
    }
    if (!*f->sha256)
        snprintf(f->sha256, sizeof f->sha256, "%s", a->sha256);
    if (t->have == 0) {
        snprintf(t->etag, sizeof t->etag, "%s", a->etag);
        snprintf(t->modified, sizeof t->modified, "%s", a->modified);
    }
    t->total = a->total >= 0 ? a->total : a->status == 206 ? t->total : f->bytes;
    if (!t->code)
        t->code = check_room(t);
    if (!t->code)
        t->code = write_note(t);
}

/* The first bytes of a file tell whether this build runs it: what it does not is not fetched. 0: it
 * does not. */
static int look(struct transfer *t)
{
    enum { MOST = 64 << 20 };
    char bytes[32] = "it";
    struct pith_error err = {0};
    size_t n = t->have < MOST ? (size_t)t->have : MOST;
    char *p = malloc(n);
    pith_status st = PITH_OK;
    if (p && pread(t->fd, p, n, 0) == (ssize_t)n)
        st = pith_file_begins(p, n, &err);
    free(p);
    t->look_at = st == PITH_MISSING && n < MOST ? 4 * t->have : -1;
    if (st != PITH_UNSUPPORTED)
        return 1;
    meter_clear(&t->meter);
    if (t->total >= 0)
        say_bytes(t->total, bytes, sizeof bytes);
    cli_say(CLI_INPUT, "%s: %s; the rest of %s is not fetched, but with --any", t->name, err.msg,
            bytes);
    start_anew(t);
    t->code = CLI_INPUT;
    return 0;
}

static int on_data(void *ctx, const struct http_answer *a, const char *p, size_t n)
{
    static const char magic[] = "GGUF";
    struct transfer *t = ctx;
    if (!t->answered)
        begin(t, a);
    t->answered = 1;
    if (t->code || t->restart)
        return 0;
    if (t->have < 4 &&
        memcmp(p, &magic[t->have], n < (size_t)(4 - t->have) ? n : (size_t)(4 - t->have))) {
        meter_clear(&t->meter);
        cli_say(CLI_INPUT,
                "%s: what comes is no GGUF file; is the address that of a page about it?", t->name);
        start_anew(t);
        t->code = CLI_INPUT;
        return 0;
    }
    if (t->total >= 0 && (int64_t)n > t->total - t->have) {
        meter_clear(&t->meter);
        cli_say(CLI_INPUT, "%s: the server sends more than the %lld bytes there should be", t->name,
                (long long)t->total);
        start_anew(t);
        t->code = CLI_INPUT;
        return 0;
    }
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(t->fd, p + done, n - done, t->have + (int64_t)done);
        if (put < 0 && errno != EINTR) {
            meter_clear(&t->meter);
            t->code = cli_say(CLI_SYSTEM, "%s: cannot write: %s", t->part, strerror(errno));
            return 0;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    if (t->hashes)
        sha256_update(&t->hash, n, (const uint8_t *)p);
    t->have += (int64_t)n;
    if (!t->p->o->any && t->look_at >= 0 && t->have >= t->look_at && !look(t))
        return 0;
    meter_show(&t->meter, t->have, t->total);
    return 1;
}

static void on_tick(void *ctx)
{
    struct transfer *t = ctx;
    if (t->answered)
        meter_show(&t->meter, t->have, t->total);
}

/* What the server has to have still for the rest to be of the same file; "" when that shows at the
 * end, or there is nothing to tell it by. */
static const char *tag_of(const struct transfer *t)
{
    if (*t->f->sha256)
        return "";
    return *t->etag && strncmp(t->etag, "W/", 2) ? t->etag : t->modified;
}

/* Asks for what is missing. */
static enum http_end request(struct transfer *t, struct http_answer *a, char *why, size_t cap)
{
    const struct pull *p = t->p;
    const struct http_request q = {.url = t->f->url,
                                   .token = *p->token ? p->token : NULL,
                                   .origin = p->origin,
                                   .from = t->have,
                                   .if_range = tag_of(t),
                                   .timeout = p->o->timeout,
                                   .on_data = on_data,
                                   .on_tick = on_tick,
                                   .ctx = t};
    t->answered = t->restart = 0;
    enum http_end end = http_client_get(p->http, &q, a, why, cap);
    meter_clear(&t->meter);
    return end;
}

/* The whole file, by as many requests as it takes. */
static int fetch(struct transfer *t)
{
    enum { PROGRESS = 1 << 20, PIECES = 32 }; /* who brings so much may break as often as it
                                                 likes; small pieces of a file whose end nobody
                                                 tells */
    int n_tries = 0, n_restarts = 0, n_pieces = 0, code = CLI_OK;
    while (!code && !(t->total >= 0 && t->have == t->total)) {
        struct http_answer a;
        char why[600];
        int64_t before = t->have;
        if (t->have && !*t->f->sha256 && !*tag_of(t) && (code = start_anew(t)))
            break;
        enum http_end end = request(t, &a, why, sizeof why);
        int no_rest = end == HTTP_DONE && a.status == 416 && t->have;
        if (t->code)
            return t->code;
        if (no_rest && t->total < 0 && (a.total == t->have || (n_pieces && a.total < 0)))
            return CLI_OK;
        if ((t->restart || no_rest) && n_restarts++)
            return cli_say(CLI_SYSTEM, "%s: the server does not give the bytes that are asked for",
                           t->name);
        if (t->restart || no_rest) {
            cli_say(CLI_OK, "%s: the rest does not belong to what is here: starting anew", t->name);
            code = start_anew(t);
            continue;
        }
        if (end == HTTP_DONE && (a.status == 200 || a.status == 206)) {
            if (a.status == 200 && !t->answered)
                return cli_say(CLI_INPUT, "%s: the server has an empty file", t->name);
            if (t->total < 0 ? a.status == 200 : t->have == t->total)
                return CLI_OK;
            n_pieces = t->have - before >= PROGRESS ? 1 : n_pieces + 1;
            if (t->total < 0 && t->have > before && n_pieces <= PIECES)
                continue; /* a range, of what nobody says: there may be more */
            if (t->total < 0)
                return cli_say(CLI_SYSTEM, "%s: the server does not tell where it ends", t->name);
            snprintf(why, sizeof why, "the connection ended after %lld of %lld bytes",
                     (long long)t->have, (long long)t->total);
            end = HTTP_BROKEN;
        }
        n_tries = t->have - before >= PROGRESS ? 0 : n_tries;
        pull_again(t->p, &n_tries, t->name, end, &a, why, &code);
    }
    return code;
}

/* ---------------------------------------------------------------- the end of it */

static void throw_away(struct transfer *t)
{
    unlink(t->part);
    unlink(t->note);
    local_prune(t->path);
}

/* Its header, as the engine reads it. What has the right SHA-256 is what was wanted, readable or
 * not. */
static int check_header(struct transfer *t, const char *path)
{
    struct pith_error err = {0};
    int part, n_parts;
    file_stem(t->path, &part, &n_parts);
    pith_file *f = n_parts > 1 ? NULL : pith_file_open(path, &err);
    pith_file_close(f);
    if (f || n_parts > 1)
        return CLI_OK;
    if (!*t->f->sha256) {
        cli_say(CLI_INPUT, "%s: what came is no model and is thrown away: %s", t->name, err.msg);
        throw_away(t);
        return CLI_INPUT;
    }
    return cli_say(
        CLI_INPUT,
        "%s: this is the file that the server has, by its SHA-256, and it is kept, but: %s",
        t->name, err.msg);
}

static int check_hash(struct transfer *t)
{
    char found[65];
    int code = t->hashes ? CLI_OK : hash_bytes(t->part, t->fd, t->have, &t->hash);
    if (code)
        return code;
    hash_text(&t->hash, found);
    if (!strcmp(found, t->f->sha256))
        return CLI_OK;
    throw_away(t);
    return cli_say(CLI_INPUT,
                   "%s: wrong bytes: SHA-256 %s, wanted %s; what came is thrown away: try again",
                   t->name, found, t->f->sha256);
}

/* Onto the disk, checked, under its name. */
static int finish(struct transfer *t)
{
    char dir[PATH_MAX];
    if (fsync(t->fd))
        return cli_say(CLI_SYSTEM, "%s: cannot write: %s", t->part, strerror(errno));
    int code = *t->f->sha256 ? check_hash(t) : CLI_OK;
    if (code)
        return code;
    int header = check_header(t, t->part);
    if (header && !*t->f->sha256)
        return header;
    if (!*t->f->sha256)
        cli_say(CLI_OK, "%s: the server tells no SHA-256; size and header are right", t->name);
    if (rename(t->part, t->path))
        return cli_say(CLI_SYSTEM, "%s: cannot rename: %s", t->part, strerror(errno));
    unlink(t->note);
    snprintf(dir, sizeof dir, "%.*s", (int)(t->name - t->path), t->path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd); /* the name, too; where a folder cannot be synced it is on its way */
        close(fd);
    }
    return header;
}

/* ---------------------------------------------------------------- before it */

/* Is the file here as it should be? 1, 0, or -1 with *code. */
static int is_here(struct transfer *t, int *code)
{
    struct stat sb;
    struct sha256_ctx hash;
    char found[65];
    if (stat(t->path, &sb))
        return 0;
    if (t->f->bytes >= 0 && sb.st_size != t->f->bytes)
        return 0;
    if (!*t->f->sha256) {
        cli_say(CLI_OK, "%s is here already%s", t->name,
                t->f->bytes < 0 ? "; 'pith rm' it first to fetch it anew" : "");
        return 1;
    }
    int fd = open(t->path, O_RDONLY | O_CLOEXEC);
    *code = fd < 0 ? cli_say(CLI_SYSTEM, "%s: cannot open: %s", t->path, strerror(errno))
                   : hash_bytes(t->path, fd, sb.st_size, &hash);
    if (fd >= 0)
        close(fd);
    if (*code)
        return -1;
    hash_text(&hash, found);
    int same = !strcmp(found, t->f->sha256);
    cli_say(CLI_OK,
            same ? "%s is here already, with the right SHA-256"
                 : "%s is here with other bytes than the server has now",
            t->name);
    return same;
}

/* Opens NAME.part for us alone. Another pull of the same file is waited for; then *waited, and
 * whoever it was may have finished it. */
static int lock(struct transfer *t, int *waited)
{
    for (;;) {
        struct stat held, named;
        t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (t->fd < 0)
            return cli_say(CLI_SYSTEM, "%s: cannot open: %s", t->part, strerror(errno));
        int rc = flock(t->fd, LOCK_EX | LOCK_NB);
        if (rc && errno == EWOULDBLOCK) {
            if (!*waited)
                cli_say(CLI_OK, "%s: another pull of it is under way; waiting for that", t->name);
            *waited = 1;
            rc = flock(t->fd, LOCK_EX);
        }
        if (rc && interrupt_asked())
            return cli_say(CLI_INTERRUPTED, "interrupted");
        if (rc && errno != EINTR)
            return cli_say(CLI_SYSTEM, "%s: cannot lock: %s", t->part, strerror(errno));
        /* While we waited the other one may have renamed or removed what we hold. */
        if (!rc && !fstat(t->fd, &held) && !stat(t->part, &named) && held.st_ino == named.st_ino &&
            held.st_dev == named.st_dev)
            return CLI_OK;
        close(t->fd);
        t->fd = -1;
        struct stat sb;
        if (*waited && !stat(t->path, &sb))
            return CLI_OK; /* it is there */
    }
}

static int make_folders(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        if (mkdir(path, 0777) && errno != EEXIST)
            return cli_say(CLI_SYSTEM, "%s: cannot make the folder: %s", path, strerror(errno));
    }
    return CLI_OK;
}

/* With the part open and locked. */
static int fetch_and_check(struct transfer *t)
{
    t->total = t->f->bytes;
    int code = take_up(t);
    if (code)
        return code;
    meter_start(&t->meter, t->name, t->have, t->total);
    code = fetch(t);
    if (!code)
        return finish(t);
    if (t->have == 0)
        throw_away(t);
    else
        cli_say(code, "%s: %lld bytes are kept; the same command goes on from there", t->name,
                (long long)t->have);
    return code;
}

static int fetch_if_need_be(struct transfer *t)
{
    int code = CLI_OK, waited = 0, here = is_here(t, &code);
    if (!here)
        code = make_folders(t->path);
    if (!here && !code)
        code = lock(t, &waited);
    if (waited && !code && (here = is_here(t, &code)) == 0 && t->fd < 0) {
        waited = 0; /* what was waited for is another file */
        code = lock(t, &waited);
    }
    return here || code ? code : fetch_and_check(t);
}

int pull_file(struct pull *p, size_t i, const char *dir, int64_t bytes_after)
{
    struct transfer *t = calloc(1, sizeof *t);
    int code;
    if (!t)
        return cli_no_memory();
    *t = (struct transfer){.p = p, .f = &p->files[i], .fd = -1, .bytes_after = bytes_after};
    int n = snprintf(t->path, sizeof t->path, "%s/%s", dir, t->f->path);
    snprintf(t->part, sizeof t->part, "%s.part", t->path);
    snprintf(t->note, sizeof t->note, "%s.part.json", t->path);
    if (n >= (int)sizeof t->path) {
        code = cli_say(CLI_INPUT, "%.100s...: the path is too long, %d bytes", t->path, n);
    } else {
        t->name = strrchr(t->path, '/') + 1;
        code = fetch_if_need_be(t);
    }
    if (t->fd >= 0)
        close(t->fd);
    free(t);
    return code;
}
