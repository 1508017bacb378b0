// hopper.cpp -- what kernels use that came with compute capability 9.0, in plain C++ by what NVIDIA
// documents (PTX ISA, "mbarrier", "cp.async.bulk.tensor", "wgmma"): barriers in shared memory,
// copies of boxes of a matrix, products of four warps with operands in shared memory, those of one
// of them in lines of either kind, those of the other there or in registers.
//
// Each is done as late as is allowed, so that who does not wait finds nothing: a copy when no
// thread can go on without one, a product when it is waited for; until then its sums are no
// numbers. What is wrong ends the launch: fetching to where something else is still fetched or
// multiplied, bytes that were not promised, threads that wait for what never comes, four warps that
// multiply different things, descriptors of another layout than what is known here, ends that leave
// something under way.
#include "hopper.h"

#include <math.h>
#include <map>
#include <vector>
#include "host.h"
#include "maps.h"

namespace {

enum { WARP = 32, MOST_THREADS = 1024, FOUR_WARPS = 4 * WARP };

struct Barrier {
    uint32_t n, left; /* threads that meet there: in all, in this phase */
    int64_t bytes;    /* that are promised and not there */
    uint32_t phase;
};
struct Copy {
    host_map map;
    uint32_t from[3];
    unsigned char *to;
    uint64_t *barrier;
};
struct Product {
    uint64_t a, b;
    bool bf16, closed; /* its group has ended */
    bool turned;       /* b: lines have numbers of one place of 64 rows */
    bool words;        /* a is not in shared memory: */
    double rows[2][16];
};
struct Thread {
    uint64_t *waits_for; /* a barrier; NULL: none */
    uint32_t parity;
    bool begun; /* sums may be given to products */
    std::vector<Product> products;
    std::vector<float> sums; /* of products under way */
    float *c;
    int n, groups; /* sums; groups that have ended and were not waited for */
    uint64_t all;  /* a hash of all that it has multiplied */
};

std::map<uint64_t *, Barrier> barriers;
std::vector<Copy> copies;
Thread threads[MOST_THREADS];

Thread &self() { return threads[host_thread()]; }

Barrier &barrier_at(uint64_t *b)
{
    auto i = barriers.find(b);
    if (i == barriers.end())
        host_fail("there is no barrier at %p", (void *)b);
    return i->second;
}

void end_phase(Barrier &b)
{
    if (b.left || b.bytes)
        return;
    b.phase++;
    b.left = b.n;
}

/* Of a wait for the phase of a parity: the last phase that has ended has it. */
bool is_open(const Barrier &b, uint32_t parity) { return (b.phase + 1) % 2 == parity; }

/* ---------------------------------------------------------------- copies */

uint64_t box_bytes(const host_map &m) { return 2ull * m.box[0] * m.box[1] * m.box[2]; }

/* Where byte i of a box lies: pieces of 16 bytes of a line of 128 are exchanged by the number of
 * the line in its eight, which addresses tell. */
uint64_t swizzled(uint64_t address) { return address ^ (address >> 7 & 7) << 4; }

unsigned char *shared_at(uint64_t window)
{
    return const_cast<unsigned char *>((const unsigned char *)host_window_base()) + window;
}

template <class F> void each_number(const Copy &c, F f)
{
    uint64_t to = host_window(c.to), n = 0;
    for (uint32_t z = 0; z < c.map.box[2]; z++)
        for (uint32_t y = 0; y < c.map.box[1]; y++)
            for (uint32_t x = 0; x < c.map.box[0]; x++, n += 2) {
                uint64_t at[3] = {(uint64_t)c.from[0] + x, (uint64_t)c.from[1] + y,
                                  (uint64_t)c.from[2] + z};
                bool some = at[0] < c.map.dim[0] && at[1] < c.map.dim[1] && at[2] < c.map.dim[2];
                f(shared_at(swizzled(to + n)),
                  some ? (const unsigned char *)(uintptr_t)(c.map.at + at[0] * 2 +
                                                            at[1] * c.map.step[1] +
                                                            at[2] * c.map.step[2])
                       : NULL);
            }
}

/* Rows of a box that are there, in one piece each. */
void check_rows(const Copy &c)
{
    const host_map &m = c.map;
    for (uint64_t z = c.from[2]; z < c.from[2] + m.box[2] && z < m.dim[2]; z++)
        for (uint64_t y = c.from[1]; y < c.from[1] + m.box[1] && y < m.dim[1]; y++) {
            uint64_t n = c.from[0] < m.dim[0] ? m.dim[0] - c.from[0] : 0;
            n = n < m.box[0] ? n : m.box[0];
            if (n)
                checks_access(HOST_READ,
                              (const void *)(uintptr_t)(m.at + 2ull * c.from[0] + y * m.step[1] +
                                                        z * m.step[2]),
                              2 * n);
        }
}

void bring(const Copy &c)
{
    each_number(c, [](unsigned char *to, const unsigned char *from) {
        to[0] = from ? from[0] : 0;
        to[1] = from ? from[1] : 0;
    });
    checks_copied(c.to, box_bytes(c.map));
    Barrier &b = barriers[c.barrier];
    b.bytes -= (int64_t)box_bytes(c.map);
    end_phase(b);
}

/* ---------------------------------------------------------------- products */

/* Number k of row r of a matrix that a descriptor tells of. */
unsigned char *operand(uint64_t d, uint64_t r, uint64_t k)
{
    uint64_t from = (d & 0x3fff) << 4, eight = (d >> 32 & 0x3fff) << 4;
    return shared_at(swizzled(from + r / 8 * eight + r % 8 * 128 + 2 * k) % HOST_WINDOW);
}

/* The same of one whose lines have a number each of 64 rows. */
unsigned char *operand_turned(uint64_t d, uint64_t r, uint64_t k)
{
    uint64_t from = (d & 0x3fff) << 4, rows = (d >> 16 & 0x3fff) << 4;
    uint64_t eight = (d >> 32 & 0x3fff) << 4;
    return shared_at(
        swizzled(from + r / 64 * rows + k / 8 * eight + k % 8 * 128 + r % 64 * 2) % HOST_WINDOW);
}

void check_turned(uint64_t d, int n)
{
    if (((d & 0x3fff) << 4) % 1024)
        host_fail("it multiplies a turned matrix that does not begin at eight lines");
    for (int i = host_thread() % WARP; i < 16 * n / 8; i += WARP)
        checks_operand(operand_turned(d, (uint64_t)(i / 16 * 8), (uint64_t)(i % 16)), 16);
}

void check_descriptor(uint64_t d)
{
    if (d >> 62 != 1 || d >> 49 & 7)
        host_fail("it multiplies a matrix of a layout (%#llx) that is not known here",
                  (unsigned long long)d);
    if (((d & 0x3fff) << 4) % 1024 >= 128)
        host_fail("it multiplies a matrix that does not begin at a multiple of eight lines");
}

/* Lanes share the work of looking: each row once. */
void check_rows_of_a(uint64_t a)
{
    int l = host_thread() % WARP, w = host_thread() / WARP % 4;
    for (int r = l / 4; l % 4 == 0 && r < 16; r += 8)
        for (uint64_t k = 0; k < 16; k += 8)
            checks_operand(operand(a, (uint64_t)(16 * w + r), k), 16);
}

void check_rows_of_b(uint64_t b, int n)
{
    for (int r = host_thread() % WARP; r < n; r += WARP)
        for (uint64_t k = 0; k < 16; k += 8)
            checks_operand(operand(b, (uint64_t)r, k), 16);
}

double number(uint32_t h, bool bf16) { return bf16 ? host_float(h << 16) : host_half(h); }

void read_row(uint64_t d, uint64_t r, bool bf16, bool turned, double *out)
{
    for (uint64_t k = 0; k < 16; k++) {
        const unsigned char *p = turned ? operand_turned(d, r, k) : operand(d, r, k);
        out[k] = number((uint32_t)(p[0] | p[1] << 8), bf16);
    }
}

/* A lane's sums; an order inside of sixteen is nobody's to rely on. */
void multiply(Thread &t, const Product &p)
{
    uint64_t l = (uint64_t)(&t - threads) % WARP, w = (uint64_t)(&t - threads) / WARP % 4;
    double a[2][16], b[16];
    for (uint64_t i = 0; i < 2; i++)
        if (p.words)
            memcpy(a[i], p.rows[i], sizeof a[i]);
        else
            read_row(p.a, 16 * w + l / 4 + 8 * i, p.bf16, false, a[i]);
    for (uint64_t c = 0; c < (uint64_t)t.n / 2; c++) {
        read_row(p.b, c / 2 * 8 + 2 * (l % 4) + c % 2, p.bf16, p.turned, b);
        for (uint64_t i = 0; i < 2; i++) {
            float &sum = t.sums[c / 2 * 4 + 2 * i + c % 2];
            double s = sum;
            for (int k = 15; k >= 0; k--)
                s += a[i][k] * b[k];
            sum = (float)s;
        }
    }
}

bool overlap(uint64_t a, uint64_t n, uint64_t b, uint64_t m) { return a < b + m && b < a + n; }

/* A product reads there: sixteen numbers of 64 rows, and of `rows`. */
bool reads(const Product &p, uint64_t rows, uint64_t at, uint64_t n)
{
    uint64_t a = (p.a & 0x3fff) << 4, b = (p.b & 0x3fff) << 4, apart = (p.b >> 16 & 0x3fff) << 4;
    bool some = !p.words && overlap(at, n, a, 64 * 128 - 96);
    if (!p.turned)
        return some || overlap(at, n, b, rows * 128 - 96);
    for (uint64_t r = 0; r < rows; r += 64)
        some = some || overlap(at, n, b + r / 64 * apart, 16 * 128);
    return some;
}

/* Products that have not been waited for, of each so many-th thread from one on. */
void check_unread(const void *to, uint64_t n, int first, int step)
{
    for (int i = first; i < MOST_THREADS; i += step)
        for (const Product &p : threads[i].products)
            if (reads(p, (uint64_t)threads[i].n * 2, host_window(to), n))
                host_fail("it fetches into shared memory that is still multiplied");
}

/* One more product of this thread, whose sums are no numbers until it is waited for. */
void begin_product(float *c, int n, const Product &p)
{
    Thread &t = self();
    if (!t.begun)
        host_fail("it multiplies, and its sums have not been given to products");
    if (t.products.empty()) {
        t.c = c;
        t.n = n / 2;
        t.sums.assign(c, c + n / 2);
    }
    if (c != t.c)
        host_fail("products under way have other sums");
    for (int i = 0; i < t.n; i++)
        c[i] = NAN;
    t.products.push_back(p);
    t.all = ((t.all * 31 + p.a) * 31 + p.b) * 31 + p.bf16 + 1;
}

} // namespace

/* ---------------------------------------------------------------- for host.cpp */

void hopper_begin_block()
{
    barriers.clear();
    copies.clear();
    for (Thread &t : threads) {
        t.waits_for = NULL;
        t.begun = false;
        t.products.clear();
        t.groups = 0;
        t.all = 0;
    }
}

bool hopper_goes_on(int thread)
{
    Thread &t = threads[thread];
    if (!t.waits_for || !is_open(barriers[t.waits_for], t.parity))
        return false;
    t.waits_for = NULL;
    return true;
}

void hopper_fetches(const void *to, size_t n)
{
    check_unread(to, n, host_thread() % WARP, WARP);
}

bool hopper_copy_one(unsigned order)
{
    if (copies.empty())
        return false;
    size_t i = order % 3 == 0 ? 0 : order % 3 == 1 ? copies.size() - 1 : copies.size() / 2;
    Copy c = copies[i];
    copies.erase(copies.begin() + (long)i);
    bring(c);
    return true;
}

const char *hopper_end_block(int n)
{
    if (!copies.empty())
        return "a block ends before what it has had fetched is there";
    for (int i = 0; i < n; i++) {
        if (!threads[i].products.empty())
            return "a thread ends before its products are done";
        if (threads[i].all != threads[i / FOUR_WARPS * FOUR_WARPS].all)
            return "four warps multiply different things together";
    }
    return NULL;
}

/* ---------------------------------------------------------------- for kernels */

void host_barrier_make(uint64_t *b, uint32_t n)
{
    if ((uintptr_t)b % 8)
        host_fail("a barrier at %p, which is no multiple of eight", (void *)b);
    checks_access(HOST_WRITE, b, 8);
    barriers[b] = Barrier{n, n, 0, 0};
}

void host_barrier_meet(uint64_t *b, uint32_t bytes)
{
    Barrier &at = barrier_at(b);
    checks_access(HOST_ATOMIC, b, 8);
    if (!at.left)
        host_fail("more threads meet at a barrier than it was made for");
    at.left--;
    at.bytes += bytes;
    end_phase(at);
}

void host_barrier_wait(uint64_t *b, uint32_t parity)
{
    Barrier &at = barrier_at(b);
    checks_access(HOST_ATOMIC, b, 8);
    if (is_open(at, parity))
        return;
    self().waits_for = b;
    self().parity = parity;
    host_wait_for_barrier();
}

void host_fetch_box(void *to, const void *map, uint32_t i0, uint32_t i1, uint32_t i2, uint64_t *b)
{
    Copy c = {{}, {i0, i1, i2}, (unsigned char *)to, b};
    memcpy(&c.map, map, sizeof c.map);
    if (c.map.magic != MAP_MAGIC || c.map.swizzle != MAP_SWIZZLE_128)
        host_fail("it fetches by a map that no driver has made");
    if ((uintptr_t)to % 1024)
        host_fail("it fetches to %p, which is no multiple of eight lines", to);
    if (barrier_at(b).bytes < (int64_t)box_bytes(c.map))
        host_fail("it fetches bytes that were not promised to the barrier");
    check_rows(c);
    check_unread(to, box_bytes(c.map), 0, 1);
    checks_copy(to, box_bytes(c.map));
    memset(to, 0xff, box_bytes(c.map));
    copies.push_back(c);
}

void host_operands_written() { checks_given(); }

void host_products_begin() { self().begun = true; }

void host_multiply64(float *c, int n, uint64_t a, uint64_t b, bool bf16, bool turned)
{
    check_descriptor(a);
    check_descriptor(b);
    check_rows_of_a(a);
    if (turned)
        check_turned(b, n);
    else
        check_rows_of_b(b, n);
    begin_product(c, n, Product{a, b, bf16, false, turned, false, {}});
}

void host_multiply64_rows(float *c, int n, const uint32_t (&a)[4][4], uint64_t b, bool bf16)
{
    int l = host_thread() % 4;
    Product p = {0, b, bf16, false, true, true, {}};
    check_descriptor(b);
    check_turned(b, n);
    for (int x = 0; x < 4; x++)
        for (int i = 0; i < 4; i++)
            for (int e = 0; e < 2; e++)
                p.rows[i % 2][i / 2 * 8 + 2 * (l ^ x) + e] =
                    number(a[x][i] >> (16 * e) & 0xffff, bf16);
    begin_product(c, n, p);
}

void host_products_end()
{
    Thread &t = self();
    t.groups++;
    if (!t.products.empty())
        t.products.back().closed = true;
}

void host_products_wait(int n)
{
    Thread &t = self();
    size_t done = 0;
    for (; t.groups > n && done < t.products.size(); done++) {
        multiply(t, t.products[done]);
        t.groups -= t.products[done].closed;
    }
    t.products.erase(t.products.begin(), t.products.begin() + (long)done);
    if (!t.products.empty() || !done)
        return;
    memcpy(t.c, t.sums.data(), (size_t)t.n * sizeof *t.c);
    t.begun = false;
}
