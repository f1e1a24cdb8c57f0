// Linear layers of few rows, in float32 and int8, with their activation.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "threads.h"

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, VECTORS = 4, ROWS = 6;
#elif defined(__AVX2__)
constexpr int LANES = 8, VECTORS = 2, ROWS = 6;
#elif defined(__aarch64__)
constexpr int LANES = 4, VECTORS = 4, ROWS = 6;
#else
constexpr int LANES = 4, VECTORS = 4, ROWS = 4;
#endif
constexpr int COLUMNS = LANES * VECTORS;  // of a panel, the unit of work of a thread
typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

enum Activation { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, SILU = 4 };

struct Linear {  // y = x Wᵀ + b; the fields of these structures are those of weight_layout.py, decoder.py and encoder.py
    const float* weight;        // panels of (inputs, COLUMNS), the last one padded with zeros; null with int8_weight
    const float* bias;
    const int8_t* int8_weight;  // or null: panels of (inputs / 4, COLUMNS, 4)
    const float* scale;         // of each column of int8_weight
    const int32_t* offset;      // 128 times the sum of each column, because inputs are shifted by 128 to be unsigned
    int64_t inputs, outputs;
};

// The time that linear layers take with one thread, estimated: they read every weight, and multiply it with every row.
struct Work {
    double microseconds = 0;

    void add(const Linear& layer, int64_t rows) {
        const double weights = double(layer.inputs) * layer.outputs, bytes = layer.int8_weight ? 1 : 4;
        const double reading = weights * bytes / 30e3, products = weights * rows / (layer.int8_weight ? 150e3 : 45e3);
        microseconds += reading > products ? reading : products;
    }

    // As many threads as have a millisecond each: they wait for each other some twenty times a step, and long where others
    // use the processors too.
    int threads(int most) const {
        const double useful = 1 + microseconds / 1000;
        return useful < most ? int(useful) : most;
    }
};

struct LinearArguments {
    const float* x;  // (rows, inputs)
    float* y;        // (rows, outputs)
    int64_t rows;
};

template <int KIND>
inline float activate(float x) {
    if (KIND == RELU) return x > 0 ? x : 0;
    if (KIND == GELU) return 0.5f * x * (1 + std::erf(x * 0.70710678f));
    if (KIND == GELU_TANH) return 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    if (KIND == SILU) return x / (1 + std::exp(-x));
    return x;
}

template <int KIND>
inline void put(const float* row, const float* bias, float* y, int64_t columns, bool add) {
    const auto some = [&](int64_t count) {
        for (int64_t n = 0; n < count; ++n) {
            const float value = activate<KIND>(row[n] + bias[n]);
            y[n] = add ? y[n] + value : value;
        }
    };
    if (columns == COLUMNS) some(COLUMNS); else some(columns);
}

// M rows by one panel: every weight is read once for all rows, and the sums stay in registers.
template <int M, int KIND>
inline void float_tile(const float* x, int64_t inputs, const float* w, const float* bias, float* y, int64_t outputs, int64_t columns,
                 bool add) {
    Vector sum[M][VECTORS] = {};
    for (int64_t k = 0; k < inputs; ++k) {
        const Vector* panel = reinterpret_cast<const Vector*>(w + k * COLUMNS);
        if (M <= 2)  // memory-bound
            for (int j = 0; j < VECTORS; ++j) __builtin_prefetch(w + (k + 24) * COLUMNS + j * LANES);
        for (int m = 0; m < M; ++m) {
            const float a = x[m * inputs + k];
            for (int j = 0; j < VECTORS; ++j) sum[m][j] += a * panel[j];
        }
    }
    for (int m = 0; m < M; ++m) {
        float row[COLUMNS];
        std::memcpy(row, sum[m], sizeof row);
        put<KIND>(row, bias, y + m * outputs, columns, add);
    }
}

#if defined(__AVX2__) || defined(__aarch64__)
#define REGARD_INT8
// The same in int8: rows are quantized on the fly. Every variant computes the same integers, so that all have equal results.
constexpr int64_t MAX_INPUTS = 1 << 16;  // of a layer: the sum of 255 · 127 for each fits 32 bits

#ifdef __AVX512VNNI__
typedef __m512i IntVector;
typedef uint8_t Quantized;  // shifted by 128, because one factor of the instruction is unsigned

// q = x · 127 / peak for the largest absolute value; what a quantized number is multiplied by.
inline float quantize(const float* x, int64_t inputs, Quantized* q) {
    const auto some = [&](int64_t k) { return __mmask16(inputs - k < 16 ? (1 << (inputs - k)) - 1 : 0xFFFF); };
    __m512 peaks = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += 16)
        peaks = _mm512_max_ps(peaks, _mm512_abs_ps(_mm512_maskz_loadu_ps(some(k), x + k)));
    const float peak = _mm512_reduce_max_ps(peaks);
    const __m512 scale = _mm512_set1_ps(peak > 0 ? 127 / peak : 0);
    for (int64_t k = 0; k < inputs; k += 16) {
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(some(k), x + k), scale));
        _mm512_mask_cvtepi32_storeu_epi8(q + k, some(k), _mm512_add_epi32(whole, _mm512_set1_epi32(128)));
    }
    return peak / 127;
}

inline IntVector load_weights(const int8_t* w) { return _mm512_loadu_si512(w); }

inline IntVector broadcast(const Quantized* four) {
    int32_t all;
    std::memcpy(&all, four, 4);
    return _mm512_set1_epi32(all);
}

inline IntVector add_products(IntVector sum, IntVector x, IntVector w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));  // with `_mm512_dpbusd_epi32` GCC 12 would keep sums in memory
    return sum;
}

inline void scaled(IntVector sum, const int32_t* offset, float scale, const float* scales, float* y) {
    const __m512i whole = _mm512_sub_epi32(sum, _mm512_loadu_si512(offset));
    _mm512_storeu_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_loadu_ps(scales))));
}
#elif defined(__AVX2__)
typedef __m256i IntVector;
typedef int8_t Quantized;

inline float quantize(const float* x, int64_t inputs, Quantized* q) {
    float peak = 0;
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
    __m256 peaks = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + 8 <= inputs; k += 8) peaks = _mm256_max_ps(peaks, _mm256_and_ps(magnitude, _mm256_loadu_ps(x + k)));
    float part[8];
    _mm256_storeu_ps(part, peaks);
    for (const float each : part) peak = each > peak ? each : peak;
    for (; k < inputs; ++k) peak = std::fabs(x[k]) > peak ? std::fabs(x[k]) : peak;
    const float scale = peak > 0 ? 127 / peak : 0;
    for (k = 0; k + 8 <= inputs; k += 8) {
        const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + k), _mm256_set1_ps(scale)));
        const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(q + k), _mm_packs_epi16(half, half));
    }
    for (; k < inputs; ++k) q[k] = Quantized(std::lrintf(x[k] * scale));
    return peak / 127;
}

typedef int64_t LooseVector __attribute__((vector_size(32), aligned(1), may_alias));

inline IntVector load_weights(const int8_t* w) { return (__m256i)*reinterpret_cast<const LooseVector*>(w); }

inline IntVector broadcast(const Quantized* four) {
    int32_t all;
    std::memcpy(&all, four, 4);
    return _mm256_set1_epi32(all);
}

inline IntVector add_products(IntVector sum, IntVector x, IntVector w) {
    // One factor of the product of bytes is unsigned: |x|, with its sign given to w. Two products of 127 fit 16 bits.
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

inline void scaled(IntVector sum, const int32_t*, float scale, const float* scales, float* y) {
    _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_loadu_ps(scales))));
}
#else
typedef int32x4_t IntVector;
typedef int8_t Quantized;

inline float quantize(const float* x, int64_t inputs, Quantized* q) {
    float32x4_t peaks = vdupq_n_f32(0);
    int64_t k = 0;
    for (; k + 4 <= inputs; k += 4) peaks = vmaxq_f32(peaks, vabsq_f32(vld1q_f32(x + k)));
    float peak = vmaxvq_f32(peaks);
    for (; k < inputs; ++k) peak = std::fabs(x[k]) > peak ? std::fabs(x[k]) : peak;
    const float scale = peak > 0 ? 127 / peak : 0;
    const auto whole = [&](int64_t at) { return vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + at), scale))); };
    for (k = 0; k + 8 <= inputs; k += 8) vst1_s8(q + k, vqmovn_s16(vcombine_s16(whole(k), whole(k + 4))));
    for (; k < inputs; ++k) q[k] = Quantized(std::lrintf(x[k] * scale));
    return peak / 127;
}

inline IntVector load_weights(const int8_t* w) { return vreinterpretq_s32_s8(vld1q_s8(w)); }

inline IntVector broadcast(const Quantized* four) {
    int32_t all;
    std::memcpy(&all, four, 4);
    return vdupq_n_s32(all);
}

inline IntVector add_products(IntVector sum, IntVector x, IntVector w) {
    const int8x16_t a = vreinterpretq_s8_s32(x), b = vreinterpretq_s8_s32(w);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, a, b);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

inline void scaled(IntVector sum, const int32_t*, float scale, const float* scales, float* y) {
    vst1q_f32(y, vmulq_f32(vcvtq_f32_s32(sum), vmulq_f32(vdupq_n_f32(scale), vld1q_f32(scales))));
}
#endif
constexpr int INT_LANES = sizeof(IntVector) / 4, INT_VECTORS = COLUMNS / INT_LANES;
#if defined(__AVX512F__) && !defined(__AVX512VNNI__)
constexpr int INT8_ROWS = 2;  // whose sums fit the registers
#elif defined(__AVX2__) && !defined(__AVX512F__) || defined(__aarch64__)
constexpr int INT8_ROWS = 4;
#else
constexpr int INT8_ROWS = ROWS;
#endif

template <int M, int KIND>
inline void int8_tile(const Quantized* q, const float* scales, const Linear& p, int64_t n, float* y, int64_t columns, bool add) {
    const int8_t* w = p.int8_weight + n * p.inputs;
    IntVector sum[M][INT_VECTORS];
    for (int m = 0; m < M; ++m)
        for (int j = 0; j < INT_VECTORS; ++j) sum[m][j] = IntVector{};
    for (int64_t k = 0; k < p.inputs; k += 4) {
        IntVector part[INT_VECTORS];
        for (int j = 0; j < INT_VECTORS; ++j) part[j] = load_weights(w + (k * COLUMNS + 4 * j * INT_LANES));
        for (int m = 0; m < M; ++m) {
            const IntVector x = broadcast(q + m * p.inputs + k);
            for (int j = 0; j < INT_VECTORS; ++j) sum[m][j] = add_products(sum[m][j], x, part[j]);
        }
    }
    for (int m = 0; m < M; ++m) {
        float row[COLUMNS];
        for (int j = 0; j < INT_VECTORS; ++j) {
            const int64_t at = n + j * INT_LANES;
            scaled(sum[m][j], p.offset + at, scales[m], p.scale + at, row + j * INT_LANES);
        }
        put<KIND>(row, p.bias + n, y + m * p.outputs, columns, add);
    }
}

struct QuantizedRows {  // one per thread
    std::vector<Quantized> rows;
    std::vector<float> scales;

    void take(const float* x, int64_t count, int64_t inputs) {
        if (int64_t(rows.size()) < count * inputs) rows.resize(count * inputs);
        if (int64_t(scales.size()) < count) scales.resize(count);
        for (int64_t r = 0; r < count; ++r) scales[r] = quantize(x + r * inputs, inputs, rows.data() + r * inputs);
    }
};
#endif

template <int KIND>
void multiply(const Linear& p, const float* x, int64_t rows, float* y, bool add, int thread, int threads) {
    const int64_t panels = (p.outputs + COLUMNS - 1) / COLUMNS;
    const int64_t bands = panels >= threads ? 1 : threads;  // split the rows where there are fewer panels than threads
    const int64_t band_rows = (rows + bands - 1) / bands;
    const Range share(panels * bands, thread, threads);
#ifdef REGARD_INT8
    static thread_local QuantizedRows quantized;
    if (p.int8_weight) quantized.take(x, rows, p.inputs);
    const Quantized* q = quantized.rows.data();
    const float* scales = quantized.scales.data();
#endif
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t panel = i / bands, n = panel * COLUMNS;
        const int64_t columns = p.outputs - n < COLUMNS ? p.outputs - n : COLUMNS;
        const int64_t end = (i % bands + 1) * band_rows < rows ? (i % bands + 1) * band_rows : rows;
        int64_t r = i % bands * band_rows;
        const auto some = [&](auto count) {
#ifdef REGARD_INT8
            if (p.int8_weight && count() > INT8_ROWS) return;
#endif
            for (; r + count() <= end; r += count()) {
                float* out = y + r * p.outputs + n;
#ifdef REGARD_INT8
                if (p.int8_weight) {
                    int8_tile<count(), KIND>(q + r * p.inputs, scales + r, p, n, out, columns, add);
                    continue;
                }
#endif
                float_tile<count(), KIND>(x + r * p.inputs, p.inputs, p.weight + n * p.inputs, p.bias + n, out, p.outputs, columns, add);
            }
        };
        some(std::integral_constant<int, ROWS>());
        some(std::integral_constant<int, 5>());
        some(std::integral_constant<int, 4>());
        some(std::integral_constant<int, 3>());
        some(std::integral_constant<int, 2>());
        some(std::integral_constant<int, 1>());
    }
}

void multiply(int64_t kind, const Linear& p, const float* x, int64_t rows, float* y, bool add, int thread, int threads) {
    switch (kind) {
        case RELU: return multiply<RELU>(p, x, rows, y, add, thread, threads);
        case GELU: return multiply<GELU>(p, x, rows, y, add, thread, threads);
        case GELU_TANH: return multiply<GELU_TANH>(p, x, rows, y, add, thread, threads);
        case SILU: return multiply<SILU>(p, x, rows, y, add, thread, threads);
        default: return multiply<NONE>(p, x, rows, y, add, thread, threads);
    }
}

}  // namespace
