// A small Transformer decoder with pseudo-random weights, searched by the compiled engine without Python: greedy and with a
// beam, in float32 and int8. Prints every output, so that variants of the engine for other processors can be compared.
// Compiled together with step.cpp, whose path is ENGINE.

#include ENGINE

#include <cstdio>

namespace {

constexpr int64_t WIDTH = 40, HEADS = 2, FFN = 72, LAYERS = 2, VOCABULARY = 53, BATCH = 3, SOURCE = 5, CAPACITY = 9, END = 3;

struct Numbers {  // the same on every machine
    uint32_t state = 12345;
    float next() {
        state = state * 1664525u + 1013904223u;
        return float(int32_t(state >> 8) - (1 << 23)) / float(1 << 23);
    }
    std::vector<float>* some(int64_t count, float scale, float shift = 0) {  // lives as long as the process
        auto* all = new std::vector<float>(count);
        for (float& each : *all) each = shift + scale * next();
        return all;
    }
};

Linear linear(Numbers& numbers, int64_t inputs, int64_t outputs, bool int8) {
    const int64_t padded = (outputs + COLUMNS - 1) / COLUMNS * COLUMNS;
    const auto& weight = *numbers.some(outputs * inputs, 1.7f / std::sqrt(float(inputs)));
    const float* bias = numbers.some(outputs, 0.3f)->data();
    if (!int8) {
        auto* packed = new std::vector<float>(padded * inputs);
        regard_pack(weight.data(), outputs, inputs, 0, 1, packed->data());
        return {packed->data(), bias, nullptr, nullptr, nullptr, inputs, outputs};
    }
    auto* scale = new std::vector<float>(padded);
    auto *offset = new std::vector<int32_t>(padded);
    auto *quantized = new std::vector<int8_t>(outputs * inputs), *panels = new std::vector<int8_t>(padded * inputs);
    for (int64_t n = 0; n < outputs; ++n) {
        float peak = 0;
        for (int64_t k = 0; k < inputs; ++k) peak = std::max(peak, std::fabs(weight[n * inputs + k]));
        (*scale)[n] = peak / 127;
        for (int64_t k = 0; k < inputs; ++k) {
            const long whole = std::lrintf(weight[n * inputs + k] / (*scale)[n]);
            (*quantized)[n * inputs + k] = int8_t(whole);
            (*offset)[n] += int32_t(128 * whole);
        }
    }
    regard_pack_int8(quantized->data(), outputs, inputs, panels->data());
    return {nullptr, bias, panels->data(), scale->data(), offset->data(), inputs, outputs};
}

void run(bool int8, int64_t beams) {
    Numbers numbers;
    const auto norm = [&] { return Norm{numbers.some(WIDTH, 0.2f, 1)->data(), numbers.some(WIDTH, 0.2f)->data(), 1e-5f}; };
    const auto layer = [&](int64_t inputs, int64_t outputs) { return linear(numbers, inputs, outputs, int8); };
    std::vector<Layer> layers;
    for (int64_t l = 0; l < LAYERS; ++l)
        layers.push_back({layer(WIDTH, 3 * WIDTH), layer(WIDTH, WIDTH), layer(WIDTH, WIDTH), layer(WIDTH, WIDTH), layer(WIDTH, FFN),
                          layer(FFN, WIDTH), {}, norm(), norm(), norm(), {}, {}, {}});
    const Linear project = layer(WIDTH, VOCABULARY);
    const Stack decoder{layers.data(), project, norm(), {}, numbers.some(VOCABULARY * WIDTH, 1)->data(), VOCABULARY, LAYERS,
                        WIDTH, HEADS, HEADS, WIDTH / HEADS, FFN, GELU, 1, 1, 1, 1.5f};
    const int64_t rows = BATCH * beams;
    std::vector<float> cache(LAYERS * BATCH * CAPACITY * beams * 2 * WIDTH), x(rows * WIDTH), normed(x), context(x);
    std::vector<float> hidden(rows * 3 * WIDTH), scores(rows * (CAPACITY + SOURCE)), logits(rows * VOCABULARY);
    std::vector<int32_t> parents(rows * CAPACITY), admitted(BATCH);
    std::vector<const float*> sources;
    for (int64_t l = 0; l < LAYERS; ++l) sources.push_back(numbers.some(BATCH * SOURCE * 2 * WIDTH, 1)->data());
    std::vector<uint8_t> mask(BATCH * SOURCE, 1), done(BATCH), ended(BATCH);
    mask[SOURCE - 1] = mask[2 * SOURCE - 3] = 0;
    for (int64_t row = 0; row < rows; ++row) parents[row * CAPACITY] = int32_t(row % beams);
    std::vector<int64_t> last(rows, 2), tokens(rows * CAPACITY), length(BATCH), limit(BATCH, CAPACITY), zeros(BATCH);
    std::vector<int64_t> prefix(BATCH, -1), ended_tokens(rows * CAPACITY), ended_length(rows), suppressed{0, 2}, ends{END};
    std::vector<float> log_p(rows * CAPACITY), total(rows, -INFINITY), ended_score(total), ended_log_p(log_p), penalty;
    for (int64_t b = 0; b < BATCH; ++b) total[b * beams] = 0;
    for (int64_t n = 0; n <= CAPACITY; ++n) penalty.push_back(float(n > 0 ? n : 1));
    const StepArguments step{cache.data(), parents.data(), admitted.data(), sources.data(), mask.data(), last.data(),
                             numbers.some(CAPACITY * WIDTH, 1)->data(), nullptr, nullptr, CAPACITY, BATCH, beams,
                             CAPACITY, 0, SOURCE,
                             {x.data(), normed.data(), hidden.data(), nullptr, context.data(), scores.data()}, logits.data(),
                             nullptr, nullptr, rows};
    SearchArguments search{};
    search.tokens = tokens.data(), search.log_p = log_p.data(), search.length = length.data(), search.limit = limit.data();
    search.min_length = search.prompt = zeros.data(), search.prefix = prefix.data(), search.done = done.data();
    search.ended = ended.data(), search.last = last.data(), search.total = total.data(), search.ended_score = ended_score.data();
    search.ended_log_p = ended_log_p.data(), search.ended_tokens = ended_tokens.data();
    search.ended_length = ended_length.data(), search.penalty = penalty.data(), search.suppressed = suppressed.data();
    search.ends = ends.data(), search.batch = BATCH, search.beams = beams, search.vocab_size = search.token_count = VOCABULARY;
    search.positions = CAPACITY, search.prefix_positions = 1, search.suppressed_count = 2, search.end_count = 1;
    search.penalties = CAPACITY + 1, search.beam_search = beams > 1, search.normalized = 1, search.max_steps = CAPACITY;
    search.stop = BATCH;
    if (const char* problem = regard_search(&decoder, &step, &search, 1)) {
        std::printf("%s out of range\n", problem);
        std::exit(1);
    }
    for (int64_t row = 0; row < rows; ++row) {
        const bool beam = beams > 1;
        const int64_t count = beam ? ended_length[row] : length[row];
        const int64_t* ids = (beam ? ended_tokens : tokens).data() + row * CAPACITY;
        const float* own = (beam ? ended_log_p : log_p).data() + row * CAPACITY;
        std::printf("%s %lld %lld:", int8 ? "int8" : "float32", static_cast<long long>(beams), static_cast<long long>(row));
        for (int64_t i = 0; i < count; ++i) std::printf(" %lld %.6f", static_cast<long long>(ids[i]), double(own[i]));
        std::printf("\n");
    }
}

}  // namespace

int main() {
    for (const bool int8 : {false, true})
        for (const int64_t beams : {1, 4})
            if (!int8 || regard_int8_max_inputs()) run(int8, beams);
}
