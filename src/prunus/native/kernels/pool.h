// A small pool of threads. Tasks are handed out one by one, so which thread runs a task never changes a result; a
// second caller that finds the pool busy runs its tasks itself. Waiting threads look around for some microseconds, then
// sleep.
#pragma once

#include <cstdint>

namespace prunus {
namespace kernels {

using Task = void (*)(void *context, int64_t index);

void run_tasks(int threads, int64_t tasks, Task task, void *context);

template <typename F>
void parallel(int threads, int64_t tasks, const F &body) {
    run_tasks(threads, tasks, [](void *context, int64_t index) { (*static_cast<const F *>(context))(index); },
              const_cast<void *>(static_cast<const void *>(&body)));
}

// Memory that a thread keeps between calls; 64-byte aligned, contents undefined. `slot` tells users apart.
void *scratch(int slot, int64_t bytes);

}  // namespace kernels
}  // namespace prunus
