/* One token further through the blocks of a Transformer decoder, for a few rows, in single precision: what
   `DecoderBlock.step` does, without the price of a hundred calls of torch on vectors, and the scores of the next token.
   Arrays are those of Python: x (rows, D), which is used up; past (2 N, rows, H, C, K) and memory (2 N, rows, H, S, K), keys then values of each of N blocks; `at` (rows),
   the slot that each row writes; mask (rows, S), NULL where all may be seen; waves (rows, K / 2, 2), cos and sin, NULL where
   nothing turns; weights (rows, H, S), where the last block looked in the memory; logits (rows, V). */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

typedef struct { const float *weight, *bias; } Layer;

typedef struct {
    Layer before_looking, project, looked, before_reading, query, read, before_thinking, wide, narrow;
} Block;

typedef struct {
    long rows, D, H, K, inner, capacity, S, V;
    int pre, gelu;
    float eps;
} Sizes;

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

/* y (rows, outputs) = x (rows, inputs) weight^T + bias. It waits for the weights, so it asks for the next ones early. */
static void linear(long rows, long inputs, long outputs, const float *x, Layer l, float *y) {
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

static void normal(const Sizes *z, const float *x, Layer l, float *y) {
    for (long r = 0; r < z->rows; r++, x += z->D, y += z->D) {
        float mean = 0, spread = 0;
        for (long i = 0; i < z->D; i++) mean += x[i];
        mean /= z->D;
        for (long i = 0; i < z->D; i++) spread += (x[i] - mean) * (x[i] - mean);
        spread = 1 / sqrtf(spread / z->D + z->eps);
        for (long i = 0; i < z->D; i++) y[i] = (x[i] - mean) * spread * l.weight[i] + l.bias[i];
    }
}

/* What a sublayer is given, and what follows when it made y of that. */
static const float *enter(const Sizes *z, const float *x, Layer norm, float *y) {
    if (!z->pre) return x;
    normal(z, x, norm, y);
    return y;
}

static void leave(const Sizes *z, float *x, const float *y, Layer norm) {
    for (long i = 0; i < z->rows * z->D; i++) x[i] += y[i];
    if (!z->pre) normal(z, x, norm, x);
}

/* softmax(q keys^T / sqrt(K)) values of one head */
static void look(long K, long places, const float *q, const float *keys, const float *values, const char *mask, float *weights,
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

static void turn(long K, float *x, const float *waves) {
    for (long i = 0; i < K; i += 2) {
        float a = x[i], b = x[i + 1];
        x[i] = a * waves[i] - b * waves[i + 1];
        x[i + 1] = a * waves[i + 1] + b * waves[i];
    }
}

/* `last` is the norm behind the blocks, with NULL for weight where there is none, and the output. */
int decoder_step(const Sizes *z, long count, const Block *blocks, const Layer *last, float *x, float *past, const long *at,
                 const float *memory, const char *mask, const float *waves, float *weights, float *logits) {
    long rows = z->rows, D = z->D, H = z->H, K = z->K, S = z->S, C = z->capacity;
    long widest = 3 * H * K > z->inner ? 3 * H * K : z->inner;
    float *room = malloc((rows * (2 * D + widest + H * K) + C) * sizeof(float));
    if (!room) return 1;
    float *normed = room, *made = normed + rows * D, *wide = made + rows * D, *context = wide + rows * widest;
    float *own = context + rows * H * K; /* weights over the past, which nobody asks for */
    for (const Block *b = blocks; b < blocks + count; b++) {
        float *keys = past, *values = past + rows * H * C * K;
        linear(rows, D, 3 * H * K, enter(z, x, b->before_looking, normed), b->project, wide);
        for (long r = 0; r < rows; r++)
            for (long h = 0; h < H; h++) {
                float *q = wide + (3 * r * H + h) * K, *k = q + H * K, *v = k + H * K;
                long start = (r * H + h) * C * K;
                if (waves) turn(K, q, waves + r * K), turn(K, k, waves + r * K);
                memcpy(keys + start + at[r] * K, k, K * sizeof(float));
                memcpy(values + start + at[r] * K, v, K * sizeof(float));
                look(K, at[r] + 1, q, keys + start, values + start, NULL, own, context + (r * H + h) * K);
            }
        linear(rows, H * K, D, context, b->looked, made);
        leave(z, x, made, b->before_looking);

        linear(rows, D, H * K, enter(z, x, b->before_reading, normed), b->query, wide);
        for (long r = 0; r < rows; r++)
            for (long h = 0; h < H; h++) {
                long head = r * H + h;
                look(K, S, wide + head * K, memory + head * S * K, memory + (rows * H + head) * S * K, mask ? mask + r * S : NULL,
                     weights + head * S, context + head * K);
            }
        linear(rows, H * K, D, context, b->read, made);
        leave(z, x, made, b->before_reading);

        linear(rows, D, z->inner, enter(z, x, b->before_thinking, normed), b->wide, wide);
        for (long i = 0; i < rows * z->inner; i++)
            wide[i] = z->gelu ? wide[i] * 0.5f * (1 + erff(wide[i] * (float)M_SQRT1_2)) : wide[i] > 0 ? wide[i] : 0;
        linear(rows, z->inner, D, wide, b->narrow, made);
        leave(z, x, made, b->before_thinking);
        past += 2 * rows * H * C * K;
        memory += 2 * rows * H * S * K;
    }
    if (last[0].weight) normal(z, x, last[0], x);
    linear(rows, D, z->V, x, last[1], logits);
    free(room);
    return 0;
}
