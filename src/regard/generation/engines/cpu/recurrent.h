// A step of a recurrent decoder: without attention, or with that of Bahdanau (before the cells) or Luong (after them).

#pragma once

#include "layers.h"

namespace {

enum Cell { ELMAN = 0, GRU = 1, LSTM = 2 };
enum AttentionOrder { NO_ATTENTION = 0, BEFORE = 1, AFTER = 2 };

struct RecurrentLayer {  // as PyTorch's: gates of the input and of the hidden state, in its order
    Linear input_gates, hidden_gates;
};

struct Recurrent {
    const RecurrentLayer* layers;
    Linear query, context_gate, context_proj, project;  // query: without weights, the identity; context_gate: or none
    const float* embed_tokens;
    const float* additive_weight;  // of an additive score; null: dot products
    int64_t vocab_size, layer_count, width, embed_dim, memory_dim, key_dim, feed_dim, cell, attention;
    float embed_scale, score_scale;
};

struct RecurrentArguments {
    const int64_t* tokens;  // (batch · beams)
    float* hidden;          // (layers, stride, width): overwritten
    float* cell_state;      // the same of an LSTM, or null
    float* context;         // (rows, feed_dim): the input beside the token; with input feeding overwritten
    const float* keys;      // (batch, source_length, key_dim)
    const float* values;    // (batch, source_length, memory_dim)
    const uint8_t* mask;    // (batch, source_length)
    int64_t batch, beams, source_length;
    float *input, *gates, *hidden_gates, *query, *attended, *scores, *joined, *output;  // working memory, rows of each
    float* logits;          // (rows, vocabulary)
    const int32_t* slots;   // (places): the sequences that take the step, whose states, one behind the other, are given; null: all
    int64_t places, stride;

    int64_t slot(int64_t row) const { return slots ? slots[row / beams] : row / beams; }
};

Work work_of(const Recurrent& d, int64_t rows) {
    Work work;
    for (int64_t l = 0; l < d.layer_count; ++l) {
        work.add(d.layers[l].input_gates, rows);
        work.add(d.layers[l].hidden_gates, rows);
    }
    for (const Linear* each : {&d.query, &d.context_gate, &d.context_proj, &d.project}) work.add(*each, rows);
    return work;
}

inline bool linear_is_given(const Linear& layer) { return layer.weight || layer.int8_weight; }

// Attention of the rows of a thread to the memory of their sequences; `query` has key_dim numbers a row.
void attend_rows(const Recurrent& d, const RecurrentArguments& s, const float* query, const Range& rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const int64_t first = s.slot(r) * s.source_length;
        const uint8_t* mask = s.mask + first;
        const float *q = query + r * d.key_dim, *keys = s.keys + first * d.key_dim;
        float *scores = s.scores + r * s.source_length, *context = s.attended + r * d.memory_dim;
        int64_t length = s.source_length;  // without padding: sums must not depend on the longest source of a batch
        while (length > 0 && !mask[length - 1]) --length;
        for (int64_t t = 0; t < length; ++t) {
            const float* key = keys + t * d.key_dim;
            if (!mask[t]) scores[t] = -INFINITY;
            else if (d.additive_weight)
                scores[t] = sum_of(d.key_dim, [&](int64_t i) { return d.additive_weight[i] * fast_tanh(q[i] + key[i]); });
            else scores[t] = d.score_scale * dot(q, key, d.key_dim);
        }
        weighted_sum(scores, length, s.values + first * d.memory_dim, d.memory_dim, d.memory_dim, context);
    }
}

// The new hidden states of a layer from the gates of its input and of its hidden state.
void update_cells(const Recurrent& d, const RecurrentArguments& s, int64_t layer, const Range& rows) {
    const int64_t width = d.width, gates = d.cell == LSTM ? 4 : d.cell == GRU ? 3 : 1;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float *x = s.gates + r * gates * width, *h = s.hidden_gates + r * gates * width;
        float* hidden = s.hidden + (layer * s.stride + r) * width;
        if (d.cell == ELMAN) {
            for (int64_t i = 0; i < width; ++i) hidden[i] = fast_tanh(x[i] + h[i]);
        } else if (d.cell == GRU) {
            for (int64_t i = 0; i < width; ++i) {
                const float reset = fast_sigmoid(x[i] + h[i]), update = fast_sigmoid(x[width + i] + h[width + i]);
                const float candidate = fast_tanh(x[2 * width + i] + reset * h[2 * width + i]);
                hidden[i] = (1 - update) * candidate + update * hidden[i];
            }
        } else {
            float* cell = s.cell_state + (layer * s.stride + r) * width;
            for (int64_t i = 0; i < width; ++i) {
                const float input = fast_sigmoid(x[i] + h[i]), forget = fast_sigmoid(x[width + i] + h[width + i]);
                const float candidate = fast_tanh(x[2 * width + i] + h[2 * width + i]);
                cell[i] = forget * cell[i] + input * candidate;
                hidden[i] = fast_sigmoid(x[3 * width + i] + h[3 * width + i]) * fast_tanh(cell[i]);
            }
        }
    }
}

void recurrent_step(const Recurrent& d, const RecurrentArguments& s, Barrier& barrier, int thread, int threads) {
    const int64_t rows = s.places * s.beams, width = d.width, input = d.embed_dim + d.feed_dim;
    const Range mine(rows, thread, threads);
    const auto linear = [&](const Linear& layer, const float* x, float* y) {
        multiply<NONE>(layer, x, rows, y, false, thread, threads);
    };
    const auto attend = [&](const float* hidden) {  // leaves the context in `attended`
        if (linear_is_given(d.query)) {
            linear(d.query, hidden, s.query);
            barrier.wait();
        }
        attend_rows(d, s, linear_is_given(d.query) ? s.query : hidden, mine);
    };
    float* top = s.hidden + (d.layer_count - 1) * s.stride * width;
    if (d.attention == BEFORE) {
        attend(top);
        if (linear_is_given(d.context_gate)) {  // one number a row: computed by the thread of the row
            for (int64_t r = mine.begin; r < mine.end; ++r) {
                float gate;
                multiply<NONE>(d.context_gate, top + r * width, 1, &gate, false, 0, 1);
                gate = fast_sigmoid(gate);
                for (int64_t i = 0; i < d.memory_dim; ++i) s.attended[r * d.memory_dim + i] *= gate;
            }
        }
    }
    for (int64_t r = mine.begin; r < mine.end; ++r) {
        const float* row = d.embed_tokens + s.tokens[s.slot(r) * s.beams + r % s.beams] * d.embed_dim;
        float* x = s.input + r * input;
        for (int64_t i = 0; i < d.embed_dim; ++i) x[i] = row[i] * d.embed_scale;
        const float* fed = d.attention == BEFORE ? s.attended + r * d.memory_dim : s.context + r * d.feed_dim;
        if (d.feed_dim) std::memcpy(x + d.embed_dim, fed, d.feed_dim * sizeof(float));
    }
    barrier.wait();
    const float* below = s.input;
    for (int64_t l = 0; l < d.layer_count; ++l) {
        linear(d.layers[l].input_gates, below, s.gates);
        linear(d.layers[l].hidden_gates, s.hidden + l * s.stride * width, s.hidden_gates);
        barrier.wait();
        update_cells(d, s, l, mine);
        barrier.wait();
        below = s.hidden + l * s.stride * width;
    }
    if (d.attention != NO_ATTENTION) {
        if (d.attention == AFTER) attend(top);
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            float* joined = s.joined + r * (width + d.memory_dim);
            std::memcpy(joined, top + r * width, width * sizeof(float));
            std::memcpy(joined + width, s.attended + r * d.memory_dim, d.memory_dim * sizeof(float));
        }
        barrier.wait();
        linear(d.context_proj, s.joined, s.output);
        barrier.wait();
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            for (int64_t i = 0; i < width; ++i) s.output[r * width + i] = fast_tanh(s.output[r * width + i]);
            if (d.attention == AFTER && d.feed_dim)
                std::memcpy(s.context + r * d.feed_dim, s.output + r * width, d.feed_dim * sizeof(float));
        }
        barrier.wait();
        below = s.output;
    }
    linear(d.project, below, s.logits);
}

template <typename Arguments>
const char* out_of_range_rows(const Arguments& s, int64_t vocab_size) {
    if (s.batch < 0 || s.beams < 1 || s.source_length < 0) return "batch, beams or source length";
    if (s.places < 0 || (!s.slots && s.places != s.batch)) return "sequence";
    for (int64_t r = 0; r < s.places * s.beams; ++r) {
        const int64_t slot = s.slot(r);
        if (slot < 0 || slot >= s.batch) return "sequence";
        const int64_t token = s.tokens[slot * s.beams + r % s.beams];
        if (token < 0 || token >= vocab_size) return "token id";
    }
    return nullptr;
}

const char* out_of_range(const Recurrent& d, const RecurrentArguments& s) {
    if (s.stride < s.places * s.beams) return "hidden state";
    return out_of_range_rows(s, d.vocab_size);
}

}  // namespace
