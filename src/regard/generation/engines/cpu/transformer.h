// A step of a Transformer decoder, and a whole Transformer encoder.

#pragma once

#include "layers.h"

namespace {

struct Layer {
    Linear qkv_proj, out_proj, cross_q_proj, cross_out_proj, ffn_up, ffn_down;
    Linear ffn_gate;                  // without inputs: not gated
    Norm norm1, norm2, ffn_norm;
    Norm q_norm, k_norm, cross_q_norm;  // of heads; without weight: none
};

struct Stack {
    const Layer* layers;
    Linear project;             // decoders: hidden states to logits
    Norm final_norm, input_norm;  // input_norm without weight: none
    const float* embed_tokens;  // (vocabulary, width)
    int64_t vocab_size, layer_count, width, heads, kv_heads, head_dim, ffn_dim, activation, norm_first, has_cross_attn;
    int64_t scaled;  // whether scores are divided by the root of head_dim
    float embed_scale;

    float scale() const { return scaled ? root_scale(head_dim) : 1; }
    int64_t q_width() const { return heads * head_dim; }
    int64_t kv_width() const { return kv_heads * head_dim; }
    int64_t kv_at(int64_t head) const { return head / (heads / kv_heads) * head_dim; }  // the key and value head of a query head
};

struct Scratch {  // x is the residual stream, (rows, width)
    float *x, *normed, *hidden, *gate, *context, *scores;
};

struct StepArguments {
    float* cache;                 // (layers, batch, capacity, beams, 2, kv_width): keys and values
    int32_t* parents;             // (batch, beams, capacity): the hypothesis whose entry of each step is an ancestor's
    const int32_t* admitted;      // (batch): the step at which each sequence was admitted
    const float* const* sources;  // of each layer (batch, source_length, 2, kv_width): keys and values
    const uint8_t* mask;          // (batch, source_length)
    const int64_t* tokens;        // (batch · beams)
    const float* position_table;  // (positions, width), or null
    const float* rotations;       // (positions, head_dim): cosines, then sines, of rotary positions; or null
    const float* distance_bias;   // (positions, heads): added to the score of a key so many positions before; or null
    int64_t positions, batch, beams, capacity, time, source_length;
    Scratch scratch;
    float* logits;                // (batch · beams, vocabulary)
    float* queries;               // (layers, 2, batch · beams, q_width) of self- and cross-attention; null unless captured
    const int32_t* rows;          // (row_count): slot · beams + beam of those that take the step, whose logits are given; null: all
    int64_t row_count;

    int64_t row(int64_t r) const { return rows ? rows[r] : r; }
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

Work work_of(const Stack& stack, int64_t rows) {
    Work work;
    for (int64_t l = 0; l < stack.layer_count; ++l) {
        const Layer& layer = stack.layers[l];
        for (const Linear* each : {&layer.qkv_proj, &layer.out_proj, &layer.cross_q_proj, &layer.cross_out_proj, &layer.ffn_up,
                                   &layer.ffn_down, &layer.ffn_gate})
            work.add(*each, rows);
    }
    work.add(stack.project, rows);
    return work;
}

void embed(const Stack& stack, int64_t token, const float* position, float* x) {
    const float* row = stack.embed_tokens + token * stack.width;
    for (int64_t i = 0; i < stack.width; ++i) x[i] = row[i] * stack.embed_scale + (position ? position[i] : 0);
}

// Rotary positions: rotates dimension i of each head with i + head / 2; `rotation` has the cosines and sines of a position.
void rotate(float* x, int64_t heads, int64_t head, const float* rotation) {
    const int64_t half = head / 2;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < half; ++i) {
            float &first = x[h * head + i], &second = x[h * head + half + i];
            const float a = first, b = second;
            first = a * rotation[i] - b * rotation[half + i];
            second = b * rotation[i] + a * rotation[half + i];
        }
}

void normalize_heads(const Norm& norm, float* x, int64_t heads, int64_t head) {
    if (norm.weight) normalize(norm, x, x, head, Range(heads, 0, 1));
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
        const float* normed = before(layer.ffn_norm);
        const bool gated = layer.ffn_gate.inputs > 0;
        multiply(gated ? NONE : stack.activation, layer.ffn_up, normed, rows, s.hidden, false, thread, threads);
        if (gated) {
            multiply(stack.activation, layer.ffn_gate, normed, rows, s.gate, false, thread, threads);
            wait();
            for (int64_t i = mine.begin * stack.ffn_dim; i < mine.end * stack.ffn_dim; ++i) s.hidden[i] *= s.gate[i];
        }
        wait();
        after(layer.ffn_down, s.hidden, layer.ffn_norm);
    }
    return before(stack.final_norm);
}

void step(const Stack& stack, const StepArguments& s, Barrier& barrier, int thread, int threads) {
    const int64_t rows = s.row_count, width = stack.width, head = stack.head_dim, heads = stack.heads;
    const int64_t q_width = stack.q_width(), kv_width = stack.kv_width(), entry = 2 * kv_width;
    const Scratch& scratch = s.scratch;
    const Range mine(rows, thread, threads);
    const auto slot_of = [&](int64_t r) { return s.row(r) / s.beams; };
    const auto position_of = [&](int64_t r) { return s.time - s.admitted[slot_of(r)]; };
    const auto scores = [&](int64_t r) { return scratch.scores + r * (s.capacity + s.source_length); };
    const auto attend = [&](int64_t layer) {
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const int64_t slot = slot_of(r), beam = s.row(r) % s.beams;
            float* cache = s.cache + ((layer * s.batch + slot) * s.capacity) * s.beams * entry;
            float *query = scratch.hidden + r * (q_width + entry), *key = query + q_width;
            normalize_heads(stack.layers[layer].q_norm, query, heads, head);
            normalize_heads(stack.layers[layer].k_norm, key, stack.kv_heads, head);
            if (s.rotations) {
                rotate(query, heads, head, s.rotations + position_of(r) * head);
                rotate(key, stack.kv_heads, head, s.rotations + position_of(r) * head);
            }
            std::memcpy(cache + (s.time * s.beams + beam) * entry, key, entry * sizeof(float));
            if (s.queries) std::memcpy(s.queries + (2 * layer * rows + r) * q_width, query, q_width * sizeof(float));
            const int32_t* parents = s.parents + (slot * s.beams + beam) * s.capacity;
            for (int64_t t = s.admitted[slot]; t < s.time; ++t)  // the caches of all sequences are larger than the processor's
                prefetch(cache + (t * s.beams + parents[t]) * entry, entry);
            for (int64_t h = 0; h < heads; ++h) {
                const float* keys = cache + stack.kv_at(h);
                const auto at = [&](int64_t t) { return keys + (t * s.beams + parents[t]) * entry; };
                attend_one(query + h * head, scratch.context + r * q_width + h * head, scores(r), s.admitted[slot],
                           s.time + 1, head, kv_width, {stack.scale(), s.distance_bias ? s.distance_bias + h : nullptr, heads}, at);
            }
        }
    };
    const auto cross = [&](int64_t layer) {
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            float* query = scratch.hidden + r * q_width;
            normalize_heads(stack.layers[layer].cross_q_norm, query, heads, head);
            if (s.queries) std::memcpy(s.queries + ((2 * layer + 1) * rows + r) * q_width, query, q_width * sizeof(float));
            const float* source = s.sources[layer] + slot_of(r) * s.source_length * entry;
            const uint8_t* mask = s.mask + slot_of(r) * s.source_length;
            int64_t length = s.source_length;  // without padding: sums must not depend on the longest source of a batch
            while (length > 0 && !mask[length - 1]) --length;
            for (int64_t h = 0; h < heads; ++h) {
                const float* keys = source + stack.kv_at(h);
                const auto at = [&](int64_t t) { return mask[t] ? keys + t * entry : nullptr; };
                attend_one(query + h * head, scratch.context + r * q_width + h * head, scores(r), 0, length, head, kv_width,
                           {stack.scale()}, at);
            }
        }
    };
    for (int64_t r = mine.begin; r < mine.end; ++r) {
        const float* position = s.position_table ? s.position_table + position_of(r) * width : nullptr;
        embed(stack, s.tokens[s.row(r)], position, scratch.x + r * width);
    }
    if (stack.input_norm.weight) normalize(stack.input_norm, scratch.x, scratch.x, width, mine);
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
                           end - begin, head, width, {stack.scale()}, at);
            }
        }
    };
    for (int64_t r = mine.begin; r < mine.end; ++r)
        embed(stack, s.tokens[r], s.position_table ? s.position_table + (r - s.offsets[s.sequence[r]]) * width : nullptr, scratch.x + r * width);
    layers(stack, scratch, s.rows, attend, [](int64_t) {}, barrier, thread, threads);  // a final norm leaves its result in `normed`
}

bool reads_positions(const StepArguments& s) { return s.position_table || s.rotations || s.distance_bias; }

// The first index of step or encode that is out of range, as text; null if all are in range. Checked here, because ids
// and lengths come from files and programs, and an unchecked one would read or write other memory.
const char* out_of_range(const Stack& stack, const StepArguments& s) {
    if (s.batch < 0 || s.beams < 1 || s.source_length < 0 || s.row_count < 0) return "batch, beams or source length";
    if (s.time < 0 || s.time >= s.capacity) return "step beyond the cache";
    if (s.row_count > s.batch * s.beams || (!s.rows && s.row_count != s.batch * s.beams)) return "sequence";
    for (int64_t r = 0; r < s.row_count; ++r) {
        const int64_t row = s.row(r), slot = row / s.beams;
        if (row < 0 || slot >= s.batch) return "sequence";
        const int64_t admitted = s.admitted[slot];
        if (s.tokens[row] < 0 || s.tokens[row] >= stack.vocab_size) return "token id";
        if (admitted < 0 || admitted > s.time) return "step of admission";
        if (reads_positions(s) && s.time - admitted >= s.positions) return "position";
        for (int64_t t = admitted; t <= s.time; ++t)
            if (s.parents[row * s.capacity + t] < 0 || s.parents[row * s.capacity + t] >= s.beams) return "parent hypothesis";
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

}  // namespace
