#include "pool.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

namespace prunus {
namespace kernels {
namespace {

constexpr int max_threads = 256;
constexpr int scratch_slots = 9;

class Pool {
  public:
    explicit Pool(pid_t owner) : owner(owner) {}

    const pid_t owner;

    void run(int threads, int64_t tasks, Task task, void *context) {
        std::unique_lock<std::mutex> entry(busy_, std::try_to_lock);
        if (!entry.owns_lock()) {
            for (int64_t i = 0; i < tasks; ++i) task(context, i);
            return;
        }
        {
            std::lock_guard<std::mutex> hold(state_);
            task_ = task, context_ = context, tasks_ = tasks;
            next_.store(0, std::memory_order_relaxed);
            vacancies_ = int(tasks < threads ? tasks : threads) - 1;
            while (workers_ < vacancies_ && start_worker()) {
            }
        }
        wake_.notify_all();
        work();
        std::unique_lock<std::mutex> hold(state_);
        vacancies_ = 0;  // a thread that wakes only now finds nothing to join
        done_.wait(hold, [this] { return active_ == 0; });
    }

  private:
    std::mutex busy_, state_;
    std::condition_variable wake_, done_;
    Task task_ = nullptr;
    void *context_ = nullptr;
    int64_t tasks_ = 0;
    std::atomic<int64_t> next_{0};
    int vacancies_ = 0, active_ = 0, workers_ = 0;

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
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) task_(context_, i);
    }

    void serve() {
        std::unique_lock<std::mutex> hold(state_);
        for (;;) {
            wake_.wait(hold, [this] { return vacancies_ > 0; });
            --vacancies_;
            ++active_;
            hold.unlock();
            work();
            hold.lock();
            if (--active_ == 0) done_.notify_one();
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

}  // namespace

void run_tasks(int threads, int64_t tasks, Task task, void *context) {
    if (threads > max_threads) threads = max_threads;
    if (threads <= 1 || tasks <= 1) {
        for (int64_t i = 0; i < tasks; ++i) task(context, i);
        return;
    }
    pool().run(threads, tasks, task, context);
}

void *scratch(int slot, int64_t bytes) {
    if (buffers.size[slot] < bytes) {
        std::free(buffers.at[slot]);
        buffers.size[slot] = 0;
        const int64_t wanted = (bytes + 4095) / 4096 * 4096;
        buffers.at[slot] = std::aligned_alloc(64, size_t(wanted));
        if (buffers.at[slot] == nullptr) throw std::bad_alloc();
        buffers.size[slot] = wanted;
    }
    return buffers.at[slot];
}

}  // namespace kernels
}  // namespace prunus
