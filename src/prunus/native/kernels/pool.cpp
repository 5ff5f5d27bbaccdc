#include "pool.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace prunus {
namespace kernels {
namespace {

constexpr int max_threads = 256;
constexpr int scratch_slots = int(Scratch::count);

// How long a thread looks for work, or for the end of it, before it sleeps: to wake a sleeping one can take as long.
constexpr std::chrono::microseconds patience{50};

inline void breathe() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

template <typename F>
bool soon(const F &come_true) {
    static const bool alone = std::thread::hardware_concurrency() < 2;
    if (come_true()) return true;
    if (alone) return false;
    const auto end = std::chrono::steady_clock::now() + patience;
    do {
        for (int i = 0; i < 32; ++i) {
            if (come_true()) return true;
            breathe();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

class Pool {
  public:
    explicit Pool(pid_t owner) : owner(owner) {}

    const pid_t owner;

    // An exception of a task, in whichever thread, ends the run and is thrown here; the pool can be used again.
    void run(int threads, int64_t tasks, Task task, void *context) {
        std::unique_lock<std::mutex> entry(busy_, std::try_to_lock);
        if (!entry.owns_lock()) {
            for (int64_t i = 0; i < tasks; ++i) task(context, i);
            return;
        }
        task_ = task, context_ = context, tasks_ = tasks;
        next_.store(0, std::memory_order_relaxed);
        const int wanted = int(tasks < threads ? tasks : threads) - 1;
        while (workers_ < wanted && start_worker()) {
        }
        state_.store(uint64_t(wanted) * vacancy);
        if (sleeping_.load() > 0) {
            {
                std::lock_guard<std::mutex> hold(sleep_);
            }
            wake_.notify_all();
        }
        work();
        state_.fetch_and(vacancy - 1);  // a thread that wakes only now finds nothing to join
        const auto finished = [this] { return state_.load() == 0; };
        if (!soon(finished)) {
            std::unique_lock<std::mutex> hold(sleep_);
            waiting_.store(true);
            done_.wait(hold, finished);
            waiting_.store(false);
        }
        if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
    }

  private:
    static constexpr uint64_t vacancy = uint64_t(1) << 32;

    std::mutex busy_, sleep_;
    std::condition_variable wake_, done_;
    Task task_ = nullptr;
    void *context_ = nullptr;
    int64_t tasks_ = 0;
    std::atomic<int64_t> next_{0};
    std::atomic<uint64_t> state_{0};  // places still to be taken, times `vacancy`, plus threads at work
    std::atomic<int> sleeping_{0};
    std::atomic<bool> waiting_{false};  // the caller sleeps until the last thread is done
    int workers_ = 0;
    std::mutex failing_;
    std::exception_ptr failed_;  // read by the caller once all threads are done

    bool start_worker() {
        try {
            std::thread([this] { serve(); }).detach();
        } catch (const std::exception &) {
            return false;  // the caller's own thread does all the work then
        }
        ++workers_;
        return true;
    }

    void work() {
        try {
            for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) task_(context_, i);
        } catch (...) {
            next_.store(tasks_, std::memory_order_relaxed);  // nobody begins another task
            std::lock_guard<std::mutex> hold(failing_);
            if (!failed_) failed_ = std::current_exception();
        }
    }

    bool join() {
        uint64_t seen = state_.load();
        while (seen >= vacancy)
            if (state_.compare_exchange_weak(seen, seen - vacancy + 1)) return true;
        return false;
    }

    void serve() {
        for (;;) {
            if (!soon([this] { return join(); })) {
                std::unique_lock<std::mutex> hold(sleep_);
                sleeping_.fetch_add(1);
                wake_.wait(hold, [this] { return join(); });
                sleeping_.fetch_sub(1);
            }
            work();
            if (state_.fetch_sub(1) == 1 && waiting_.load()) {
                {
                    std::lock_guard<std::mutex> hold(sleep_);
                }
                done_.notify_one();
            }
        }
    }
};

// Threads do not survive a fork: the child makes its own pool and leaves the parent's memory alone.
Pool &pool() {
    static std::atomic<Pool *> current{nullptr};
    const pid_t here = getpid();
    Pool *found = current.load();
    while (found == nullptr || found->owner != here) {
        Pool *fresh = new Pool(here);
        if (current.compare_exchange_strong(found, fresh)) return *fresh;
        delete fresh;
    }
    return *found;
}

struct Buffers {
    void *at[scratch_slots] = {};
    int64_t size[scratch_slots] = {};
    ~Buffers() {
        for (void *p : at) std::free(p);
    }
};
thread_local Buffers buffers;

struct OutOfMemory : std::bad_alloc {
    const char *what() const noexcept override {
        return "The sparse kernels need more memory than there is: use a smaller batch, or fewer threads.";
    }
};

}  // namespace

void run_tasks(int threads, int64_t tasks, Task task, void *context) {
    if (threads > max_threads) threads = max_threads;
    if (threads <= 1 || tasks <= 1) {
        for (int64_t i = 0; i < tasks; ++i) task(context, i);
        return;
    }
    pool().run(threads, tasks, task, context);
}

void *scratch(Scratch use, int64_t bytes) {
    const int slot = int(use);
    if (buffers.size[slot] < bytes) {
        std::free(buffers.at[slot]);
        buffers.size[slot] = 0;
        const int64_t wanted = (bytes + 4095) / 4096 * 4096;
        buffers.at[slot] = std::aligned_alloc(64, size_t(wanted));
        if (buffers.at[slot] == nullptr) throw OutOfMemory();
        buffers.size[slot] = wanted;
    }
    return buffers.at[slot];
}

}  // namespace kernels
}  // namespace prunus
