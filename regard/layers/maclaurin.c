/* Linear attention by 3 terms of the Maclaurin series, in single precision: what maclaurin.py does with monomials.py.

   Features of a block of places are made in the cache, a panel of them at a time, with the places side by side:
   f[m][i] = x[a][i] x[b][i], where a last row of ones makes the degrees 0 and 1 look like degree 2. All that is left to do
   is matrix products, and they all go through `product`. Arrays are those of Python: q (N, L, K), k (N, S, K), values
   v (N, S, E) with a last column `last` (N, S) (ones where it is NULL), sums (N, M, E + 1). */

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))

enum {
    R = 128,                            /* places of a block */
    ROW = R + 16,                       /* floats of a row of them; the rest keeps rows apart in the cache */
    GATHER = 48, READ = 64, PULL = 48,  /* features of a panel */
};

/* c (rows, 16) = or += a (rows, n) b (n, 16), rows <= 6: 12 vectors that stay in registers. */
INLINE void tile(const int rows, long n, const float *a, long a_row, long a_step, const float *b, long b_row, float *c,
                 long c_row, const int add) {
    v8 sum[6][2] = {};
    for (long p = 0; p < n; p++, a += a_step, b += b_row) {
        v8 left = load(b), right = load(b + 8);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            sum[r][0] += a[r * a_row] * left;
            sum[r][1] += a[r * a_row] * right;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++, c += c_row) {
        store(c, add ? load(c) + sum[r][0] : sum[r][0]);
        store(c + 8, add ? load(c + 8) + sum[r][1] : sum[r][1]);
    }
}

/* c (m, columns) = or += a (m, n) b (n, columns), with a at any strides, and columns rounded up to 16. */
INLINE void product(long m, long columns, long n, const float *a, long a_row, long a_step, const float *b, long b_row,
                    float *c, long c_row, const int add) {
#define CASE(rows) case rows: tile(rows, n, a + i * a_row, a_row, a_step, b + j, b_row, c + i * c_row + j, c_row, add); break
    for (long j = 0; j < columns; j += 16)
        for (long i = 0; i < m; i += 6)
            switch (MIN(m - i, 6)) { CASE(6); CASE(5); CASE(4); CASE(3); CASE(2); CASE(1); }
#undef CASE
}

/* Sizes, the two axes of each feature, and a thread's room: rows of places, but for u (R, wide) and p (GATHER, wide). */
typedef struct {
    long K, E, M, wide;
    short *a, *b;
    float *x, *dx, *g, *n, *f, *t, *u, *p; /* K + 1, K + 1, E + 1, E + 1, R and R rows */
} Work;

static Work work(long K, long E) {
    Work w = {.K = K, .E = E, .M = 1 + K + K * (K + 1) / 2, .wide = (E + 15) / 16 * 16};
    short *a = w.a = malloc(2 * w.M * sizeof *a), *b = w.b = a + w.M;
    *a++ = *b++ = K;
    for (long i = 0; i < K; i++) *a++ = i, *b++ = K;
    for (long i = 0; i < K; i++)
        for (long j = i; j < K; j++) *a++ = i, *b++ = j;
    w.x = aligned_alloc(64, ((2 * (K + 1) + 2 * (E + 1) + 2 * R) * ROW + (R + GATHER) * w.wide) * sizeof(float));
    w.dx = w.x + (K + 1) * ROW, w.g = w.dx + (K + 1) * ROW, w.n = w.g + (E + 1) * ROW;
    w.f = w.n + (E + 1) * ROW, w.t = w.f + R * ROW, w.u = w.t + R * ROW, w.p = w.u + R * w.wide;
    return w;
}

static void done(Work w) { free(w.a), free(w.x); }

/* to (columns, rows) = factor * from (rows, columns) transposed */
static void turn(long rows, long columns, const float *from, long from_row, float factor, float *to, long to_row) {
    for (long i = 0; i < rows; i += 16) /* as much as the first level of the cache holds of both */
        for (long j = 0; j < columns; j++)
            for (long r = i; r < MIN(rows, i + 16); r++) to[j * to_row + r] = factor * from[r * from_row + j];
}

static void take(Work *w, long n, const float *x, float scale) {
    for (long i = 0; n % 16 && i < w->K; i++) memset(w->x + i * ROW + n / 16 * 16, 0, 16 * sizeof(float));
    turn(n, w->K, x, w->K, scale, w->x, ROW);
    for (long i = 0; i < R; i++) w->x[w->K * ROW + i] = 1;
}

static void take_gradient(Work *w, long n, const float *g, const float *last) {
    for (long i = 0; n % 16 && i < w->E; i++) memset(w->g + i * ROW + n / 16 * 16, 0, 16 * sizeof(float));
    turn(n, w->E, g, w->E, 1, w->g, ROW);
    for (long i = 0; i < R; i++) w->g[w->E * ROW + i] = i >= n ? 0 : last ? last[i] : 1;
}

static void clear(float *x, long rows) { memset(x, 0, rows * ROW * sizeof(float)); }

/* Feature m of the places taken; the sum of it times `end`, if that is given. */
INLINE float feature(const Work *w, long m, long n, const float *end, float *f) {
    const float *a = w->x + w->a[m] * ROW, *b = w->x + w->b[m] * ROW;
    v8 sum = {};
    for (long i = 0; i < n; i += 8) {
        v8 x = load(a + i) * load(b + i);
        store(f + i, x);
        if (end) sum += x * load(end + i);
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* sums += weights * (features of the places taken)^T [v | last] */
static void gather(Work *w, long n, const float *v, const float *last, float *sums) {
    long E = w->E, wide = w->wide;
    float end[R] = {0}, ends[GATHER];
    for (long i = 0; i < n; i++) {
        memcpy(w->u + i * wide, v + i * E, E * sizeof(float));
        for (long e = E; e < wide; e++) w->u[i * wide + e] = 0;
        end[i] = last ? last[i] : 1;
    }
    for (long from = 0; from < w->M; from += GATHER) {
        long count = MIN(GATHER, w->M - from);
        for (long m = 0; m < count; m++) ends[m] = feature(w, from + m, n, end, w->f + m * ROW);
        product(count, wide, n, w->f, ROW, 1, w->u, wide, w->p, wide, 0);
        for (long m = 0; m < count; m++) {
            int square = w->a[from + m] == w->b[from + m] && from + m; /* x_a x_a / 2!, but x_a x_b / (1! 1!) */
            float *s = sums + (from + m) * (E + 1), weight = square ? 0.5f : 1;
            for (long e = 0; e < E; e++) s[e] += weight * w->p[m * wide + e];
            s[E] += weight * ends[m];
        }
    }
}

/* w->n += (features of the places taken) sums */
static void read(Work *w, long n, const float *sums) {
    for (long from = 0; from < w->M; from += READ) {
        long count = MIN(READ, w->M - from);
        for (long m = 0; m < count; m++) feature(w, from + m, n, NULL, w->f + m * ROW);
        product(w->E + 1, n, count, sums + from * (w->E + 1), 1, w->E + 1, w->f, ROW, w->n, ROW, 1);
    }
}

/* w->dx += gradient of the places taken, where w->g is that of (their features) sums */
static void pull(Work *w, long n, const float *sums) {
    for (long from = 0; from < w->M; from += PULL) {
        long count = MIN(PULL, w->M - from);
        product(count, n, w->E + 1, sums + from * (w->E + 1), w->E + 1, 1, w->g, ROW, w->f, ROW, 0);
        for (long m = 0, next; m < count; m = next) { /* those of one first axis, whose row stays in registers */
            long a = w->a[from + m] * ROW;
            for (next = m; next < count && w->a[from + next] * ROW == a;) next++;
            for (long i = 0; i < n; i += 16) {
                v8 x0 = load(w->x + a + i), x1 = load(w->x + a + i + 8), d0 = {}, d1 = {};
                for (long j = m; j < next; j++) {
                    float *xb = w->x + w->b[from + j] * ROW + i, *db = w->dx + w->b[from + j] * ROW + i;
                    v8 f0 = load(w->f + j * ROW + i), f1 = load(w->f + j * ROW + i + 8);
                    d0 += f0 * load(xb), d1 += f1 * load(xb + 8);
                    store(db, load(db) + f0 * x0), store(db + 8, load(db + 8) + f1 * x1);
                }
                store(w->dx + a + i, load(w->dx + a + i) + d0), store(w->dx + a + i + 8, load(w->dx + a + i + 8) + d1);
            }
        }
    }
}

/* The quadratic form inside a chunk, query i taken and key j <= i in k, v, last: w->n += weights [v | last]. */
static void inside(Work *w, int n, const float *k, const float *v, const float *last) {
    for (int i = 0; i < n; i += 16) {
        int keys = MIN(n, i + 16);
        product(keys, 16, w->K, k, w->K, 1, w->x + i, ROW, w->t, 16, 0);
        float *t = w->t, *z = w->n + w->E * ROW + i;
        for (int j = 0; j < keys; j++, t += 16) {
            float end = last ? last[j] : 1;
            for (int c = 0; c < 16; c++) {
                t[c] = j <= i + c ? 1 + t[c] * (1 + t[c] * 0.5f) : 0;
                z[c] += t[c] * end;
            }
        }
        product(w->E, 16, keys, v, 1, w->E, w->t, 16, w->n + i, ROW, 1);
    }
}

/* Its gradients: w->dx += (slopes * w->g [v | last]^T) k of place i taken and places j <= i, or j >= i if `after`, in k, v,
   last; with `after`, also w->n += weights [v | last]. */
static void inside_back(Work *w, int n, const float *k, const float *v, const float *last, float scale, int after) {
    for (int i = 0; i < n; i += 16) {
        int j0 = after ? i : 0, keys = (after ? n : MIN(n, i + 16)) - j0;
        float *t = w->t, *d = w->f, *g = w->g + w->E * ROW + i;
        product(keys, 16, w->K, k + j0 * w->K, w->K, 1, w->x + i, ROW, t, 16, 0);
        product(keys, 16, w->E, v + j0 * w->E, w->E, 1, w->g + i, ROW, d, 16, 0);
        for (int j = j0; j < j0 + keys; j++, t += 16, d += 16) {
            float end = last ? last[j] : 1;
            for (int c = 0; c < 16; c++) {
                int sees = after ? j >= i + c : j <= i + c;
                float s = scale * t[c];
                t[c] = sees ? 1 + s * (1 + s * 0.5f) : 0;
                d[c] = sees ? (1 + s) * scale * (d[c] + g[c] * end) : 0;
            }
        }
        product(w->K, 16, keys, k + j0 * w->K, 1, w->K, w->f, 16, w->dx + i, ROW, 1);
        if (after) product(w->E, 16, keys, v + j0 * w->E, 1, w->E, w->t, 16, w->n + i, ROW, 1);
    }
}

/* w->n, normalised, to where it belongs */
static void give(Work *w, long n, float *context, float *normaliser) {
    float *z = w->n + w->E * ROW;
    memcpy(normaliser, z, n * sizeof(float));
    for (long i = 0; i < n; i++) z[i] = 1 / z[i];
    for (long e = 0; e < w->E; e++)
        for (long i = 0; i < n; i++) w->n[e * ROW + i] *= z[i];
    turn(w->E, n, w->n, ROW, 1, context, w->E);
}

/* What all places of N rows add to `sums`, in `parts` of a row that are added up in their order; with dx, also the gradient
   of x from g = [v | last] and sums `of`. */
static void gather_all(long N, long L, long K, long E, const float *x, float scale, const float *v, const float *last,
                       float *sums, const float *of, float *dx, int threads) {
    long parts = N % threads && N < 4 * threads ? threads : 1, blocks = (L + R - 1) / R;
    long size = (1 + K + K * (K + 1) / 2) * (E + 1);
    float *own = parts > 1 ? calloc(N * (parts - 1) * size, sizeof(float)) : NULL;
    if (!own) parts = 1;
#pragma omp parallel num_threads(threads)
    {
        Work w = work(K, E);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < N * parts; task++) {
            long row = task / parts, part = task % parts, end = MIN(L, blocks * (part + 1) / parts * R);
            float *to = part ? own + (row * (parts - 1) + part - 1) * size : sums + row * size;
            for (long at = blocks * part / parts * R; at < end; at += R) {
                long n = MIN(R, L - at), i = row * L + at;
                take(&w, n, x + i * K, scale);
                if (dx) {
                    take_gradient(&w, n, v + i * E, last + i);
                    clear(w.dx, K + 1);
                    pull(&w, n, of + row * size);
                    turn(K, n, w.dx, ROW, scale, dx + i * K, K);
                }
                gather(&w, n, v + i * E, last ? last + i : NULL, to);
            }
        }
        done(w);
#pragma omp for
        for (long i = 0; i < N * size; i++)
            for (long part = 0; part < parts - 1; part++)
                sums[i] += own[(i / size * (parts - 1) + part) * size + i % size];
    }
    free(own);
}

/* context (N, L, E) and normaliser (N, L); adds the keys to sums. Causal: S = L. */
void maclaurin_forward(long N, long L, long S, long K, long E, const float *q, const float *k, const float *v,
                       const float *last, float scale, float *sums, float *context, float *normaliser, int causal,
                       int threads) {
    long blocks = (L + R - 1) / R, size = (1 + K + K * (K + 1) / 2) * (E + 1), chunk = K < 24 ? R / 2 : R;
    if (!causal) gather_all(N, S, K, E, k, 1, v, last, sums, NULL, NULL, threads);
#pragma omp parallel num_threads(threads)
    {
        Work w = work(K, E);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < (causal ? N : N * blocks); task++) {
            long row = causal ? task : task / blocks, begin = causal ? 0 : task % blocks * R, end = causal ? L : begin + R;
            for (long at = begin; at < MIN(L, end); at += causal ? chunk : R) {
                long n = MIN(causal ? chunk : R, L - at), i = row * L + at;
                take(&w, n, q + i * K, scale);
                clear(w.n, E + 1);
                read(&w, n, sums + row * size);
                if (causal) inside(&w, n, k + i * K, v + i * E, last ? last + i : NULL);
                give(&w, n, context + i * E, normaliser + i);
                if (!causal) continue;
                take(&w, n, k + i * K, 1);
                gather(&w, n, v + i * E, last ? last + i : NULL, sums + row * size);
            }
        }
        done(w);
    }
}

/* Gradients dq, dk, dv from those of the numerators, [g | g_last], and of the sums at the end, d_sums, which becomes that
   of the sums at the start. `sums` are those at the end, or if causal those at the start, and then they are used up. */
void maclaurin_backward(long N, long L, long S, long K, long E, const float *q, const float *k, const float *v,
                        const float *last, const float *g, const float *g_last, float scale, float *sums,
                        float *d_sums, float *dq, float *dk, float *dv, int causal, int threads) {
    long blocks = (S + R - 1) / R, size = (1 + K + K * (K + 1) / 2) * (E + 1), chunk = K < 24 ? R / 2 : R;
    if (!causal) gather_all(N, L, K, E, q, scale, g, g_last, d_sums, sums, dq, threads);
#pragma omp parallel num_threads(threads)
    {
        Work w = work(K, E);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < (causal ? N : N * blocks); task++) {
            long row = causal ? task : task / blocks;
            for (long at = 0; causal && at < L; at += chunk) { /* queries in order, with the sums before them */
                long n = MIN(chunk, L - at), i = row * L + at;
                take(&w, n, q + i * K, scale);
                take_gradient(&w, n, g + i * E, g_last + i);
                clear(w.dx, K + 1);
                pull(&w, n, sums + row * size);
                inside_back(&w, n, k + i * K, v + i * E, last ? last + i : NULL, 1, 0);
                turn(K, n, w.dx, ROW, scale, dq + i * K, K);
                take(&w, n, k + i * K, 1);
                gather(&w, n, v + i * E, last ? last + i : NULL, sums + row * size);
            }
            /* keys in reverse order, with the gradients of the sums after them */
            long begin = causal ? 0 : task % blocks * R, step = causal ? chunk : R;
            for (long at = causal ? (S - 1) / step * step : begin; at >= begin; at -= step) {
                long n = MIN(step, S - at), i = row * S + at;
                take(&w, n, k + i * K, 1);
                take_gradient(&w, n, v + i * E, last ? last + i : NULL);
                clear(w.dx, K + 1);
                clear(w.n, E + 1);
                pull(&w, n, d_sums + row * size);
                read(&w, n, d_sums + row * size);
                if (causal) inside_back(&w, n, q + i * K, g + i * E, g_last + i, scale, 1);
                turn(K, n, w.dx, ROW, 1, dk + i * K, K);
                turn(E, n, w.n, ROW, 1, dv + i * E, E);
                if (!causal) continue;
                take(&w, n, q + i * K, scale);
                gather(&w, n, g + i * E, g_last + i, d_sums + row * size);
            }
        }
        done(w);
    }
}
