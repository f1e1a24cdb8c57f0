// One decoding step of a Transformer decoder on a CPU, or a whole encoder: all layers in one call, weights packed once.
//
// A step multiplies few rows by many weights: it is bound by memory bandwidth, and in PyTorch by the overhead of some
// sixty calls. Here each thread reads its own columns of every matrix once, in memory order.
// Plain C++ with the compiler's vector extensions; only the standard library is included.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, VECTORS = 4, ROWS = 6;
#elif defined(__AVX2__)
constexpr int LANES = 8, VECTORS = 2, ROWS = 4;
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

struct Norm {
    const float* weight;
    const float* bias;  // null: RMSNorm
    float eps;
};

struct Layer {
    Linear qkv_proj, out_proj, cross_q_proj, cross_out_proj, ffn_up, ffn_down;
    Norm norm1, norm2, ffn_norm;
};

struct Stack {
    const Layer* layers;
    Linear project;             // decoders: hidden states to logits
    Norm final_norm;
    const float* embed_tokens;  // (vocabulary, width)
    int64_t vocab_size, layer_count, width, heads, ffn_dim, activation, norm_first, has_cross_attn;
    float embed_scale;
};

struct Scratch {  // x is the residual stream, (rows, width)
    float *x, *normed, *hidden, *context, *scores;
};

struct StepArguments {
    float* cache;                 // (layers, batch, capacity, beams, 2, width): keys and values
    const int32_t* parents;       // (batch, beams, capacity): the hypothesis whose entry of each step is an ancestor's
    const int32_t* admitted;      // (batch): the step at which each sequence was admitted
    const float* const* sources;  // of each layer (batch, source_length, 2, width): keys and values
    const uint8_t* mask;          // (batch, source_length)
    const int64_t* tokens;        // (batch · beams)
    const float* position_table;  // (positions, width), or null
    int64_t positions, batch, beams, capacity, time, source_length;
    Scratch scratch;
    float* logits;                // (batch · beams, vocabulary)
    float* queries;               // (layers, 2, batch · beams, width) of self- and cross-attention; null unless captured
};

struct EncodeArguments {  // packed sequences
    const int64_t* tokens;
    const int64_t* offsets;   // (batch + 1): where each sequence begins, and where the last one ends
    const int64_t* sequence;  // (tokens): the sequence of each token
    const float* position_table;
    int64_t positions, batch, rows, max_length;
    Scratch scratch;
    float* projections;  // (layers, tokens, 3, width): queries, keys and values; null unless attention is captured
};

struct LinearArguments {
    const float* x;  // (rows, inputs)
    float* y;        // (rows, outputs)
    int64_t rows;
};

// The threads synchronize some twenty times a step, each time for microseconds: they spin, and yield when it takes
// longer. An OpenMP barrier may put a thread to sleep, which takes longer than the work.
class Barrier {
  public:
    explicit Barrier(int threads) : threads(threads) {}

    void wait() {
        const int64_t round = rounds.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived.store(0, std::memory_order_relaxed);
            rounds.store(round + 1, std::memory_order_release);
            return;
        }
        for (int64_t tries = 0; rounds.load(std::memory_order_acquire) == round; ++tries) {
            if (tries >= SPINS) std::this_thread::yield();
#if defined(__x86_64__)
            else __builtin_ia32_pause();
#endif
        }
    }

  private:
    static constexpr int64_t SPINS = 2000;
    const int threads;
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int64_t> rounds{0};
};

struct Range {  // a thread's share of `count` items
    int64_t begin, end;
    Range(int64_t count, int thread, int threads) : begin(count * thread / threads), end(count * (thread + 1) / threads) {}
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

#ifdef __AVX512VNNI__
// The same in int8: rows are quantized on the fly, and one instruction accumulates four products.
constexpr int64_t MAX_INPUTS = 1 << 16;  // of a layer: the sum of 255 · 127 for each fits 32 bits

inline float quantize(const float* x, int64_t inputs, uint8_t* q) {
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

template <int M, int KIND>
inline void int8_tile(const uint8_t* q, const float* scales, const Linear& p, int64_t n, float* y, int64_t columns, bool add) {
    const int8_t* w = p.int8_weight + n * p.inputs;
    __m512i sum[M][VECTORS];
    for (int m = 0; m < M; ++m)
        for (int j = 0; j < VECTORS; ++j) sum[m][j] = _mm512_setzero_si512();
    for (int64_t k = 0; k < p.inputs; k += 4) {
        __m512i part[VECTORS];
        for (int j = 0; j < VECTORS; ++j) part[j] = _mm512_loadu_si512(w + k * COLUMNS + j * 64);
        for (int m = 0; m < M; ++m) {
            int32_t four;
            std::memcpy(&four, q + m * p.inputs + k, 4);
            const __m512i a = _mm512_set1_epi32(four);
            for (int j = 0; j < VECTORS; ++j) {  // `_mm512_dpbusd_epi32`, with which GCC 12 would keep the sums in memory
                __m512i one = sum[m][j];
                asm("vpdpbusd %2, %1, %0" : "+v"(one) : "v"(a), "v"(part[j]));
                sum[m][j] = one;
            }
        }
    }
    for (int m = 0; m < M; ++m) {
        float row[COLUMNS];
        for (int j = 0; j < VECTORS; ++j) {
            const __m512i whole = _mm512_sub_epi32(sum[m][j], _mm512_loadu_si512(p.offset + n + j * LANES));
            const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(scales[m]), _mm512_loadu_ps(p.scale + n + j * LANES));
            _mm512_storeu_ps(row + j * LANES, _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale));
        }
        put<KIND>(row, p.bias + n, y + m * p.outputs, columns, add);
    }
}

struct QuantizedRows {  // one per thread
    std::vector<uint8_t> rows;
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
#ifdef __AVX512VNNI__
    static thread_local QuantizedRows quantized;
    if (p.int8_weight) quantized.take(x, rows, p.inputs);
    const uint8_t* q = quantized.rows.data();
    const float* scales = quantized.scales.data();
#endif
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t panel = i / bands, n = panel * COLUMNS;
        const int64_t columns = p.outputs - n < COLUMNS ? p.outputs - n : COLUMNS;
        const int64_t end = (i % bands + 1) * band_rows < rows ? (i % bands + 1) * band_rows : rows;
        int64_t r = i % bands * band_rows;
        const auto some = [&](auto count) {
            for (; r + count() <= end; r += count()) {
                float* out = y + r * p.outputs + n;
#ifdef __AVX512VNNI__
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

inline float dot(const float* a, const float* b, int64_t width) {
    return sum_of(width, [&](int64_t i) { return a[i] * b[i]; });
}

// Scaled dot-product attention of one query to positions low to high: `entry(t)` points to the key of position t, whose
// value lies `to_value` behind it, or is null where t is masked. A query whose positions are all masked gives zeros.
template <typename Entry>
inline void attend_one(const float* query, float* context, float* scores, int64_t low, int64_t high, int64_t width,
                       int64_t to_value, const Entry& entry) {
    const float scale = 1 / std::sqrt(float(width));
    float peak = -INFINITY, total = 0;
    for (int64_t t = low; t < high; ++t) {
        const float* key = entry(t);
        scores[t] = key ? scale * dot(query, key, width) : -INFINITY;
        peak = scores[t] > peak ? scores[t] : peak;
    }
    for (int64_t i = 0; i < width; ++i) context[i] = 0;
    if (peak == -INFINITY) return;
    for (int64_t t = low; t < high; ++t) {
        scores[t] = std::exp(scores[t] - peak);
        total += scores[t];
    }
    for (int64_t t = low; t < high; ++t) {
        const float* key = entry(t);
        if (!key) continue;
        const float weight = scores[t] / total;
        for (int64_t i = 0; i < width; ++i) context[i] += weight * key[to_value + i];
    }
}

void embed(const Stack& stack, int64_t token, const float* position, float* x) {
    const float* row = stack.embed_tokens + token * stack.width;
    for (int64_t i = 0; i < stack.width; ++i) x[i] = row[i] * stack.embed_scale + (position ? position[i] : 0);
}

// All layers; `attend(layer)` and `cross(layer)` compute self- and cross-attention of a thread's rows into `context`.
template <typename Attend, typename Cross>
const float* layers(const Stack& stack, const Scratch& s, int64_t rows, const Attend& attend, const Cross& cross,
                    Barrier& barrier, int thread, int threads) {
    const Range mine(rows, thread, threads);
    const auto wait = [&] { barrier.wait(); };
    const auto before = [&](const Norm& norm) {  // a sublayer's input
        if (!stack.norm_first) return static_cast<const float*>(s.x);
        normalize(norm, s.x, s.normed, stack.width, mine);
        wait();
        return static_cast<const float*>(s.normed);
    };
    const auto after = [&](const Linear& out, const float* x, const Norm& norm) {  // adds a sublayer's output
        multiply<NONE>(out, x, rows, s.x, true, thread, threads);
        wait();
        if (stack.norm_first) return;
        normalize(norm, s.x, s.x, stack.width, mine);
        wait();
    };
    wait();
    for (int64_t l = 0; l < stack.layer_count; ++l) {
        const Layer& layer = stack.layers[l];
        multiply<NONE>(layer.qkv_proj, before(layer.norm1), rows, s.hidden, false, thread, threads);
        wait();
        attend(l);
        wait();
        after(layer.out_proj, s.context, layer.norm1);
        if (stack.has_cross_attn) {
            multiply<NONE>(layer.cross_q_proj, before(layer.norm2), rows, s.hidden, false, thread, threads);
            wait();
            cross(l);
            wait();
            after(layer.cross_out_proj, s.context, layer.norm2);
        }
        multiply(stack.activation, layer.ffn_up, before(layer.ffn_norm), rows, s.hidden, false, thread, threads);
        wait();
        after(layer.ffn_down, s.hidden, layer.ffn_norm);
    }
    return before(stack.final_norm);
}

void step(const Stack& stack, const StepArguments& s, Barrier& barrier, int thread, int threads) {
    const int64_t rows = s.batch * s.beams, width = stack.width, head = width / stack.heads, entry = 2 * width;
    const Scratch& scratch = s.scratch;
    const Range mine(rows, thread, threads);
    const auto scores = [&](int64_t r) { return scratch.scores + r * (s.capacity + s.source_length); };
    const auto attend = [&](int64_t layer) {
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const int64_t sequence = r / s.beams, beam = r % s.beams;
            float* cache = s.cache + ((layer * s.batch + sequence) * s.capacity) * s.beams * entry;
            const float* query = scratch.hidden + r * 3 * width;
            std::memcpy(cache + (s.time * s.beams + beam) * entry, query + width, entry * sizeof(float));
            if (s.queries) std::memcpy(s.queries + (2 * layer * rows + r) * width, query, width * sizeof(float));
            const int32_t* parents = s.parents + r * s.capacity;
            for (int64_t h = 0; h < stack.heads; ++h) {
                const auto at = [&](int64_t t) { return cache + (t * s.beams + parents[t]) * entry + h * head; };
                attend_one(query + h * head, scratch.context + r * width + h * head, scores(r), s.admitted[sequence],
                           s.time + 1, head, width, at);
            }
        }
    };
    const auto cross = [&](int64_t layer) {
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const float* query = scratch.hidden + r * width;
            if (s.queries) std::memcpy(s.queries + ((2 * layer + 1) * rows + r) * width, query, width * sizeof(float));
            const float* source = s.sources[layer] + r / s.beams * s.source_length * entry;
            const uint8_t* mask = s.mask + r / s.beams * s.source_length;
            int64_t length = s.source_length;  // without padding: sums must not depend on the longest source of a batch
            while (length > 0 && !mask[length - 1]) --length;
            for (int64_t h = 0; h < stack.heads; ++h) {
                const auto at = [&](int64_t t) -> const float* { return mask[t] ? source + t * entry + h * head : nullptr; };
                attend_one(query + h * head, scratch.context + r * width + h * head, scores(r), 0, length, head, width, at);
            }
        }
    };
    for (int64_t r = mine.begin; r < mine.end; ++r)
        embed(stack, s.tokens[r], s.position_table ? s.position_table + (s.time - s.admitted[r / s.beams]) * width : nullptr,
              scratch.x + r * width);
    const float* last = layers(stack, scratch, rows, attend, cross, barrier, thread, threads);
    multiply<NONE>(stack.project, last, rows, s.logits, false, thread, threads);
}

void encode(const Stack& stack, const EncodeArguments& s, Barrier& barrier, int thread, int threads) {
    const int64_t width = stack.width, head = width / stack.heads;
    const Scratch& scratch = s.scratch;
    const Range mine(s.rows, thread, threads);
    const auto attend = [&](int64_t layer) {
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const float* query = scratch.hidden + r * 3 * width;
            if (s.projections)
                std::memcpy(s.projections + (layer * s.rows + r) * 3 * width, query, 3 * width * sizeof(float));
            const int64_t begin = s.offsets[s.sequence[r]], end = s.offsets[s.sequence[r] + 1];
            for (int64_t h = 0; h < stack.heads; ++h) {
                const auto at = [&](int64_t t) { return scratch.hidden + ((begin + t) * 3 + 1) * width + h * head; };
                attend_one(query + h * head, scratch.context + r * width + h * head, scratch.scores + r * s.max_length, 0,
                           end - begin, head, width, at);
            }
        }
    };
    for (int64_t r = mine.begin; r < mine.end; ++r)
        embed(stack, s.tokens[r], s.position_table ? s.position_table + (r - s.offsets[s.sequence[r]]) * width : nullptr, scratch.x + r * width);
    layers(stack, scratch, s.rows, attend, [](int64_t) {}, barrier, thread, threads);  // a final norm leaves its result in `normed`
}

// The first index of step or encode that is out of range, as text; null if all are in range. Checked here, because ids
// and lengths come from files and programs, and an unchecked one would read or write other memory.
const char* out_of_range(const Stack& stack, const StepArguments& s) {
    if (s.batch < 0 || s.beams < 1 || s.source_length < 0) return "batch, beams or source length";
    if (s.time < 0 || s.time >= s.capacity) return "step beyond the cache";
    for (int64_t r = 0; r < s.batch * s.beams; ++r) {
        const int64_t admitted = s.admitted[r / s.beams];
        if (s.tokens[r] < 0 || s.tokens[r] >= stack.vocab_size) return "token id";
        if (admitted < 0 || admitted > s.time) return "step of admission";
        if (s.position_table && s.time - admitted >= s.positions) return "position";
        for (int64_t t = admitted; t <= s.time; ++t)
            if (s.parents[r * s.capacity + t] < 0 || s.parents[r * s.capacity + t] >= s.beams) return "parent hypothesis";
    }
    return nullptr;
}

const char* out_of_range(const Stack& stack, const EncodeArguments& s) {
    if (s.batch < 1 || s.offsets[0] != 0 || s.offsets[s.batch] != s.rows) return "offset";
    for (int64_t b = 0; b < s.batch; ++b) {
        const int64_t length = s.offsets[b + 1] - s.offsets[b];
        if (length < 0 || length > s.max_length || (s.position_table && length > s.positions)) return "length";
    }
    for (int64_t r = 0; r < s.rows; ++r) {
        if (s.tokens[r] < 0 || s.tokens[r] >= stack.vocab_size) return "token id";
        if (s.sequence[r] < 0 || s.sequence[r] >= s.batch) return "sequence";
        if (r < s.offsets[s.sequence[r]] || r >= s.offsets[s.sequence[r] + 1]) return "sequence";
    }
    return nullptr;
}

template <typename Work>
void parallel(int threads, const Work& work) {
#ifdef _OPENMP
    Barrier* barrier = nullptr;
#pragma omp parallel num_threads(threads)
    {
#pragma omp single
        barrier = new Barrier(omp_get_num_threads());  // may be fewer than requested
        work(*barrier, omp_get_thread_num(), omp_get_num_threads());
    }
    delete barrier;
#else
    Barrier barrier(1);
    work(barrier, 0, 1);
#endif
}

}  // namespace

extern "C" {

int64_t regard_panel_columns() { return COLUMNS; }

int64_t regard_int8_max_inputs() {  // of a layer with int8 weights; 0: not supported by this processor
#ifdef __AVX512VNNI__
    return MAX_INPUTS;
#else
    return 0;
#endif
}

void regard_use_huge_pages(uint8_t* begin, int64_t bytes) {  // weights are read sequentially: fewer TLB misses
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t PAGE = 1 << 21;
    const uintptr_t from = (uintptr_t(begin) + PAGE - 1) / PAGE * PAGE, to = (uintptr_t(begin) + bytes) / PAGE * PAGE;
    if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#else
    (void)begin, (void)bytes;
#endif
}

// Copies a matrix (outputs, inputs) into panels as their columns first, first + 1, ..., and zeros into the rest of the
// last panel, which the next matrix beside it overwrites.
void regard_pack(const float* weight, int64_t outputs, int64_t inputs, int64_t first, float scale, float* packed) {
    constexpr int64_t BLOCK = 16;  // numbers of a cache line that is read
    const int64_t end = first + outputs, padded = (end + COLUMNS - 1) / COLUMNS * COLUMNS;
    for (int64_t panel = first / COLUMNS * COLUMNS; panel < padded; panel += COLUMNS)
        for (int64_t k = 0; k < inputs; k += BLOCK)
            for (int64_t n = panel < first ? first : panel; n < panel + COLUMNS; ++n)
                for (int64_t i = k; i < k + BLOCK && i < inputs; ++i)
                    packed[panel * inputs + i * COLUMNS + n - panel] = n < end ? scale * weight[(n - first) * inputs + i] : 0;
}

void regard_pack_int8(const int8_t* weight, int64_t outputs, int64_t inputs, int8_t* packed) {
    for (int64_t n = 0; n < outputs; ++n)
        for (int64_t k = 0; k < inputs; ++k)
            packed[n / COLUMNS * inputs * COLUMNS + (k / 4 * COLUMNS + n % COLUMNS) * 4 + k % 4] = weight[n * inputs + k];
}

// Null, or what is out of range: nothing is computed then.
const char* regard_step(const Stack* decoder, const StepArguments* arguments, int threads) {
    if (const char* problem = out_of_range(*decoder, *arguments)) return problem;
    parallel(threads, [&](Barrier& barrier, int thread, int all) { step(*decoder, *arguments, barrier, thread, all); });
    return nullptr;
}

const char* regard_encode(const Stack* encoder, const EncodeArguments* arguments, int threads) {
    if (const char* problem = out_of_range(*encoder, *arguments)) return problem;
    parallel(threads, [&](Barrier& barrier, int thread, int all) { encode(*encoder, *arguments, barrier, thread, all); });
    return nullptr;
}

const char* regard_linear(const Linear* layer, const LinearArguments* s, int threads) {
    parallel(threads, [&](Barrier&, int thread, int all) { multiply<NONE>(*layer, s->x, s->rows, s->y, false, thread, all); });
    return nullptr;
}

// A hash that changes when weights do: of every sixteenth block, and of the last one, to be cheap.
uint64_t regard_fingerprint(const uint8_t* bytes, int64_t count) {
    constexpr uint64_t MIX = 0x9E3779B97F4A7C15u;
    constexpr int STREAMS = 32;
    uint64_t state[STREAMS] = {}, words[STREAMS], whole = uint64_t(count);
    constexpr int64_t BLOCK = sizeof words, STRIDE = 16;
    const auto mix = [&](int64_t at, int64_t size) {
        std::memset(words, 0, sizeof words);
        std::memcpy(words, bytes + at, size);
        for (int j = 0; j < STREAMS; ++j) state[j] = (state[j] ^ words[j]) * MIX + 1;
    };
    for (int64_t at = 0; at + BLOCK <= count; at += STRIDE * BLOCK) mix(at, BLOCK);
    mix(count > BLOCK ? count - BLOCK : 0, count > BLOCK ? BLOCK : count);
    for (int j = 0; j < STREAMS; ++j) whole = (whole ^ state[j]) * MIX + 1;
    return whole;
}
}
