// Threads that compute one step together.

#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

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

template <typename Task>
void parallel(int threads, const Task& work) {
    if (threads <= 1) {  // without OpenMP, whose threads of an earlier region would be woken
        Barrier alone(1);
        return work(alone, 0, 1);
    }
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
