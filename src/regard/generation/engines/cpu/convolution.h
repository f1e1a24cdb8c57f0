// A step of a convolutional decoder: gated causal convolutions, each with cross-attention after it.

#pragma once

#include "recurrent.h"

namespace {

struct ConvolutionLayer {
    Norm norm;
    Linear conv;  // of (taps, width) to two times width: values, then gates
    Linear query, out;
    int64_t dilation, span;  // span: positions between the first and the last tap
};

struct Convolution {
    const ConvolutionLayer* layers;
    Linear project;
    Norm final_norm;
    const float* embed_tokens;
    int64_t vocab_size, layer_count, width, taps, heads, has_cross_attn;
    float embed_scale;
};

struct ConvolutionArguments {
    const int64_t* tokens;
    float* const* seen;           // of each layer (rows, span, width): its last inputs, shifted by one position
    const float* const* sources;  // of each layer (batch, source_length, 2, width): keys and values
    const uint8_t* mask;          // (batch, source_length)
    int64_t batch, beams, source_length;
    float *x, *taps, *gated, *query, *context, *scores, *normed;  // working memory, rows of each
    float* logits;
    float* queries;  // (layers, rows, width), null unless captured
    const int32_t* slots;  // (places): the sequences that take the step, whose inputs, one behind the other, are given; null: all
    int64_t places;

    int64_t slot(int64_t row) const { return slots ? slots[row / beams] : row / beams; }
};

Work work_of(const Convolution& d, int64_t rows) {
    Work work;
    for (int64_t l = 0; l < d.layer_count; ++l)
        for (const Linear* each : {&d.layers[l].conv, &d.layers[l].query, &d.layers[l].out}) work.add(*each, rows);
    work.add(d.project, rows);
    return work;
}

void convolution_step(const Convolution& d, const ConvolutionArguments& s, Barrier& barrier, int thread, int threads) {
    const int64_t rows = s.places * s.beams, width = d.width, head = width / d.heads;
    const Range mine(rows, thread, threads);
    for (int64_t r = mine.begin; r < mine.end; ++r) {
        const float* row = d.embed_tokens + s.tokens[s.slot(r) * s.beams + r % s.beams] * width;
        for (int64_t i = 0; i < width; ++i) s.x[r * width + i] = row[i] * d.embed_scale;
    }
    for (int64_t l = 0; l < d.layer_count; ++l) {
        const ConvolutionLayer& layer = d.layers[l];
        normalize(layer.norm, s.x, s.normed, width, mine);
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            float *seen = s.seen[l] + r * layer.span * width, *taps = s.taps + r * d.taps * width;
            const size_t bytes = width * sizeof(float);
            for (int64_t k = 0; k + 1 < d.taps; ++k) std::memcpy(taps + k * width, seen + k * layer.dilation * width, bytes);
            std::memcpy(taps + (d.taps - 1) * width, s.normed + r * width, bytes);
            if (!layer.span) continue;
            std::memmove(seen, seen + width, (layer.span - 1) * bytes);
            std::memcpy(seen + (layer.span - 1) * width, s.normed + r * width, bytes);
        }
        barrier.wait();
        multiply<NONE>(layer.conv, s.taps, rows, s.gated, false, thread, threads);
        barrier.wait();
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const float* value = s.gated + r * 2 * width;
            for (int64_t i = 0; i < width; ++i) s.x[r * width + i] += value[i] * fast_sigmoid(value[width + i]);
        }
        if (!d.has_cross_attn) continue;
        barrier.wait();
        multiply<NONE>(layer.query, s.x, rows, s.query, false, thread, threads);
        barrier.wait();
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const float* query = s.query + r * width;
            if (s.queries) std::memcpy(s.queries + (l * rows + r) * width, query, width * sizeof(float));
            const float* source = s.sources[l] + s.slot(r) * s.source_length * 2 * width;
            const uint8_t* mask = s.mask + s.slot(r) * s.source_length;
            int64_t length = s.source_length;  // without padding: sums must not depend on the longest source of a batch
            while (length > 0 && !mask[length - 1]) --length;
            for (int64_t h = 0; h < d.heads; ++h) {
                const auto at = [&](int64_t t) -> const float* { return mask[t] ? source + t * 2 * width + h * head : nullptr; };
                attend_one(query + h * head, s.context + r * width + h * head, s.scores + r * s.source_length, 0, length, head, width,
                           {root_scale(head)}, at);
            }
        }
        barrier.wait();
        multiply<NONE>(layer.out, s.context, rows, s.x, true, thread, threads);
        barrier.wait();
    }
    normalize(d.final_norm, s.x, s.normed, width, mine);
    barrier.wait();
    multiply<NONE>(d.project, s.normed, rows, s.logits, false, thread, threads);
}

const char* out_of_range(const Convolution& d, const ConvolutionArguments& s) { return out_of_range_rows(s, d.vocab_size); }

}  // namespace
