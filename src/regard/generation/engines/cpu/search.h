// The loop of a search: steps of a decoder and the choice of tokens, greedy or by a beam, without Python between tokens.
//
// Equal to GreedySearch and BeamSearch of generation/choose, bit for bit, because every number is computed by the same operations.
// Slots that are done take no part in a step.

#pragma once

#include <chrono>
#include <utility>

#include "choice.h"

namespace {

enum EarlyStopping { WHEN_NONE_IS_BETTER = 0, WHEN_FULL = 1, WHEN_NONE_CAN_BE_BETTER = 2 };

struct SearchArguments {  // tensors of a strategy: (batch, ...), of hypotheses (batch, beams, ...)
    int64_t* tokens;      // (batch, beams, positions): generated
    float* log_p;         // (batch, beams, positions); null: not wanted
    int64_t* length;      // of the generated tokens
    const int64_t *limit, *min_length, *prompt;
    const int64_t* prefix;  // (batch, prefix_positions): tokens that an output begins with; -1 after the last
    const int64_t* first;   // the token before the first of `tokens`, which repetitions count
    uint8_t* done;
    uint8_t* ended;         // greedy search
    int64_t* last;          // (batch, beams): the tokens of the next step
    float *total, *ended_score, *ended_log_p;  // beam search: of the open hypotheses, and of those that have ended
    int64_t *ended_tokens, *ended_length;
    const float* penalty;   // (penalties): what a score is divided by, of each length
    const int64_t *suppressed, *ends;
    const int64_t* candidates;     // (vocab_size): the token of each logit, in ascending order; null: its own number
    const int32_t* column;         // (token_count): the logit of each token; -1: none
    const float* candidate_bias;   // (batch, vocab_size): −∞ where a token is no candidate of the slot, else 0; null with candidates
    const int32_t* interrupt;  // not 0: the loop ends after this step, as another thread wants; null: none does
    int64_t batch, beams, vocab_size, token_count, positions, prefix_positions, suppressed_count, end_count, penalties;
    int64_t forced;         // tokens that every output begins with, which have no log-probability
    int64_t no_repeat;      // n-grams of this size do not occur twice; 0: no constraint
    int64_t allow_end;      // whether an output may end before its minimum length where no other token is left
    int64_t early_stopping, beam_search, normalized;
    int64_t max_steps, stop;  // the loop ends after so many steps, or when so many more slots are done
    int64_t microseconds;     // or after the first step that ends so long after the beginning; 0: no limit
    int64_t taken;            // the result: steps
};

class Search {
  public:
    explicit Search(SearchArguments& s) : s(s), parents(s.batch * s.beams) {
        for (int64_t slot = 0; slot < s.batch; ++slot)
            if (!s.done[slot]) active.push_back(int32_t(slot));
        first = int64_t(active.size());
        size = std::min((1 + s.end_count) * s.beams, s.beams * s.vocab_size);
        if (!s.beam_search) return;
        of_rows.resize(s.batch * s.beams * size);
        of_slots.resize(s.batch * (size + s.beams));
        token_rows.resize(s.batch * s.beams * s.positions);
        log_p_rows.resize(s.batch * s.beams * s.positions);
    }

    int64_t rows() const { return int64_t(live.size()); }

    // The hypotheses that take the next step: those of active slots, without `dead` ones that have no probability, as all but
    // the first have before the first token.
    void list(bool dead) {
        live.clear();
        for (const int32_t slot : active)
            for (int64_t beam = 0; beam < s.beams; ++beam) {
                const int64_t row = slot * s.beams + beam;
                if (dead || !s.beam_search || s.total[row] > -INFINITY) live.push_back(int32_t(row));
                else std::fill_n(of_rows.data() + row * size, size, Candidate{-INFINITY, -INFINITY, beam, 0});
            }
    }

    // Whether the loop ends here though steps are left: time is over, or another thread wants it.
    bool interrupted() const {
        if (s.interrupt && __atomic_load_n(s.interrupt, __ATOMIC_RELAXED)) return true;
        return s.microseconds && std::chrono::steady_clock::now() - begin >= std::chrono::microseconds(s.microseconds);
    }

    bool ends() const { return active.empty() || first - int64_t(active.size()) >= s.stop || s.taken >= s.max_steps; }

    // What a row of logits decides: the token of greedy search, the best candidates of a beam's hypothesis.
    void choose_in_rows(float* logits, const Range& rows) {
        for (int64_t r = rows.begin; r < rows.end; ++r) {
            const int64_t slot = live[r] / s.beams, beam = live[r] % s.beams;
            float* row = logits + r * s.vocab_size;
            if (s.candidates)
                for (int64_t i = 0; i < s.vocab_size; ++i) row[i] += s.candidate_bias[slot * s.vocab_size + i];
            const Normalizer log_p = s.normalized ? normalizer_of(row, slot) : Normalizer{0, 0};
            if (s.beam_search) extend(row, log_p, slot, beam);
            else greedy(row, log_p, slot);
        }
    }

    // What the candidates of all hypotheses of a slot decide: those that end and those that continue.
    void choose_in_slots(const Range& places) {
        for (int64_t place = places.begin; place < places.end && s.beam_search; ++place) select(active[place]);
    }

    // The slots that are done leave: `move(from, to)` moves the state of the last of the others into their place.
    template <typename Move>
    void leave(const Move& move) {
        for (int64_t place = int64_t(active.size()) - 1; place >= 0; --place) {
            if (!s.done[active[place]]) continue;
            const int64_t end = int64_t(active.size()) - 1;
            if (place < end) move(end, place);
            active[place] = active[end];
            active.pop_back();
        }
    }

    const int64_t* parents_of(int64_t place) const { return parents.data() + active[place] * s.beams; }

    std::vector<int32_t> active;  // the slots that are not done
    std::vector<int32_t> live;    // slot · beams + beam of the hypotheses that take a step

  private:
    using Saved = std::vector<std::pair<int64_t, float>>;  // columns and their logits

    int64_t* tokens_of(int64_t slot, int64_t beam) const { return s.tokens + (slot * s.beams + beam) * s.positions; }
    float* log_p_of(int64_t slot, int64_t beam) const { return s.log_p + (slot * s.beams + beam) * s.positions; }

    // Of the slot's own candidates alone, side by side: a sum over all columns, in lanes, would be rounded differently
    // in every batch, whose other candidates lie between them.
    Normalizer normalizer_of(const float* row, int64_t slot) const {
        if (!s.candidates) return normalizer(row, s.vocab_size);
        static thread_local std::vector<float> own;
        const float* bias = s.candidate_bias + slot * s.vocab_size;
        own.clear();
        for (int64_t i = 0; i < s.vocab_size; ++i)
            if (bias[i] == 0) own.push_back(row[i]);
        return normalizer(own.data(), int64_t(own.size()));
    }

    int64_t column_of(int64_t token) const { return s.candidates ? s.column[token] : token; }
    int64_t token_of(int64_t column) const { return s.candidates ? s.candidates[column] : column; }

    bool is_end(int64_t token, int64_t slot, int64_t position) const {
        return position >= s.prompt[slot] && std::find(s.ends, s.ends + s.end_count, token) != s.ends + s.end_count;
    }

    int64_t prefix_token(int64_t slot) const {  // that the output continues with; -1: any
        const int64_t length = s.length[slot];
        return length < s.prefix_positions ? s.prefix[slot * s.prefix_positions + length] : -1;
    }

    // Sets logits to −∞ as logits processors do, and returns them as they were.
    const Saved& exclude(float* row, int64_t slot, const int64_t* generated) const {
        static thread_local Saved saved;
        const int64_t length = s.length[slot], n = s.no_repeat;
        const auto set = [&](int64_t token) {
            const int64_t at = column_of(token);
            if (at < 0) return;
            saved.emplace_back(at, row[at]);
            row[at] = -INFINITY;
        };
        saved.clear();
        for (int64_t i = 0; i < s.suppressed_count; ++i) set(s.suppressed[i]);
        const size_t first_end = saved.size();
        const bool early = length < s.min_length[slot];
        for (int64_t i = 0; i < s.end_count && early; ++i) set(s.ends[i]);
        const int64_t* last = generated + length - n + 1;  // the n − 1 tokens that an n-gram continues
        for (int64_t i = 0; n && i + n <= length; ++i)
            if (std::equal(generated + i, generated + i + n - 1, last)) set(generated[i + n - 1]);
        // The n-gram that begins with the token before the output.
        if (n == 1) set(s.first[slot]);
        if (n > 1 && length >= n - 1 && last[0] == s.first[slot] && std::equal(generated, generated + n - 2, last + 1))
            set(generated[n - 2]);
        if (early && s.allow_end && peak_of(row, s.vocab_size) == -INFINITY)
            for (int64_t i = 0; i < s.end_count; ++i) row[saved[first_end + i].first] = saved[first_end + i].second;
        return saved;
    }

    void greedy(float* row, const Normalizer& log_p, int64_t slot) {
        int64_t *generated = tokens_of(slot, 0), &length = s.length[slot], token = prefix_token(slot);
        if (token < 0) {
            const Saved& saved = exclude(row, slot, generated);
            if (std::isnan(log_p.log_sum)) token = argmax(s.vocab_size, [&](int64_t i) { return row[i] == -INFINITY ? row[i] : NAN; });
            else if (s.normalized) token = argmax(s.vocab_size, [&](int64_t i) { return log_p(row[i]); });
            else token = argmax(s.vocab_size, [&](int64_t i) { return row[i]; });
            for (size_t i = saved.size(); i > 0; --i) row[saved[i - 1].first] = saved[i - 1].second;
            token = token_of(token);
        }
        if (s.log_p) log_p_of(slot, 0)[length] = length < s.forced ? 0 : log_p(row[column_of(token)]);
        s.last[slot] = generated[length] = token;
        s.ended[slot] = is_end(token, slot, length);
        ++length;
        s.done[slot] = s.ended[slot] || length >= s.limit[slot];
    }

    void extend(float* row, const Normalizer& log_p, int64_t slot, int64_t beam) {
        const int64_t token = prefix_token(slot);
        const float total = s.total[slot * s.beams + beam];
        Candidate* best = of_rows.data() + (slot * s.beams + beam) * size;
        std::fill(best, best + size, Candidate{-INFINITY, -INFINITY, beam, 0});
        if (token >= 0) {
            best[0] = {log_p(row[column_of(token)]) + total, 0, beam, column_of(token)};
        } else if (total > -INFINITY) {
            exclude(row, slot, tokens_of(slot, beam));
            insert_largest(s.vocab_size, [&](int64_t i) { return log_p(row[i]) + total; }, best, size, beam);
        }
        for (int64_t i = 0; i < size; ++i) {  // whose tokens are columns until here
            if (best[i].value > -INFINITY) best[i].gained = log_p(row[best[i].token]);
            best[i].token = token_of(best[i].token);
        }
    }

    void select(int64_t slot) {
        Candidate* all = of_slots.data() + slot * (size + s.beams);
        std::copy_n(of_rows.data() + slot * s.beams * size, size, all);
        for (int64_t beam = 1; beam < s.beams; ++beam) {
            const Candidate* more = of_rows.data() + (slot * s.beams + beam) * size;
            for (int64_t i = 0; i < size && more[i].value > all[size - 1].value; ++i) {
                int64_t at = size - 1;
                for (; at > 0 && all[at - 1].value < more[i].value; --at) all[at] = all[at - 1];
                all[at] = more[i];
            }
        }
        const int64_t position = s.length[slot]++, length = position + 1, prompt = s.prompt[slot];
        const bool last = length >= s.limit[slot];
        const int64_t output_length = std::max<int64_t>(length - prompt, 1);
        for (int64_t i = 0; i < size && length <= s.forced; ++i) all[i].gained = 0;
        const auto ends = [&](const Candidate& each) { return last || is_end(each.token, slot, position); };
        for (int64_t i = 0; i < s.beams; ++i)
            if (ends(all[i])) end(slot, all[i], length, divided(all[i].value, s.penalty[output_length]));
        Candidate* open = all + size;  // those that continue
        int64_t count = 0;
        for (int64_t i = 0; i < size && count < s.beams; ++i)
            if (all[i].value > -INFINITY && !ends(all[i])) open[count++] = all[i];
        for (; count < s.beams; ++count) open[count] = {-INFINITY, -INFINITY, count, 0};
        extend_hypotheses(slot, open, position);
        const bool free = length <= std::max(prompt, s.forced);  // the prefix has no score
        float best = -INFINITY, worst = INFINITY;
        for (int64_t beam = 0; beam < s.beams; ++beam) {
            const int64_t at = slot * s.beams + beam;
            s.total[at] = free && open[beam].value > -INFINITY ? 0 : open[beam].value;
            s.last[at] = open[beam].token;
            parents[at] = open[beam].parent;
            best = std::max(best, s.total[at]);
            worst = std::min(worst, s.ended_score[at]);
        }
        int64_t longest = output_length;
        if (s.early_stopping == WHEN_NONE_CAN_BE_BETTER) longest = std::max<int64_t>(s.limit[slot] - prompt, 1);
        const bool finished = s.early_stopping == WHEN_FULL ? worst > -INFINITY : divided(best, s.penalty[longest]) <= worst;
        s.done[slot] = finished || last;
    }

    static float divided(float a, float b) { return a / b; }

    // Puts a hypothesis among the best that have ended, whose scores have no order.
    void end(int64_t slot, const Candidate& candidate, int64_t length, float score) {
        float* scores = s.ended_score + slot * s.beams;
        const int64_t beam = std::min_element(scores, scores + s.beams) - scores, at = slot * s.beams + beam;
        if (!(score > scores[beam])) return;
        scores[beam] = score;
        s.ended_length[at] = length;
        std::copy_n(tokens_of(slot, candidate.parent), length - 1, s.ended_tokens + at * s.positions);
        std::copy_n(log_p_of(slot, candidate.parent), length - 1, s.ended_log_p + at * s.positions);
        s.ended_tokens[at * s.positions + length - 1] = candidate.token;
        s.ended_log_p[at * s.positions + length - 1] = candidate.gained;
    }

    void extend_hypotheses(int64_t slot, const Candidate* open, int64_t position) {
        int64_t *tokens = tokens_of(slot, 0), *old_tokens = token_rows.data() + slot * s.beams * s.positions;
        float *log_p = log_p_of(slot, 0), *old_log_p = log_p_rows.data() + slot * s.beams * s.positions;
        bool moved = false;
        for (int64_t beam = 0; beam < s.beams; ++beam) moved |= open[beam].parent != beam;
        for (int64_t beam = 0; beam < s.beams && moved; ++beam) {
            std::copy_n(tokens + beam * s.positions, position, old_tokens + beam * s.positions);
            std::copy_n(log_p + beam * s.positions, position, old_log_p + beam * s.positions);
        }
        for (int64_t beam = 0; beam < s.beams; ++beam) {
            const int64_t row = beam * s.positions, from = open[beam].parent * s.positions;
            if (open[beam].parent != beam) {
                std::copy_n(old_tokens + from, position, tokens + row);
                std::copy_n(old_log_p + from, position, log_p + row);
            }
            tokens[row + position] = open[beam].token;
            log_p[row + position] = open[beam].gained;
        }
    }

    SearchArguments& s;
    std::vector<int64_t> parents;  // by slot
    int64_t first, size;           // slots at the beginning; candidates
    const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    std::vector<Candidate> of_rows, of_slots;
    std::vector<int64_t> token_rows;
    std::vector<float> log_p_rows;
};

const char* candidates_out_of_range(const SearchArguments& s) {
    if (!s.candidates) return s.token_count == s.vocab_size ? nullptr : "vocabulary";
    for (int64_t i = 0; i < s.vocab_size; ++i) {
        const int64_t token = s.candidates[i];
        if (token < 0 || token >= s.token_count || s.column[token] != i) return "candidate";
    }
    for (int64_t token = 0; token < s.token_count; ++token)
        if (s.column[token] < -1 || s.column[token] >= s.vocab_size) return "column of a token";
    return nullptr;
}

// What is out of range in the arguments, as text; null if nothing is.
const char* out_of_range(const SearchArguments& s) {
    if (s.batch < 1 || s.beams < 1 || s.vocab_size < 1 || (!s.beam_search && s.beams != 1)) return "batch, beams or vocabulary";
    if (s.microseconds < 0) return "time of a loop";
    if (const char* problem = candidates_out_of_range(s)) return problem;
    const auto is_token = [&](int64_t token) { return token >= 0 && token < s.token_count; };
    const auto is_candidate = [&](int64_t token) { return is_token(token) && (!s.candidates || s.column[token] >= 0); };
    for (int64_t i = 0; i < s.suppressed_count; ++i)
        if (!is_token(s.suppressed[i])) return "suppressed token";
    for (int64_t i = 0; i < s.end_count; ++i)
        if (!is_candidate(s.ends[i])) return "end token";
    for (int64_t i = 0; i < s.batch * s.prefix_positions; ++i)
        if (s.prefix[i] != -1 && !s.done[i / s.prefix_positions] && !is_candidate(s.prefix[i])) return "token of a prefix";
    for (int64_t slot = 0; slot < s.batch; ++slot) {
        if (s.done[slot]) continue;
        if (s.length[slot] < 0 || s.prompt[slot] < 0 || s.length[slot] >= s.positions) return "length of an output";
        if (s.limit[slot] <= s.length[slot]) return "limit of an output";
        // There may be room for fewer tokens than the limit: the caller takes no more steps than fit.
        if (s.limit[slot] > s.positions && s.max_steps > s.positions - s.length[slot]) return "limit of an output";
        if (s.beam_search && s.limit[slot] >= s.penalties) return "limit of an output";
        if (s.no_repeat && !is_token(s.first[slot])) return "token before the first";
        for (int64_t i = 0; s.no_repeat && i < s.beams * s.positions; ++i) {
            const int64_t token = s.tokens[slot * s.beams * s.positions + i];
            if (i % s.positions < s.length[slot] && !is_token(token)) return "generated token";
        }
    }
    return nullptr;
}

// States with a row for each hypothesis: copies of those of active slots, one behind the other, until the loop has ended.
class RowStates {
  public:
    RowStates(int64_t rows, int64_t beams) : rows(rows), beams(beams) {}

    float* add(float* state, int64_t layers, int64_t width) {  // (layers, rows, width); the copy
        parts.push_back({state, std::vector<float>(layers * rows * width), layers, width});
        return parts.back().copy.data();
    }

    void gather(const std::vector<int32_t>& slots) {
        each_slot(slots, [](float* copy, float* state, int64_t count) { std::copy_n(state, count, copy); });
    }

    void scatter(const std::vector<int32_t>& slots) {
        each_slot(slots, [](float* copy, float* state, int64_t count) { std::copy_n(copy, count, state); });
    }

    void follow(int64_t place, const int64_t* parents) {
        static thread_local std::vector<float> old;
        for (Part& part : parts)
            for (int64_t l = 0; l < part.layers; ++l) {
                float* here = part.copy.data() + (l * rows + place * beams) * part.width;
                old.assign(here, here + beams * part.width);
                for (int64_t beam = 0; beam < beams; ++beam)
                    std::copy_n(old.data() + parents[beam] * part.width, part.width, here + beam * part.width);
            }
    }

    void move(int64_t from, int64_t to) {
        for (Part& part : parts)
            for (int64_t l = 0; l < part.layers; ++l) {
                float* layer = part.copy.data() + l * rows * part.width;
                std::copy_n(layer + from * beams * part.width, beams * part.width, layer + to * beams * part.width);
            }
    }

  private:
    struct Part {
        float* state;
        std::vector<float> copy;
        int64_t layers, width;
    };

    template <typename Copy>
    void each_slot(const std::vector<int32_t>& slots, const Copy& copy) {
        for (Part& part : parts)
            for (int64_t l = 0; l < part.layers; ++l)
                for (size_t place = 0; place < slots.size(); ++place)
                    copy(part.copy.data() + (l * rows + int64_t(place) * beams) * part.width,
                         part.state + (l * rows + slots[place] * beams) * part.width, beams * part.width);
    }

    int64_t rows, beams;
    std::vector<Part> parts;
};

// Steps until `Search::ends`: `step` computes the logits of active slots, `follow(place, parents)` gives the hypotheses of a
// slot the states of their parents, `move` is that of `Search::leave`, and `next` prepares the next step.
template <typename Step, typename Follow, typename Move, typename Next>
void search_loop(Search& search, SearchArguments& s, float* logits, int threads, const Step& step, const Follow& follow,
                 const Move& move, const Next& next) {
    s.taken = 0;
    next();
    parallel(threads, [&](Barrier& barrier, int thread, int all) {
        while (!search.ends()) {
            const int64_t rows = search.rows();
            const Range mine(int64_t(search.active.size()), thread, all);
            step(barrier, thread, all);
            barrier.wait();
            search.choose_in_rows(logits, Range(rows, thread, all));
            if (s.beam_search) barrier.wait();
            search.choose_in_slots(mine);
            for (int64_t place = mine.begin; place < mine.end && s.beams > 1; ++place) follow(place, search.parents_of(place));
            barrier.wait();
            if (thread == 0) {
                search.leave(move);
                ++s.taken;
                if (search.interrupted()) s.max_steps = s.taken;
                next();
            }
            barrier.wait();
        }
    });
}

}  // namespace
