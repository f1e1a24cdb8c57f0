// One decoding step of a Transformer decoder on a CPU, or all of an encoder: all layers in one call, weights laid out once.
//
// A step multiplies few rows by many weights, so it is bound by how fast weights arrive, and in PyTorch by some sixty
// calls. Here each thread reads its own columns of every matrix once, in the order in which they lie in memory.
// Plain C++ and the compiler's vectors: no headers but the standard library's.

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
constexpr int COLUMNS = LANES * VECTORS;  // of a panel: what a thread multiplies by at a time
typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

enum Activation { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, SILU = 4 };

struct Product {  // y = x Wᵀ + b
    const float* weight;  // panels of (inputs, COLUMNS), the last one filled up with zeros
    const float* bias;
    const int8_t* small;    // or null: panels of (inputs / 4, COLUMNS, 4), a quarter of the bytes
    const float* scale;     // of each column of those
    const int32_t* offset;  // 128 times the sum of each column, as inputs are made positive
    int64_t inputs, outputs;
};

struct Norm {
    const float* scale;
    const float* shift;  // null: root mean square, nothing subtracted
    float epsilon;
};

struct Layer {
    Product open, out, ask, tell, widen, narrow;  // queries, keys and values; out; the same of the source; perceptron
    Norm around_attend, around_cross, around_perceive;
};

struct Stack {
    const Layer* layers;
    Product project;     // decoders: to logits
    Norm last;
    const float* table;  // of embeddings: (words, width)
    int64_t count, width, heads, hidden, activation, norm_first, crosses;
    float scale;         // of embeddings
};

struct Room {  // to work in; x is what goes from layer to layer
    float *x, *normed, *wide, *seen, *scores;
};

struct State {
    float* cache;            // (layers, sentences, capacity, beams, 2, width): keys and values
    const int32_t* parents;  // (sentences, beams, capacity): whose entry of each time is an ancestor's
    const int32_t* first;    // (sentences): the time at which each entered
    const float* const* sources;  // a layer: (sentences, positions, 2, width)
    const uint8_t* mask;     // (sentences, positions)
    const int64_t* tokens;   // (sentences · beams)
    const float* places;     // (times, width), or null
    int64_t sentences, beams, capacity, time, positions;
    Room room;
    float* logits;           // (sentences · beams, words)
};

struct Reading {  // sentences end to end, without padding
    const int64_t* tokens;
    const int64_t* begins;   // (sentences + 1): where each begins, and where the last one ends
    const int64_t* sentence; // (tokens): whose each is
    const float* places;
    int64_t rows, longest;
    Room room;
};

// Where threads wait for each other some twenty times a step, for microseconds: awake, and in turns with whoever else
// needs the processor where it takes longer. OpenMP's own may put a thread to sleep, which takes longer than the work.
class Meeting {
  public:
    explicit Meeting(int threads) : threads(threads) {}

    void wait() {
        const int64_t round = rounds.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived.store(0, std::memory_order_relaxed);
            rounds.store(round + 1, std::memory_order_release);
            return;
        }
        for (int64_t tries = 0; rounds.load(std::memory_order_acquire) == round; ++tries) {
            if (tries >= AWAKE) std::this_thread::yield();
#if defined(__x86_64__)
            else __builtin_ia32_pause();
#endif
        }
    }

  private:
    static constexpr int64_t AWAKE = 2000;
    const int threads;
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int64_t> rounds{0};
};

struct Share {  // a thread's part of so many things
    int64_t begin, end;
    Share(int64_t count, int thread, int threads) : begin(count * thread / threads), end(count * (thread + 1) / threads) {}
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

// M rows by one panel: every weight is read once for all of them, every sum stays in a register.
template <int M, int KIND>
inline void tile(const float* x, int64_t inputs, const float* w, const float* bias, float* y, int64_t outputs, int64_t columns,
                 bool add) {
    Vector sum[M][VECTORS] = {};
    for (int64_t k = 0; k < inputs; ++k) {
        const Vector* panel = reinterpret_cast<const Vector*>(w + k * COLUMNS);
        if (M <= 2)  // bound by how fast weights arrive
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
// The same in bytes: rows are quantised as they come, and one instruction adds four products.
constexpr int64_t LONGEST = 1 << 16;  // inputs of a product, at most: the sum of 255 · 127 for each fits 32 bits

inline float quantise(const float* x, int64_t inputs, uint8_t* q) {
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
inline void small_tile(const uint8_t* q, const float* scales, const Product& p, int64_t n, float* y, int64_t columns, bool add) {
    const int8_t* w = p.small + n * p.inputs;
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
            for (int j = 0; j < VECTORS; ++j) {  // as `_mm512_dpbusd_epi32`, with which GCC 12 keeps sums in memory
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

struct Quantised {  // a thread's own
    std::vector<uint8_t> rows;
    std::vector<float> scales;

    void take(const float* x, int64_t count, int64_t inputs) {
        if (int64_t(rows.size()) < count * inputs) rows.resize(count * inputs);
        if (int64_t(scales.size()) < count) scales.resize(count);
        for (int64_t r = 0; r < count; ++r) scales[r] = quantise(x + r * inputs, inputs, rows.data() + r * inputs);
    }
};
#endif

template <int KIND>
void multiply(const Product& p, const float* x, int64_t rows, float* y, bool add, int thread, int threads) {
    const int64_t panels = (p.outputs + COLUMNS - 1) / COLUMNS;
    const int64_t bands = panels >= threads ? 1 : threads;  // of rows, where there are fewer panels than threads
    const int64_t tall = (rows + bands - 1) / bands;
    const Share share(panels * bands, thread, threads);
#ifdef __AVX512VNNI__
    static thread_local Quantised quantised;
    if (p.small) quantised.take(x, rows, p.inputs);
    const uint8_t* q = quantised.rows.data();
    const float* scales = quantised.scales.data();
#endif
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t panel = i / bands, n = panel * COLUMNS;
        const int64_t columns = p.outputs - n < COLUMNS ? p.outputs - n : COLUMNS;
        const int64_t end = (i % bands + 1) * tall < rows ? (i % bands + 1) * tall : rows;
        int64_t r = i % bands * tall;
        const auto some = [&](auto count) {
            for (; r + count() <= end; r += count()) {
                float* out = y + r * p.outputs + n;
#ifdef __AVX512VNNI__
                if (p.small) {
                    small_tile<count(), KIND>(q + r * p.inputs, scales + r, p, n, out, columns, add);
                    continue;
                }
#endif
                tile<count(), KIND>(x + r * p.inputs, p.inputs, p.weight + n * p.inputs, p.bias + n, out, p.outputs, columns, add);
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

void multiply(int64_t kind, const Product& p, const float* x, int64_t rows, float* y, bool add, int thread, int threads) {
    switch (kind) {
        case RELU: return multiply<RELU>(p, x, rows, y, add, thread, threads);
        case GELU: return multiply<GELU>(p, x, rows, y, add, thread, threads);
        case GELU_TANH: return multiply<GELU_TANH>(p, x, rows, y, add, thread, threads);
        case SILU: return multiply<SILU>(p, x, rows, y, add, thread, threads);
        default: return multiply<NONE>(p, x, rows, y, add, thread, threads);
    }
}

void normalise(const Norm& norm, const float* x, float* y, int64_t width, const Share& rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float* in = x + r * width;
        float* out = y + r * width;
        float mean = 0, square = 0;
        if (norm.shift) {
            for (int64_t i = 0; i < width; ++i) mean += in[i];
            mean /= width;
        }
        for (int64_t i = 0; i < width; ++i) square += (in[i] - mean) * (in[i] - mean);
        const float scale = 1 / std::sqrt(square / width + norm.epsilon);
        for (int64_t i = 0; i < width; ++i)
            out[i] = (in[i] - mean) * scale * norm.scale[i] + (norm.shift ? norm.shift[i] : 0);
    }
}

inline float dot(const float* a, const float* b, int64_t width) {
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
    return sum;
}

// Softmax of the scores of what is there, then the mean of the values: `entry(t)` is where keys and values of t begin,
// or null where t is hidden. A query that sees nothing gives zeros.
template <typename Entry>
inline void look(const float* query, float* seen, float* scores, int64_t low, int64_t high, int64_t width, int64_t to_value,
                 const Entry& entry) {
    const float scale = 1 / std::sqrt(float(width));
    float peak = -INFINITY, total = 0;
    for (int64_t t = low; t < high; ++t) {
        const float* key = entry(t);
        scores[t] = key ? scale * dot(query, key, width) : -INFINITY;
        peak = scores[t] > peak ? scores[t] : peak;
    }
    for (int64_t i = 0; i < width; ++i) seen[i] = 0;
    if (peak == -INFINITY) return;
    for (int64_t t = low; t < high; ++t) {
        scores[t] = std::exp(scores[t] - peak);
        total += scores[t];
    }
    for (int64_t t = low; t < high; ++t) {
        const float* key = entry(t);
        if (!key) continue;
        const float weight = scores[t] / total;
        for (int64_t i = 0; i < width; ++i) seen[i] += weight * key[to_value + i];
    }
}

void embed(const Stack& d, int64_t token, const float* place, float* x) {
    const float* row = d.table + token * d.width;
    for (int64_t i = 0; i < d.width; ++i) x[i] = row[i] * d.scale + (place ? place[i] : 0);
}

// All layers; `attend(layer)` and `cross(layer)` put into `seen` what a thread's own rows look at.
template <typename Attend, typename Cross>
const float* layers(const Stack& d, const Room& s, int64_t rows, const Attend& attend, const Cross& cross, Meeting& meeting,
                    int thread, int threads) {
    const Share mine(rows, thread, threads);
    const auto wait = [&] { meeting.wait(); };
    const auto before = [&](const Norm& norm) {  // what a part reads
        if (!d.norm_first) return static_cast<const float*>(s.x);
        normalise(norm, s.x, s.normed, d.width, mine);
        wait();
        return static_cast<const float*>(s.normed);
    };
    const auto after = [&](const Product& out, const float* x, const Norm& norm) {  // what a part adds
        multiply<NONE>(out, x, rows, s.x, true, thread, threads);
        wait();
        if (d.norm_first) return;
        normalise(norm, s.x, s.x, d.width, mine);
        wait();
    };
    wait();
    for (int64_t l = 0; l < d.count; ++l) {
        const Layer& layer = d.layers[l];
        multiply<NONE>(layer.open, before(layer.around_attend), rows, s.wide, false, thread, threads);
        wait();
        attend(l);
        wait();
        after(layer.out, s.seen, layer.around_attend);
        if (d.crosses) {
            multiply<NONE>(layer.ask, before(layer.around_cross), rows, s.wide, false, thread, threads);
            wait();
            cross(l);
            wait();
            after(layer.tell, s.seen, layer.around_cross);
        }
        multiply(d.activation, layer.widen, before(layer.around_perceive), rows, s.wide, false, thread, threads);
        wait();
        after(layer.narrow, s.wide, layer.around_perceive);
    }
    return before(d.last);
}

void step(const Stack& d, const State& s, Meeting& meeting, int thread, int threads) {
    const int64_t rows = s.sentences * s.beams, width = d.width, head = width / d.heads, entry = 2 * width;
    const Room& room = s.room;
    const Share mine(rows, thread, threads);
    const auto scores = [&](int64_t r) { return room.scores + r * (s.capacity + s.positions); };
    const auto attend = [&](int64_t layer) {
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const int64_t sentence = r / s.beams, beam = r % s.beams;
            float* cache = s.cache + ((layer * s.sentences + sentence) * s.capacity) * s.beams * entry;
            const float* asked = room.wide + r * 3 * width;
            std::memcpy(cache + (s.time * s.beams + beam) * entry, asked + width, entry * sizeof(float));
            const int32_t* parents = s.parents + r * s.capacity;
            for (int64_t h = 0; h < d.heads; ++h) {
                const auto at = [&](int64_t t) { return cache + (t * s.beams + parents[t]) * entry + h * head; };
                look(asked + h * head, room.seen + r * width + h * head, scores(r), s.first[sentence], s.time + 1, head, width,
                     at);
            }
        }
    };
    const auto cross = [&](int64_t layer) {
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const float* source = s.sources[layer] + r / s.beams * s.positions * entry;
            const uint8_t* mask = s.mask + r / s.beams * s.positions;
            for (int64_t h = 0; h < d.heads; ++h) {
                const auto at = [&](int64_t t) -> const float* { return mask[t] ? source + t * entry + h * head : nullptr; };
                look(room.wide + r * width + h * head, room.seen + r * width + h * head, scores(r), 0, s.positions, head, width,
                     at);
            }
        }
    };
    for (int64_t r = mine.begin; r < mine.end; ++r)
        embed(d, s.tokens[r], s.places ? s.places + (s.time - s.first[r / s.beams]) * width : nullptr, room.x + r * width);
    const float* last = layers(d, room, rows, attend, cross, meeting, thread, threads);
    multiply<NONE>(d.project, last, rows, s.logits, false, thread, threads);
}

void read(const Stack& d, const Reading& s, Meeting& meeting, int thread, int threads) {
    const int64_t width = d.width, head = width / d.heads;
    const Room& room = s.room;
    const Share mine(s.rows, thread, threads);
    const auto attend = [&](int64_t) {
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const int64_t begin = s.begins[s.sentence[r]], end = s.begins[s.sentence[r] + 1];
            for (int64_t h = 0; h < d.heads; ++h) {
                const auto at = [&](int64_t t) { return room.wide + ((begin + t) * 3 + 1) * width + h * head; };
                look(room.wide + r * 3 * width + h * head, room.seen + r * width + h * head, room.scores + r * s.longest, 0,
                     end - begin, head, width, at);
            }
        }
    };
    for (int64_t r = mine.begin; r < mine.end; ++r)
        embed(d, s.tokens[r], s.places ? s.places + (r - s.begins[s.sentence[r]]) * width : nullptr, room.x + r * width);
    layers(d, room, s.rows, attend, [](int64_t) {}, meeting, thread, threads);  // a last norm leaves its result in `normed`
}

template <typename Work>
void together(int threads, const Work& work) {
#ifdef _OPENMP
    Meeting* meeting = nullptr;
#pragma omp parallel num_threads(threads)
    {
#pragma omp single
        meeting = new Meeting(omp_get_num_threads());  // which may be fewer than were asked for
        work(*meeting, omp_get_thread_num(), omp_get_num_threads());
    }
    delete meeting;
#else
    Meeting meeting(1);
    work(meeting, 0, 1);
#endif
}

}  // namespace

extern "C" {

int64_t regard_columns() { return COLUMNS; }

int64_t regard_bytes() {  // inputs of a product in bytes, at most; 0: this processor cannot
#ifdef __AVX512VNNI__
    return LONGEST;
#else
    return 0;
#endif
}

void regard_large_pages(uint8_t* begin, int64_t bytes) {  // weights are read end to end: fewer addresses to look up
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t PAGE = 1 << 21;
    const uintptr_t from = (uintptr_t(begin) + PAGE - 1) / PAGE * PAGE, to = (uintptr_t(begin) + bytes) / PAGE * PAGE;
    if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#else
    (void)begin, (void)bytes;
#endif
}

void regard_pack_bytes(const int8_t* weight, int64_t outputs, int64_t inputs, int8_t* packed) {
    for (int64_t n = 0; n < outputs; ++n)
        for (int64_t k = 0; k < inputs; ++k)
            packed[n / COLUMNS * inputs * COLUMNS + (k / 4 * COLUMNS + n % COLUMNS) * 4 + k % 4] = weight[n * inputs + k];
}

void regard_pack(const float* weight, int64_t outputs, int64_t inputs, float* packed) {
    for (int64_t n = 0; n < outputs; ++n)
        for (int64_t k = 0; k < inputs; ++k)
            packed[(n / COLUMNS * inputs + k) * COLUMNS + n % COLUMNS] = weight[n * inputs + k];
}

void regard_step(const Stack* decoder, const State* state, int threads) {
    together(threads, [&](Meeting& meeting, int thread, int all) { step(*decoder, *state, meeting, thread, all); });
}

void regard_read(const Stack* encoder, const Reading* reading, int threads) {
    together(threads, [&](Meeting& meeting, int thread, int all) { read(*encoder, *reading, meeting, thread, all); });
}

// A number that changes when weights do: of every sixteenth block of them, and of the last, so that asking is cheap.
uint64_t regard_print(const uint8_t* bytes, int64_t count) {
    constexpr uint64_t MIX = 0x9E3779B97F4A7C15u;
    constexpr int WAYS = 32;
    uint64_t state[WAYS] = {}, words[WAYS], whole = uint64_t(count);
    constexpr int64_t BLOCK = sizeof words, EVERY = 16;
    const auto mix = [&](int64_t at, int64_t size) {
        std::memset(words, 0, sizeof words);
        std::memcpy(words, bytes + at, size);
        for (int j = 0; j < WAYS; ++j) state[j] = (state[j] ^ words[j]) * MIX + 1;
    };
    for (int64_t at = 0; at + BLOCK <= count; at += EVERY * BLOCK) mix(at, BLOCK);
    mix(count > BLOCK ? count - BLOCK : 0, count > BLOCK ? BLOCK : count);
    for (int j = 0; j < WAYS; ++j) whole = (whole ^ state[j]) * MIX + 1;
    return whole;
}
}
