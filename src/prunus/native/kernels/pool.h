// A small pool of threads. Tasks are handed out one by one, so which thread runs a task never changes a result; a
// second caller that finds the pool busy runs its tasks itself. Waiting threads look around for some microseconds, then
// sleep.
#pragma once

#include <algorithm>
#include <cstdint>

namespace prunus {
namespace kernels {

using Task = void (*)(void *context, int64_t index);

void run_tasks(int threads, int64_t tasks, Task task, void *context);

template <typename F>
void parallel(int threads, int64_t tasks, const F &body) {
    run_tasks(
        threads, tasks, [](void *context, int64_t index) { (*static_cast<const F *>(context))(index); },
        const_cast<void *>(static_cast<const void *>(&body)));
}

// As many of `threads` as pay for `work` multiply-adds; each needs `least` to bring more than it costs.
constexpr int64_t float_work = 100000, integer_work = 400000;
inline int useful_threads(int threads, int64_t work, int64_t least) {
    return int(std::max<int64_t>(1, std::min<int64_t>(threads, work / least)));
}

// Images of a batch: each is a task where there are enough of them, otherwise `image(n, threads)` shares its own work.
template <typename F>
void parallel_images(int threads, int64_t batch, const F &image) {
    if (batch >= 2 * threads)
        parallel(threads, batch, [&](int64_t n) { image(n, 1); });
    else
        for (int64_t n = 0; n < batch; ++n) image(n, threads);
}

// Memory that a thread keeps between calls, by what it is used for; 64-byte aligned, contents undefined.
enum class Scratch : int {
    padded,     // inputs filled up to whole banks
    sums,       // and the tables of the permute kernel
    inputs,     // as tiles, or as planes
    bases,      // where each bank lies
    cursors,    // how far each group has come
    places,     // decoded
    values,     // decoded
    runs,       // of pixels; a row of a pool
    program,    // what the steps of a program hand each other
    window,     // of an image
    quantised,  // inputs as bytes
    projected,  // queries, keys and values
    heads,      // what attention gives
    attention,  // scores of a head
    residual,   // sums and norms of a block
    inner,      // of a feed-forward
    gates,      // of a recurrent layer
    count
};
void *scratch(Scratch use, int64_t bytes);

}  // namespace kernels
}  // namespace prunus
