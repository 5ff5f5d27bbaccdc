#include "program.h"

#include "image.h"
#include "pool.h"

namespace prunus {
namespace kernels {
Program::Program(const Level &level, int64_t memory, std::vector<int64_t> sizes)
    : level_(level), memory_(memory), sizes_(std::move(sizes)) {}

void Program::conv(const Packed &p, const Conv &c, const Finish &f, Place in, Place out, const Place *other) {
    Step step = {Kind::conv, in, out, other ? *other : in, other != nullptr, {}, {}, nullptr};
    step.job.reset(new ConvJob(level_, p, c, f, nullptr));
    work_ += step.job->work();
    steps_.push_back(std::move(step));
}

void Program::thin(Size size, int64_t step_y, int64_t step_x, int64_t before, int64_t after, Place in, Place out) {
    steps_.push_back({Kind::thin, in, out, in, false, size, {step_y, step_x, before, after}, nullptr});
}

void Program::max_pool(Size size, int64_t kernel_y, int64_t kernel_x, int64_t stride_y, int64_t stride_x, Place in,
                       Place out) {
    steps_.push_back({Kind::max_pool, in, out, in, false, size, {kernel_y, kernel_x, stride_y, stride_x}, nullptr});
}

void Program::image(int64_t n, const std::vector<float *> &tensors, int threads) const {
    float *memory = static_cast<float *>(scratch(Scratch::program, memory_ * int64_t(sizeof(float))));
    const auto at = [&](const Place &place) {
        return place.base < 0 ? memory + place.offset : tensors[size_t(place.base)] + n * sizes_[size_t(place.base)];
    };
    for (const Step &step : steps_) {
        float *out = at(step.out);
        if (step.kind == Kind::conv) {
            step.job->image(at(step.in), step.adds ? at(step.other) : nullptr, out, threads);
            continue;
        }
        const Planes from = {at(step.in), step.in.layout, step.size.height, step.size.width};
        const int64_t *m = step.numbers, channels = step.size.channels;
        if (step.kind == Kind::thin) {
            const Planes to = {out, step.out.layout, (from.height + m[0] - 1) / m[0], (from.width + m[1] - 1) / m[1]};
            clear_border(to.layout, channels + m[2] + m[3], to.height, to.width, out);
            thin_image(from, channels, m, to);
        } else {
            const Planes to = {out, step.out.layout, (from.height - m[0]) / m[2] + 1, (from.width - m[1]) / m[3] + 1};
            clear_border(to.layout, channels, to.height, to.width, out);
            max_pool_image(from, channels, m, to);
        }
    }
}

void Program::run(int64_t batch, const std::vector<float *> &tensors, int threads) const {
    parallel_images(useful_threads(threads, work_ * batch, float_work), batch,
                    [&](int64_t n, int inside) { image(n, tensors, inside); });
}

}  // namespace kernels
}  // namespace prunus
