// One decoding step of a decoder on a CPU, or a whole encoder: all layers in one call, weights packed once.
//
// A step multiplies few rows by many weights: it is bound by memory bandwidth, and in PyTorch by the overhead of some
// sixty calls. Here each thread reads its own columns of every matrix once, in memory order.
// Plain C++ with the compiler's vector extensions; only the standard library is included.

#include "loops.h"
#ifdef __linux__
#include <sys/mman.h>
#endif

extern "C" {

int64_t regard_panel_columns() { return COLUMNS; }

int64_t regard_int8_max_inputs() {  // of a layer with int8 weights; 0: not supported by this processor
#ifdef REGARD_INT8
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
    parallel(work_of(*decoder, arguments->row_count).threads(threads),
             [&](Barrier& barrier, int thread, int all) { step(*decoder, *arguments, barrier, thread, all); });
    return nullptr;
}

const char* regard_encode(const Stack* encoder, const EncodeArguments* arguments, int threads) {
    if (const char* problem = out_of_range(*encoder, *arguments)) return problem;
    parallel(work_of(*encoder, arguments->rows).threads(threads),
             [&](Barrier& barrier, int thread, int all) { encode(*encoder, *arguments, barrier, thread, all); });
    return nullptr;
}

const char* regard_recurrent_step(const Recurrent* decoder, const RecurrentArguments* arguments, int threads) {
    if (const char* problem = out_of_range(*decoder, *arguments)) return problem;
    parallel(work_of(*decoder, arguments->places * arguments->beams).threads(threads),
             [&](Barrier& barrier, int thread, int all) { recurrent_step(*decoder, *arguments, barrier, thread, all); });
    return nullptr;
}

const char* regard_convolution_step(const Convolution* decoder, const ConvolutionArguments* arguments, int threads) {
    if (const char* problem = out_of_range(*decoder, *arguments)) return problem;
    parallel(work_of(*decoder, arguments->places * arguments->beams).threads(threads),
             [&](Barrier& barrier, int thread, int all) { convolution_step(*decoder, *arguments, barrier, thread, all); });
    return nullptr;
}

// Whole searches: as many steps as `SearchArguments` allows.
const char* regard_search(const Stack* d, const StepArguments* p, SearchArguments* s, int threads) {
    return checked_search(*d, *p, *s, threads);
}

const char* regard_recurrent_search(const Recurrent* d, const RecurrentArguments* p, SearchArguments* s, int threads) {
    return checked_search(*d, *p, *s, threads);
}

const char* regard_convolution_search(const Convolution* d, const ConvolutionArguments* p, SearchArguments* s, int threads) {
    return checked_search(*d, *p, *s, threads);
}

void regard_log_softmax(const float* x, int64_t rows, int64_t width, float* y, int threads) {
    parallel(rows * width < (1 << 20) ? 1 : threads, [&](Barrier&, int thread, int all) {
        const Range mine(rows, thread, all);
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const Normalizer log_p = normalizer(x + r * width, width);
            for (int64_t i = 0; i < width; ++i) y[r * width + i] = log_p(x[r * width + i]);
        }
    });
}

const char* regard_linear(const Linear* layer, const LinearArguments* s, int threads) {
    Work work;
    work.add(*layer, s->rows);
    parallel(work.threads(threads),
             [&](Barrier&, int thread, int all) { multiply<NONE>(*layer, s->x, s->rows, s->y, false, thread, all); });
    return nullptr;
}

// A hash that changes when weights do: of all lines of 64 bytes of a small tensor; of a large one, to be cheap, of one in each
// window of 32 KiB, at another place in each, so that a change of some columns of a matrix is likely to be noticed as well.
uint64_t regard_fingerprint(const uint8_t* const* weights, const int64_t* sizes, int64_t count) {
    constexpr uint64_t MIX = 0x9E3779B97F4A7C15u;
    constexpr int STREAMS = 8;
    constexpr int64_t LINE = STREAMS * 8, SMALL = 4096, LARGE = 32768;
    uint64_t state[STREAMS] = {}, words[STREAMS], window = 0;
    const auto mix = [&](const uint8_t* bytes, int64_t size) {
        std::memset(words, 0, sizeof words);
        std::memcpy(words, bytes, size);
        for (int j = 0; j < STREAMS; ++j) state[j] = (state[j] ^ words[j]) * MIX + 1;
    };
    for (int64_t i = 0; i < count; ++i) {
        const int64_t size = sizes[i], step = size <= SMALL ? LINE : LARGE;
        for (int64_t begin = 0; begin < size; begin += step, ++window) {
            const int64_t lines = (size - begin < step ? size - begin : step) / LINE;
            if (lines) mix(weights[i] + begin + int64_t((window * MIX >> 32) % lines) * LINE, LINE);
        }
        const int64_t last = size < LINE ? size : LINE;
        mix(weights[i] + size - last, last);
    }
    uint64_t whole = uint64_t(count);
    for (int j = 0; j < STREAMS; ++j) whole = (whole ^ state[j]) * MIX + 1;
    return whole;
}
}
