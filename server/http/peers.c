/* peers.c -- the connections that are open, and who goes when there are too many.
 *
 * A connection is unknown until it has made a request that the server would do: with a key where
 * there are keys. What costs nothing to make costs its maker the place:
 *
 *     places [0, most)        unknown ones of one address beyond --max-per-address: its oldest goes
 *                             all taken: one goes of   unknown | idle, known | its body does not
 *                                 come | its answer is not taken
 *     reserve [0, RESERVE)    for who finds no place: /health, /live and their like are answered,
 *         anything else is told 503. Its oldest goes
 *
 * So accepting never stops, and a probe is answered whoever holds the places. One goes by
 * shutdown(): the library's thread, which alone closes descriptors, sees that and ends it. Those
 * that are not late yet (LATE_MS) are let be as long as the reserve has room.
 *
 * Each connection is in one list by what it does, oldest first, and the unknown ones in a list of
 * their address, too: nothing here looks at all connections, but for answers that are not taken, a
 * few times a second. */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "server/http/http.h"
#include "server/json.h"

enum { RESERVE = 32, LATE_MS = 1000, LOOK_MS = 100, ADDRESSES = 1024 };

struct address {
    struct address *next;
    unsigned char bytes[17]; /* family, IPv4 or the first half of IPv6: the rest of it is its
                                owner's to choose */
    int n, n_placed;         /* unknown ones: all, and those that have a place */
    struct queue unknown;
};

struct peers {
    int most, most_unknown; /* the latter of one address */
    int n_seats, n_spare;   /* taken: places, and those in the reserve */
    uint64_t seed;
    int64_t looked; /* clock_now(): at the answers */
    struct queue queue[N_PEER_STATES], spare;
    struct address *table[ADDRESSES];
};

/* ---------------------------------------------------------------- lists */

static void enqueue(struct queue *q, struct peer *p, int i)
{
    struct peer_link *l = &p->link[i];
    l->prev = q->last;
    l->next = NULL;
    if (q->last)
        q->last->link[i].next = p;
    else
        q->first = p;
    q->last = p;
}

static void dequeue(struct queue *q, struct peer *p, int i)
{
    struct peer_link *l = &p->link[i];
    if (l->prev)
        l->prev->link[i].next = l->next;
    else
        q->first = l->next;
    if (l->next)
        l->next->link[i].prev = l->prev;
    else
        q->last = l->prev;
}

enum { BY_STATE, BY_ADDRESS, BY_SPARE };

static struct address **slot_of(struct peers *all, const unsigned char *bytes)
{
    uint64_t h = all->seed;
    for (int i = 0; i < 17; i++)
        h = (h ^ bytes[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return &all->table[h % ADDRESSES];
}

static void address_bytes(const struct sockaddr *a, unsigned char *out)
{
    memset(out, 0, 17);
    out[0] = (unsigned char)(a ? a->sa_family : 0);
    if (a && a->sa_family == AF_INET)
        memcpy(out + 1, &((const struct sockaddr_in *)a)->sin_addr, 4);
    else if (a && a->sa_family == AF_INET6)
        memcpy(out + 1, &((const struct sockaddr_in6 *)a)->sin6_addr,
               IN6_IS_ADDR_V4MAPPED(&((const struct sockaddr_in6 *)a)->sin6_addr) ? 16 : 8);
}

/* NULL: out of memory. */
static struct address *address_of(struct peers *all, const struct sockaddr *a)
{
    unsigned char bytes[17];
    address_bytes(a, bytes);
    struct address **slot = slot_of(all, bytes), *at = *slot;
    while (at && memcmp(at->bytes, bytes, sizeof bytes))
        at = at->next;
    if (!at && (at = calloc(1, sizeof *at))) {
        memcpy(at->bytes, bytes, sizeof bytes);
        at->next = *slot;
        *slot = at;
    }
    return at;
}

static void leave_address(struct peers *all, struct peer *p)
{
    struct address *a = p->address;
    dequeue(&a->unknown, p, BY_ADDRESS);
    a->n_placed -= p->place != PLACE_NONE;
    p->address = NULL;
    if (--a->n)
        return;
    struct address **at = slot_of(all, a->bytes);
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    free(a);
}

static void leave_place(struct peers *all, struct peer *p)
{
    if (p->place == PLACE_SPARE)
        dequeue(&all->spare, p, BY_SPARE);
    all->n_spare -= p->place == PLACE_SPARE;
    all->n_seats -= p->place == PLACE_SEAT;
    if (p->address)
        p->address->n_placed -= p->place != PLACE_NONE;
    p->place = PLACE_NONE;
}

static void take_place(struct peers *all, struct peer *p, enum peer_place place)
{
    leave_place(all, p);
    p->place = place;
    all->n_seats += place == PLACE_SEAT;
    all->n_spare += place == PLACE_SPARE;
    if (p->address)
        p->address->n_placed++;
    if (place != PLACE_SPARE)
        return;
    enqueue(&all->spare, p, BY_SPARE);
}

/* ---------------------------------------------------------------- who goes */

/* Its place is free at once; the descriptor will be soon. */
static int put_out(struct peers *all, struct peer *p)
{
    if (!p)
        return 0;
    leave_place(all, p);
    if (p->fd >= 0)
        shutdown(p->fd, SHUT_RDWR);
    return 1;
}

/* The first of a list that has a place of this kind, and has been where it is since `before`; NULL:
 * there is none. */
static struct peer *oldest(const struct queue *q, int i, enum peer_place place, int64_t before)
{
    struct peer *p = q->first;
    while (p && p->place != place && p->since <= before)
        p = p->link[i].next;
    return p && p->since <= before ? p : NULL;
}

/* Who has an answer, and has not taken any of it for a while. */
static struct peer *reads_nothing(struct peers *all, int64_t now)
{
    if (now - all->looked < (int64_t)LOOK_MS * 1000000)
        return NULL;
    all->looked = now;
    for (struct peer *p = all->queue[PEER_BUSY].first; p; p = p->link[BY_STATE].next)
        if (p->place == PLACE_SEAT && p->x &&
            exchange_unread(p->x, now - (int64_t)LATE_MS * 1000000))
            return p;
    return NULL;
}

/* Puts out the first who is late. 0: nobody is. */
static int make_room(struct peers *all, int64_t now)
{
    static const enum peer_state order[] = {PEER_UNKNOWN, PEER_IDLE, PEER_READING};
    int64_t late = now - (int64_t)LATE_MS * 1000000;
    struct peer *p = NULL;
    for (size_t i = 0; !p && i < sizeof order / sizeof *order; i++)
        p = oldest(&all->queue[order[i]], BY_STATE, PLACE_SEAT, late);
    return put_out(all, p ? p : reads_nothing(all, now));
}

/* Likewise an unknown one, late or not. */
static int put_out_unknown(struct peers *all, int64_t now)
{
    return put_out(all, oldest(&all->queue[PEER_UNKNOWN], BY_STATE, PLACE_SEAT, now));
}

/* ---------------------------------------------------------------- what happens to one */

struct peers *peers_open(int most, int most_unknown)
{
    struct peers *all = calloc(1, sizeof *all);
    if (!all)
        return NULL;
    all->most = most;
    all->most_unknown = most_unknown;
    all->seed = (uint64_t)clock_now() ^ (uint64_t)(uintptr_t)all;
    return all;
}

void peers_close(struct peers *all)
{
    free(all);
}

int peers_descriptors(const struct peers *all)
{
    return all->most + 2 * RESERVE; /* those that have been put out are open for a moment */
}

static void find_place(struct peers *all, struct peer *p)
{
    if (p->address->n_placed >= all->most_unknown &&
        !put_out(all, oldest(&p->address->unknown, BY_ADDRESS, PLACE_SEAT, p->since)))
        put_out(all, oldest(&p->address->unknown, BY_ADDRESS, PLACE_SPARE, p->since));
    if (all->n_seats < all->most || make_room(all, p->since)) {
        take_place(all, p, PLACE_SEAT);
    } else if (all->n_spare < RESERVE) {
        take_place(all, p, PLACE_SPARE);
    } else if (put_out_unknown(all, p->since)) {
        take_place(all, p, PLACE_SEAT);
    } else {
        put_out(all, all->spare.first);
        take_place(all, p, PLACE_SPARE);
    }
}

struct peer *peers_add(struct peers *all, int fd, const struct sockaddr *a)
{
    struct peer *p = calloc(1, sizeof *p);
    struct address *from = p ? address_of(all, a) : NULL;
    if (!from) {
        free(p);
        return NULL;
    }
    p->fd = fd;
    p->since = clock_now();
    p->address = from;
    from->n++;
    enqueue(&from->unknown, p, BY_ADDRESS);
    enqueue(&all->queue[PEER_UNKNOWN], p, BY_STATE);
    find_place(all, p);
    return p;
}

void peers_remove(struct peers *all, struct peer *p)
{
    leave_place(all, p);
    dequeue(&all->queue[p->state], p, BY_STATE);
    if (p->address)
        leave_address(all, p);
    free(p);
}

static void turn(struct peers *all, struct peer *p, enum peer_state state)
{
    dequeue(&all->queue[p->state], p, BY_STATE);
    p->state = state;
    p->since = clock_now();
    enqueue(&all->queue[state], p, BY_STATE);
}

void peers_asks(struct peers *all, struct peer *p, struct exchange *x)
{
    p->x = x;
    turn(all, p, p->address ? PEER_UNKNOWN : PEER_READING);
}

int peers_know(struct peers *all, struct peer *p)
{
    if (p->address)
        leave_address(all, p);
    turn(all, p, PEER_READING);
    if (p->place == PLACE_SPARE &&
        (all->n_seats < all->most || put_out_unknown(all, p->since) || make_room(all, p->since)))
        take_place(all, p, PLACE_SEAT);
    return p->place != PLACE_SPARE;
}

void peers_waits(struct peers *all, struct peer *p)
{
    if (p->state == PEER_READING)
        turn(all, p, PEER_BUSY);
}

void peers_answered(struct peers *all, struct peer *p)
{
    p->x = NULL;
    turn(all, p, p->address ? PEER_UNKNOWN : PEER_IDLE);
}

void peers_expire(struct peers *all, int64_t before)
{
    static const enum peer_state silent[] = {PEER_UNKNOWN, PEER_IDLE};
    for (int i = 0; i < 2; i++)
        for (struct peer *p = all->queue[silent[i]].first; p && p->since < before;
             p = p->link[BY_STATE].next)
            if (p->place != PLACE_NONE && !p->x)
                put_out(all, p);
}
