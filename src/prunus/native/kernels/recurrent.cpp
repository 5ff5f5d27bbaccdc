#include "recurrent.h"

#include <algorithm>

#include "pool.h"

namespace prunus {
namespace kernels {

namespace {
constexpr int64_t share = 1 << 14;        // numbers of gates below which one thread computes them
constexpr int64_t room_floats = 1 << 21;  // of gates that are computed before the steps that use them
}  // namespace

void recur(const Machine &m, const Recurrent &r, const float *x, int64_t steps, int64_t batch, float *h, float *c,
           float *out, int64_t ldo) {
    const int64_t hidden = r.hidden(), width = r.gates() * hidden, cols = r.inputs.cols();
    const int64_t some = std::max<int64_t>(1, std::min(steps, room_floats / std::max<int64_t>(1, batch * width)));
    const auto cell = r.lstm ? m.blocks.lstm : m.blocks.gru;
    const int threads = batch * width < share ? 1 : m.threads;
    float *gates = static_cast<float *>(scratch(Scratch::gates, (some + 1) * batch * width * int64_t(sizeof(float))));
    float *more = gates + some * batch * width;
    for (int64_t done = 0; done < steps; done += some) {
        const int64_t count = std::min(some, steps - done), first = r.backwards ? steps - done - count : done;
        Inputs{m, x + first * batch * cols, cols, count * batch}(r.inputs, gates, width);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = r.backwards ? count - 1 - i : i;
            Inputs{m, h, hidden, batch}(r.state, more, width);
            parallel(threads, batch, [&](int64_t n) {
                cell({gates + (at * batch + n) * width, more + n * width, h + n * hidden, c ? c + n * hidden : nullptr,
                      hidden});
                std::copy(h + n * hidden, h + (n + 1) * hidden, out + ((first + at) * batch + n) * ldo);
            });
        }
    }
}

}  // namespace kernels
}  // namespace prunus
