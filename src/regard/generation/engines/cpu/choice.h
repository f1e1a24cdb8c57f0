// Log-probabilities of a row of logits, and its largest ones.

#pragma once

#include <algorithm>

#include "layers.h"

namespace {

struct Normalizer {  // the log-probability of x is (x - peak) - log_sum
    float peak, log_sum;
    float operator()(float x) const { return (x - peak) - log_sum; }
};

inline float peak_of(const float* x, int64_t count) {
    float part[LANES], peak = -INFINITY;
    std::fill(part, part + LANES, peak);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; ++j) part[j] = x[i + j] > part[j] ? x[i + j] : part[j];
    for (int j = 0; j < LANES; ++j) peak = part[j] > peak ? part[j] : peak;
    for (; i < count; ++i) peak = x[i] > peak ? x[i] : peak;
    return peak;
}

inline Normalizer normalizer(const float* x, int64_t count) {
    const float peak = peak_of(x, count);
    return {peak, std::log(sum_of(count, [&](int64_t i) { return fast_exp(x[i] - peak); }))};
}

// Calls `visit(i, value(i))` for every value that is larger than `least`, which it may raise, or NaN; until it returns true.
template <typename Value, typename Visit>
inline void visit_larger(int64_t count, const Value& value, const float& least, const Visit& visit) {
    constexpr int BLOCK = 4 * LANES;
    for (int64_t i = 0; i < count;) {
        if (i + BLOCK <= count) {
            int larger = 0;
            for (int j = 0; j < BLOCK; ++j) larger |= !(value(i + j) <= least);
            if (!larger) {
                i += BLOCK;
                continue;
            }
        }
        for (const int64_t end = std::min<int64_t>(i + BLOCK, count); i < end; ++i)
            if (const float v = value(i); !(v <= least) && visit(i, v)) return;
    }
}

// The first of the largest values; where there is NaN, the first of these, as in PyTorch.
template <typename Value>
inline int64_t argmax(int64_t count, const Value& value) {
    float best = -INFINITY;
    int64_t at = 0;
    visit_larger(count, value, best, [&](int64_t i, float v) {
        best = v;
        at = i;
        return std::isnan(v);
    });
    return at;
}

struct Candidate {
    float value, gained;  // the total of a hypothesis with this token, and the token's log-probability
    int64_t parent, token;
};

// Inserts values into the best candidates, which are in descending order; of equal values the first comes first.
template <typename Value>
inline void insert_largest(int64_t count, const Value& value, Candidate* best, int64_t size, int64_t parent) {
    float least = best[size - 1].value;
    visit_larger(count, value, least, [&](int64_t i, float v) {
        if (!(v > least)) return false;
        int64_t at = size - 1;
        for (; at > 0 && best[at - 1].value < v; --at) best[at] = best[at - 1];
        best[at] = {v, 0, parent, i};
        least = best[size - 1].value;
        return false;
    });
}

}  // namespace
