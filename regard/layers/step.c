/* One decoder step through all blocks of a Transformer decoder, and the logits of the next token, for a few rows, in
   single precision: `DecoderBlock.step` without the cost of a hundred calls of torch on small vectors.

   Arrays are those of Python:
   x (rows, D), which is overwritten;
   cache (2 N, rows, H, C, K) and memory (2 N, rows, H, S, K), keys then values of each of N blocks;
   cache_position (rows), the position of the cache that each row writes;
   mask (rows, S), False where masked;
   rotation (rows, K / 2, 2), cos and sin of rotary positions, or NULL;
   weights (rows, H, S), the last block's weights over the memory;
   logits (rows, V). */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

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

/* y (rows, outputs) = x (rows, inputs) weight^T + bias. Memory-bound, so the next weights are prefetched. */
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

static void layer_norm(const Sizes *z, const float *x, Layer l, float *y) {
    for (long r = 0; r < z->rows; r++, x += z->D, y += z->D) {
        float mean = 0, spread = 0;
        for (long i = 0; i < z->D; i++) mean += x[i];
        mean /= z->D;
        for (long i = 0; i < z->D; i++) spread += (x[i] - mean) * (x[i] - mean);
        spread = 1 / sqrtf(spread / z->D + z->eps);
        for (long i = 0; i < z->D; i++) y[i] = (x[i] - mean) * spread * l.weight[i] + l.bias[i];
    }
}

/* The input of a sublayer, and the residual connection after its output y. */
static const float *before_sublayer(const Sizes *z, const float *x, Layer norm, float *y) {
    if (!z->pre) return x;
    layer_norm(z, x, norm, y);
    return y;
}

static void after_sublayer(const Sizes *z, float *x, const float *y, Layer norm) {
    for (long i = 0; i < z->rows * z->D; i++) x[i] += y[i];
    if (!z->pre) layer_norm(z, x, norm, x);
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

/* `output` is the final norm (its weight is NULL if there is none) and the output layer. */
int decoder_step(const Sizes *z, long count, const Block *blocks, const Layer *output, float *x, float *cache, const long *cache_position,
                 const float *memory, const char *mask, const float *rotation, float *weights, float *logits) {
    long rows = z->rows, D = z->D, H = z->H, K = z->K, S = z->S, C = z->capacity;
    long widest = 3 * H * K > z->ffn_width ? 3 * H * K : z->ffn_width;
    float *buffer = malloc((rows * (2 * D + widest + H * K) + C) * sizeof(float));
    if (!buffer) return 1;
    float *normed = buffer, *y = normed + rows * D, *wide = y + rows * D, *context = wide + rows * widest;
    float *self_weights = context + rows * H * K; /* weights of self-attention, not returned */
    for (const Block *b = blocks; b < blocks + count; b++) {
        float *keys = cache, *values = cache + rows * H * C * K;
        linear(rows, D, 3 * H * K, before_sublayer(z, x, b->self_attention_norm, normed), b->qkv, wide);
        for (long r = 0; r < rows; r++)
            for (long h = 0; h < H; h++) {
                float *q = wide + (3 * r * H + h) * K, *k = q + H * K, *v = k + H * K;
                long start = (r * H + h) * C * K;
                if (rotation) rotate(K, q, rotation + r * K), rotate(K, k, rotation + r * K);
                memcpy(keys + start + cache_position[r] * K, k, K * sizeof(float));
                memcpy(values + start + cache_position[r] * K, v, K * sizeof(float));
                attend(K, cache_position[r] + 1, q, keys + start, values + start, NULL, self_weights, context + (r * H + h) * K);
            }
        linear(rows, H * K, D, context, b->self_attention_out, y);
        after_sublayer(z, x, y, b->self_attention_norm);

        linear(rows, D, H * K, before_sublayer(z, x, b->cross_attention_norm, normed), b->query, wide);
        for (long r = 0; r < rows; r++)
            for (long h = 0; h < H; h++) {
                long head = r * H + h;
                attend(K, S, wide + head * K, memory + head * S * K, memory + (rows * H + head) * S * K, mask ? mask + r * S : NULL,
                     weights + head * S, context + head * K);
            }
        linear(rows, H * K, D, context, b->cross_attention_out, y);
        after_sublayer(z, x, y, b->cross_attention_norm);

        linear(rows, D, z->ffn_width, before_sublayer(z, x, b->feed_forward_norm, normed), b->up, wide);
        for (long i = 0; i < rows * z->ffn_width; i++)
            wide[i] = z->gelu ? wide[i] * 0.5f * (1 + erff(wide[i] * (float)M_SQRT1_2)) : wide[i] > 0 ? wide[i] : 0;
        linear(rows, z->ffn_width, D, wide, b->down, y);
        after_sublayer(z, x, y, b->feed_forward_norm);
        cache += 2 * rows * H * C * K;
        memory += 2 * rows * H * S * K;
    }
    if (output[0].weight) layer_norm(z, x, output[0], x);
    linear(rows, D, z->V, x, output[1], logits);
    free(buffer);
    return 0;
}
