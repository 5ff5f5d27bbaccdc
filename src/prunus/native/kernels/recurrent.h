// A layer of an LSTM or a GRU over all steps: one product for the inputs of every step, one for the state in each.
#pragma once

#include "block.h"

namespace prunus {
namespace kernels {

struct Recurrent {
    Product inputs, state;  // (gates * hidden) x inputs, (gates * hidden) x hidden
    bool lstm;              // otherwise a GRU
    bool backwards;         // the last step first
    int64_t hidden() const { return state.cols(); }
    int64_t gates() const { return lstm ? 4 : 3; }
};

// x (steps x batch x inputs), h and c (batch x hidden; c null for a GRU), which end as the last state. out: h of every
// step, rows `ldo` apart, batch after batch.
void recur(const Machine &, const Recurrent &, const float *x, int64_t steps, int64_t batch, float *h, float *c,
           float *out, int64_t ldo);

}  // namespace kernels
}  // namespace prunus
