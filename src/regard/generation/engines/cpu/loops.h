// The loop of a search with each decoder.

#pragma once

#include "convolution.h"
#include "recurrent.h"
#include "search.h"
#include "transformer.h"

namespace {

// Makes the next step one of active slots.
void take_part(StepArguments& p, Search& search, bool dead = true) {
    search.list(dead);
    p.rows = search.live.data();
    p.row_count = search.rows();
}

template <typename Arguments>  // with a row for each hypothesis
void take_part(Arguments& p, Search& search) {
    search.list(true);
    p.slots = search.active.data();
    p.places = int64_t(search.active.size());
}

const char* search(const Stack& d, StepArguments& p, SearchArguments& s, int threads) {
    Search search(s);
    const int64_t begin = p.time;
    s.max_steps = std::min(s.max_steps, p.capacity - p.time);
    for (const int32_t slot : search.active)
        if (reads_positions(p) && p.time + s.max_steps - p.admitted[slot] > p.positions) return "position";
    const auto take = [&](Barrier& barrier, int thread, int all) { step(d, p, barrier, thread, all); };
    const auto follow = [&](int64_t place, const int64_t* chosen) {
        static thread_local std::vector<int32_t> old;
        const int64_t slot = search.active[place], first = p.admitted[slot], count = p.time + 1 - first;
        int32_t* parents = p.parents + slot * p.beams * p.capacity + first;
        if (int64_t(old.size()) < p.beams * count) old.resize(p.beams * p.capacity);
        for (int64_t beam = 0; beam < p.beams; ++beam) std::copy_n(parents + beam * p.capacity, count, old.data() + beam * count);
        for (int64_t beam = 0; beam < p.beams; ++beam)
            std::copy_n(old.data() + chosen[beam] * count, count, parents + beam * p.capacity);
    };
    const auto next = [&] {
        take_part(p, search, false);
        p.time = begin + s.taken;
        for (const int32_t slot : search.active)
            for (int64_t beam = 0; beam < p.beams && p.time < p.capacity; ++beam)
                p.parents[(slot * p.beams + beam) * p.capacity + p.time] = int32_t(beam);
    };
    search_loop(search, s, p.logits, threads, take, follow, [](int64_t, int64_t) {}, next);
    return nullptr;
}

// With a state that has a row for each hypothesis.
template <typename Decoder, typename Arguments, typename Step>
void search_rows(const Decoder& d, Arguments& p, RowStates& states, SearchArguments& s, int threads, const Step& step) {
    Search search(s);
    states.gather(search.active);
    const auto take = [&](Barrier& barrier, int thread, int all) { step(d, p, barrier, thread, all); };
    const auto follow = [&](int64_t place, const int64_t* parents) { states.follow(place, parents); };
    const auto move = [&](int64_t from, int64_t to) { states.move(from, to); };
    const auto next = [&] { take_part(p, search); };
    search_loop(search, s, p.logits, threads, take, follow, move, next);
    states.scatter(search.active);
}

const char* search(const Recurrent& d, RecurrentArguments& p, SearchArguments& s, int threads) {
    RowStates states(p.batch * p.beams, p.beams);
    p.hidden = states.add(p.hidden, d.layer_count, d.width);
    if (p.cell_state) p.cell_state = states.add(p.cell_state, d.layer_count, d.width);
    if (d.attention != BEFORE) p.context = states.add(p.context, 1, d.feed_dim);
    search_rows(d, p, states, s, threads, recurrent_step);
    return nullptr;
}

const char* search(const Convolution& d, ConvolutionArguments& p, SearchArguments& s, int threads) {
    RowStates states(p.batch * p.beams, p.beams);
    std::vector<float*> seen;
    for (int64_t l = 0; l < d.layer_count; ++l) seen.push_back(states.add(p.seen[l], 1, d.layers[l].span * d.width));
    p.seen = seen.data();
    search_rows(d, p, states, s, threads, convolution_step);
    return nullptr;
}

// Checks all arguments and searches; null, or what is out of range: nothing is computed then.
template <typename Decoder, typename Arguments>
const char* checked_search(const Decoder& d, Arguments p, SearchArguments& s, int threads) {
    if (s.batch != p.batch || s.beams != p.beams || s.vocab_size != d.project.outputs) return "batch, beams or vocabulary";
    if (s.token_count > d.vocab_size) return "vocabulary";  // every token is embedded
    if (const char* problem = out_of_range(s)) return problem;
    Search search(s);
    take_part(p, search);
    p.tokens = s.last;
    if (const char* problem = out_of_range(d, p)) return problem;
    return ::search(d, p, s, work_of(d, search.rows()).threads(threads));
}

}  // namespace
