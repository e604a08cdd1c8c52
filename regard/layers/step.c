/* One decoder step through all blocks of a Transformer decoder, and the logits of the next token, in single precision:
   `DecoderBlock.step` without the cost of a hundred calls of torch on small vectors.

   Arrays are those of Python:
   x (rows, D), which is overwritten;
   cache (2 N, rows, H, C, K) and memory (2 N, rows, H, S, K), keys then values of each of N blocks;
   cache_position (rows), the position of the cache that each row writes;
   mask (rows, S), False where masked;
   rotation (rows, K / 2, 2), cos and sin of rotary positions, or NULL;
   weights (rows, H, S), the last block's weights over the memory;
   logits (rows, V).

   Each thread takes a part of the rows through all blocks. Few rows stay as they are, (rows, width): reading the weights
   takes longest. Many are kept in panels of 16 rows, (panels, width, 16), so that a vector has one number of each of
   eight rows, and a weight that was read serves all of them. Attention reads rows in both cases. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

/* Rows that stay rows; rows of a panel; outputs that are computed together, and whose rows are written together. */
enum { FEW = 8, PANEL = 16, TILE = 6, BLOCK = 8 * TILE };
enum { ENOUGH = 4000000 };              /* products for which another thread pays: a tenth of a millisecond */

typedef struct { const float *weight, *bias; } Layer;

typedef struct {
    Layer self_attention_norm, qkv, self_attention_out;
    Layer cross_attention_norm, query, cross_attention_out;
    Layer feed_forward_norm, up, down;
} Block;

typedef struct {
    long rows, D, H, K, ffn_width, capacity, S, V;
    int pre, gelu;
    float eps;
} Sizes;

/* The rows of one thread. */
typedef struct {
    long rows, panels; /* panels: 0 if the rows stay rows */
} Part;

INLINE long padded(Part p) { return p.panels ? p.panels * PANEL : p.rows; }

INLINE float sum(v8 x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

INLINE float dot(long n, const float *a, const float *b) {
    v8 left = {}, right = {};
    long i = 0;
    for (; i + 16 <= n; i += 16) {
        left += load(a + i) * load(b + i);
        right += load(a + i + 8) * load(b + i + 8);
    }
    float rest = sum(left + right);
    for (; i < n; i++) rest += a[i] * b[i];
    return rest;
}

/* The error function, within 5e-7, by a quotient of polynomials of x^2 (fitted on [0, 3.9], beyond which it is 1). */
INLINE float error_function(float x) {
    static const float above[] = {1.12837903f, 0.191932395f, 0.0529656211f, 0.00383645628f, 0.000287439363f, 2.05034767e-06f};
    static const float below[] = {1.0f, 0.503427439f, 0.114754494f, 0.0151083802f, 0.00118161626f, 3.82293846e-05f};
    x = x > 3.9f ? 3.9f : x < -3.9f ? -3.9f : x;
    float square = x * x, p = above[5], q = below[5];
    for (int n = 4; n >= 0; n--) p = p * square + above[n], q = q * square + below[n];
    return x * p / q;
}

static void activate(const Sizes *z, long count, float *x) {
    if (z->gelu)
        for (long i = 0; i < count; i++) x[i] *= 0.5f * (1 + error_function(x[i] * (float)M_SQRT1_2));
    else
        for (long i = 0; i < count; i++) x[i] = x[i] > 0 ? x[i] : 0;
}

/* y (rows, outputs) = x (rows, inputs) weight^T + bias. Memory-bound, so the next weights are prefetched. */
static void linear_of_rows(long rows, long inputs, long outputs, const float *x, Layer l, float *y) {
    long o = 0, whole = inputs - inputs % 8;
    for (; o + 4 <= outputs; o += 4) {
        const float *w = l.weight + o * inputs;
        for (long i = 0; i < 4 * inputs; i += 16) __builtin_prefetch(w + 8 * inputs + i);
        for (long r = 0; r < rows; r++) {
            const float *in = x + r * inputs;
            v8 s[4] = {};
            for (long i = 0; i < whole; i += 8)
                for (int k = 0; k < 4; k++) s[k] += load(w + k * inputs + i) * load(in + i);
            for (int k = 0; k < 4; k++) {
                float rest = sum(s[k]) + l.bias[o + k];
                for (long i = whole; i < inputs; i++) rest += w[k * inputs + i] * in[i];
                y[r * outputs + o + k] = rest;
            }
        }
    }
    for (; o < outputs; o++)
        for (long r = 0; r < rows; r++)
            y[r * outputs + o] = dot(inputs, l.weight + o * inputs, x + r * inputs) + l.bias[o];
}

/* The products of `count` outputs, at most TILE, with one panel. */
INLINE void product_tile(int count, long inputs, const float *x, const float *weight, const float *bias, v8 s[TILE][2]) {
    for (int k = 0; k < count; k++) s[k][0] = s[k][1] = bias[k] + (v8){};
    for (long i = 0; i < inputs; i++) {
        v8 left = load(x + i * PANEL), right = load(x + i * PANEL + 8);
        for (int k = 0; k < count; k++) {
            float w = weight[k * inputs + i];
            s[k][0] += w * left;
            s[k][1] += w * right;
        }
    }
}

INLINE void store_tile(int count, v8 s[TILE][2], float *out) {
    for (int k = 0; k < count; k++) {
        store(out + k * PANEL, s[k][0]);
        store(out + k * PANEL + 8, s[k][1]);
    }
}

/* `width` numbers of each row of panel number p, into rows that are `stride` numbers apart. */
static void to_rows(Part part, long p, long width, const float *panel, long stride, float *rows) {
    long first = p * PANEL, count = part.rows - first < PANEL ? part.rows - first : PANEL;
    for (long r = 0; r < count; r++)
        for (long i = 0; i < width; i++) rows[(first + r) * stride + i] = panel[i * PANEL + r];
}

/* y = weight x + bias, into panels or into rows. A block of outputs is computed for one panel after the other, so that its
   weights stay in the cache; then its rows are written, as pieces of so many numbers. */
static void linear_of_panels(Part part, long inputs, long outputs, const float *x, Layer l, float *y, int as_rows) {
    float block[BLOCK * PANEL];
    v8 s[TILE][2];
    for (long start = 0; start < outputs; start += BLOCK) {
        long count = outputs - start < BLOCK ? outputs - start : BLOCK;
        for (long p = 0; p < part.panels; p++) {
            const float *panel = x + p * inputs * PANEL;
            float *out = as_rows ? block : y + (p * outputs + start) * PANEL;
            long o = 0;
            for (; o + TILE <= count; o += TILE) {
                product_tile(TILE, inputs, panel, l.weight + (start + o) * inputs, l.bias + start + o, s);
                store_tile(TILE, s, out + o * PANEL);
            }
            for (; o < count; o++) {
                product_tile(1, inputs, panel, l.weight + (start + o) * inputs, l.bias + start + o, s);
                store_tile(1, s, out + o * PANEL);
            }
            if (as_rows) to_rows(part, p, count, block, outputs, y + start);
        }
    }
}

/* y = weight x + bias. The result has the layout of the part, or is in rows if `as_rows`. */
static void linear(Part part, long inputs, long outputs, const float *x, Layer l, float *y, int as_rows) {
    if (part.panels) linear_of_panels(part, inputs, outputs, x, l, y, as_rows);
    else linear_of_rows(part.rows, inputs, outputs, x, l, y);
}

/* Rows (rows, width) in the layout of the part, in `panels` if that has panels. */
static const float *from_rows(Part part, long width, const float *rows, float *panels) {
    if (!part.panels) return rows;
    memset(panels, 0, padded(part) * width * sizeof(float));
    for (long r = 0; r < part.rows; r++)
        for (long i = 0; i < width; i++) panels[(r / PANEL * width + i) * PANEL + r % PANEL] = rows[r * width + i];
    return panels;
}

static void layer_norm_of_rows(const Sizes *z, long rows, const float *x, Layer l, float *y) {
    for (long r = 0; r < rows; r++, x += z->D, y += z->D) {
        float mean = 0, spread = 0;
        for (long i = 0; i < z->D; i++) mean += x[i];
        mean /= z->D;
        for (long i = 0; i < z->D; i++) spread += (x[i] - mean) * (x[i] - mean);
        spread = 1 / sqrtf(spread / z->D + z->eps);
        for (long i = 0; i < z->D; i++) y[i] = (x[i] - mean) * spread * l.weight[i] + l.bias[i];
    }
}

/* The same for half of the rows of one panel. */
static void layer_norm_of_eight(const Sizes *z, const float *x, Layer l, float *y) {
    v8 mean = {}, spread = {};
    for (long i = 0; i < z->D; i++) mean += load(x + i * PANEL);
    mean /= (float)z->D;
    for (long i = 0; i < z->D; i++) {
        v8 distance = load(x + i * PANEL) - mean;
        spread += distance * distance;
    }
    for (int r = 0; r < 8; r++) spread[r] = 1 / sqrtf(spread[r] / z->D + z->eps);
    for (long i = 0; i < z->D; i++) store(y + i * PANEL, (load(x + i * PANEL) - mean) * spread * l.weight[i] + l.bias[i]);
}

static void layer_norm(const Sizes *z, Part part, const float *x, Layer l, float *y) {
    if (!part.panels) layer_norm_of_rows(z, part.rows, x, l, y);
    for (long p = 0; p < part.panels; p++)
        for (long half = 0; half < PANEL; half += 8)
            layer_norm_of_eight(z, x + p * z->D * PANEL + half, l, y + p * z->D * PANEL + half);
}

/* The input of a sublayer, and the residual connection after its output y. */
static const float *before_sublayer(const Sizes *z, Part part, const float *x, Layer norm, float *y) {
    if (!z->pre) return x;
    layer_norm(z, part, x, norm, y);
    return y;
}

static void after_sublayer(const Sizes *z, Part part, float *x, const float *y, Layer norm) {
    for (long i = 0; i < padded(part) * z->D; i++) x[i] += y[i];
    if (!z->pre) layer_norm(z, part, x, norm, x);
}

/* softmax(q keys^T / sqrt(K)) values of one head */
static void attend(long K, long places, const float *q, const float *keys, const float *values, const char *mask, float *weights,
                 float *context) {
    float most = -INFINITY, total = 0, scale = 1 / sqrtf(K);
    for (long s = 0; s < places; s++) {
        weights[s] = mask && !mask[s] ? -INFINITY : scale * dot(K, q, keys + s * K);
        if (weights[s] > most) most = weights[s];
    }
    for (long s = 0; s < places; s++) total += weights[s] = expf(weights[s] - most);
    memset(context, 0, K * sizeof(float));
    for (long s = 0; s < places; s++) {
        weights[s] /= total;
        for (long i = 0; i < K; i++) context[i] += weights[s] * values[s * K + i];
    }
}

static void rotate(long K, float *x, const float *rotation) {
    for (long i = 0; i < K; i += 2) {
        float a = x[i], b = x[i + 1];
        x[i] = a * rotation[i] - b * rotation[i + 1];
        x[i + 1] = a * rotation[i + 1] + b * rotation[i];
    }
}

/* The arrays of one part. Of the cache and the memory, the first row of the part in the first block. */
typedef struct {
    float *x, *cache;
    const long *cache_position;
    const float *memory;
    const char *mask;
    const float *rotation;
    float *weights, *logits;
} Arrays;

/* The step of one part. `output` is the final norm (its weight is NULL if there is none) and the output layer. */
static int step_of_part(const Sizes *z, Part part, long count, const Block *blocks, const Layer *output, Arrays a) {
    long D = z->D, H = z->H, K = z->K, S = z->S, C = z->capacity, all = padded(part);
    long widest = 3 * H * K > z->ffn_width ? 3 * H * K : z->ffn_width;
    float *buffer = malloc((all * (3 * D + widest + 2 * H * K) + C) * sizeof(float));
    if (!buffer) return 1;
    float *normed = buffer, *y = normed + all * D, *panels = y + all * D, *wide = panels + all * D;
    float *context = wide + all * widest, *context_panels = context + all * H * K;
    float *self_weights = context_panels + all * H * K; /* weights of self-attention, not returned */
    float *x = part.panels ? (float *)from_rows(part, D, a.x, panels) : a.x;
    for (const Block *b = blocks; b < blocks + count; b++) {
        float *keys = a.cache, *values = a.cache + z->rows * H * C * K;
        linear(part, D, 3 * H * K, before_sublayer(z, part, x, b->self_attention_norm, normed), b->qkv, wide, 1);
        for (long r = 0; r < part.rows; r++)
            for (long h = 0; h < H; h++) {
                float *q = wide + (3 * r * H + h) * K, *k = q + H * K, *v = k + H * K;
                long start = (r * H + h) * C * K, position = a.cache_position[r];
                if (a.rotation) rotate(K, q, a.rotation + r * K), rotate(K, k, a.rotation + r * K);
                memcpy(keys + start + position * K, k, K * sizeof(float));
                memcpy(values + start + position * K, v, K * sizeof(float));
                attend(K, position + 1, q, keys + start, values + start, NULL, self_weights, context + (r * H + h) * K);
            }
        linear(part, H * K, D, from_rows(part, H * K, context, context_panels), b->self_attention_out, y, 0);
        after_sublayer(z, part, x, y, b->self_attention_norm);

        linear(part, D, H * K, before_sublayer(z, part, x, b->cross_attention_norm, normed), b->query, wide, 1);
        for (long r = 0; r < part.rows; r++)
            for (long h = 0; h < H; h++) {
                long head = r * H + h;
                attend(K, S, wide + head * K, a.memory + head * S * K, a.memory + (z->rows * H + head) * S * K,
                       a.mask ? a.mask + r * S : NULL, a.weights + head * S, context + head * K);
            }
        linear(part, H * K, D, from_rows(part, H * K, context, context_panels), b->cross_attention_out, y, 0);
        after_sublayer(z, part, x, y, b->cross_attention_norm);

        linear(part, D, z->ffn_width, before_sublayer(z, part, x, b->feed_forward_norm, normed), b->up, wide, 0);
        activate(z, all * z->ffn_width, wide);
        linear(part, z->ffn_width, D, wide, b->down, y, 0);
        after_sublayer(z, part, x, y, b->feed_forward_norm);
        a.cache += 2 * z->rows * H * C * K;
        a.memory += 2 * z->rows * H * S * K;
    }
    if (output[0].weight) layer_norm(z, part, x, output[0], x);
    linear(part, D, z->V, x, output[1], a.logits, 1);
    free(buffer);
    return 0;
}

int decoder_step(const Sizes *z, long count, const Block *blocks, const Layer *output, float *x, float *cache, const long *cache_position,
                 const float *memory, const char *mask, const float *rotation, float *weights, float *logits, int threads) {
    Arrays all = {x, cache, cache_position, memory, mask, rotation, weights, logits};
    if (z->rows <= FEW) return step_of_part(z, (Part){z->rows, 0}, count, blocks, output, all);
    long panels = (z->rows + PANEL - 1) / PANEL, parts = threads < panels ? threads : panels;
    long products = z->rows * (count * z->D * (6 * z->H * z->K + 2 * z->ffn_width) + z->D * z->V);
    if (parts > 1 + products / ENOUGH) parts = 1 + products / ENOUGH;
    int failed = 0;
#pragma omp parallel for num_threads(parts) reduction(| : failed) if (parts > 1)
    for (long n = 0; n < parts; n++) {
        long panel = n * panels / parts, first = panel * PANEL, next = (n + 1) * panels / parts;
        Part part = {next * PANEL < z->rows ? next * PANEL - first : z->rows - first, next - panel};
        Arrays a = {x + first * z->D,
                    cache + first * z->H * z->capacity * z->K,
                    cache_position + first,
                    memory + first * z->H * z->S * z->K,
                    mask ? mask + first * z->S : NULL,
                    rotation ? rotation + first * z->K : NULL,
                    weights + first * z->H * z->S,
                    logits + first * z->V};
        failed |= step_of_part(z, part, count, blocks, output, a);
    }
    return failed;
}
