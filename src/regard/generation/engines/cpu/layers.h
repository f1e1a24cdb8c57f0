// Norms, attention of one query, and functions of single numbers.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "linear.h"

namespace {

struct Norm {
    const float* weight;
    const float* bias;  // null: RMSNorm
    float eps;
};

// The sum of term(0), ..., term(count - 1), always in the same order: the compiler may not choose it (see compile.py), so
// that a row's result does not depend on how many rows there are.
template <typename Term>
inline float sum_of(int64_t count, const Term& term) {
    float part[LANES] = {}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; ++j) part[j] += term(i + j);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) part[j] += part[j + half];
    for (; i < count; ++i) sum += term(i);
    return part[0] + sum;
}

void normalize(const Norm& norm, const float* x, float* y, int64_t width, const Range& rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float* in = x + r * width;
        float* out = y + r * width;
        const float mean = norm.bias ? sum_of(width, [&](int64_t i) { return in[i]; }) / width : 0;
        const float square = sum_of(width, [&](int64_t i) { return (in[i] - mean) * (in[i] - mean); });
        const float scale = 1 / std::sqrt(square / width + norm.eps);
        for (int64_t i = 0; i < width; ++i)
            out[i] = (in[i] - mean) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0);
    }
}

inline void prefetch(const float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(x + i, 0, 2);
}

inline float dot(const float* a, const float* b, int64_t width) {
    return sum_of(width, [&](int64_t i) { return a[i] * b[i]; });
}

// e^x, which the compiler can vectorize: 2^n times a polynomial in the rest, with a relative error of about 1e-7.
inline float fast_exp(float x) {
    x = x < -87 ? -87 : x > 88 ? 88 : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // whose last bits are the integer n
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    uint32_t bits;  // no conversion of n, which is undefined for NaN
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return (p * r * r + r + 1) * power;
}

// Scores to softmax weights, in place; false where all are masked (−∞), and nothing has changed.
inline bool softmax(float* scores, int64_t count) {
    float peak = -INFINITY;
    for (int64_t t = 0; t < count; ++t) peak = scores[t] > peak ? scores[t] : peak;
    if (peak == -INFINITY) return false;
    for (int64_t t = 0; t < count; ++t) scores[t] = scores[t] == -INFINITY ? 0 : fast_exp(scores[t] - peak);
    const float factor = 1 / sum_of(count, [&](int64_t t) { return scores[t]; });
    for (int64_t t = 0; t < count; ++t) scores[t] *= factor;
    return true;
}

// The sum of rows of values, row(t) each times weights[t]. Its columns in blocks whose sums stay in registers.
template <typename Row>
inline void sum_rows(const float* weights, int64_t count, int64_t width, float* out, const Row& row) {
    int64_t i = 0;
    for (; i + COLUMNS <= width; i += COLUMNS) {
        Vector sum[VECTORS] = {};
        for (int64_t t = 0; t < count; ++t) {
            if (!(weights[t] != 0)) continue;
            const Vector* value = reinterpret_cast<const Vector*>(row(t) + i);
            for (int j = 0; j < VECTORS; ++j) sum[j] += weights[t] * value[j];
        }
        std::memcpy(out + i, sum, sizeof sum);
    }
    if (i == width) return;
    for (int64_t j = i; j < width; ++j) out[j] = 0;
    for (int64_t t = 0; t < count; ++t)
        if (weights[t] != 0)
            for (int64_t j = i; j < width; ++j) out[j] += weights[t] * row(t)[j];
}

struct Scoring {  // of attention: scale · (query · key), plus the bias of a distance where there is one
    float scale;
    const float* bias = nullptr;  // of the last position; those before it follow, `stride` apart
    int64_t stride = 0;
};

inline float root_scale(int64_t width) { return 1 / std::sqrt(float(width)); }

// Dot-product attention of one query to positions low to high: `entry(t)` points to the key of position t, whose
// value lies `to_value` behind it, or is null where t is masked. A query whose positions are all masked gives zeros.
template <typename Entry>
inline void attend_one(const float* query, float* context, float* scores, int64_t low, int64_t high, int64_t width,
                       int64_t to_value, const Scoring& scoring, const Entry& entry) {
    for (int64_t t = low; t < high; ++t) {
        const float* key = entry(t);
        scores[t] = key ? scoring.scale * dot(query, key, width) : -INFINITY;
        if (scoring.bias) scores[t] += scoring.bias[(high - 1 - t) * scoring.stride];
    }
    if (softmax(scores + low, high - low))
        return sum_rows(scores + low, high - low, width, context, [&](int64_t t) { return entry(low + t) + to_value; });
    for (int64_t i = 0; i < width; ++i) context[i] = 0;
}

inline float fast_sigmoid(float x) { return 1 / (1 + fast_exp(-x)); }

inline float fast_tanh(float x) { return 1 - 2 / (1 + fast_exp(2 * x)); }

// The softmax of `count` scores times rows of values; a softmax of nothing but masked ones gives zeros.
inline void weighted_sum(float* scores, int64_t count, const float* values, int64_t stride, int64_t width, float* out) {
    if (softmax(scores, count)) return sum_rows(scores, count, width, out, [&](int64_t t) { return values + t * stride; });
    for (int64_t i = 0; i < width; ++i) out[i] = 0;
}

}  // namespace
