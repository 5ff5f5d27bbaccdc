// A whole layer: tiling, threads and the end of each sum, over the functions of one instruction set.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "format.h"

namespace prunus {
namespace kernels {

enum class Choice : int { automatic = 0, permute = 1, tile = 2, integer = 3 };

// Slots of all groups, block of columns after block, each with its values and where its inputs lie beside each other
// (`Tile::beside`).
struct Blocks {
    const uint8_t *at;
    const int64_t *start;  // [blocks * groups + 1], in slots
    int64_t banks;         // of a block
};

// What is kept from a layer's second call on: where the input of each weight lies in a tile (two bytes for each weight
// of a layer small enough to stay in a cache, for the columns of that call), and its weights as the permute kernel wants
// them.
class Places {
  public:
    // `count`: entries of columns.base, or of columns.table. Null where nothing is kept.
    const uint16_t *of(const Level &, const Packed &, const Columns &columns, int64_t count);
    // The weights of a linear layer, decoded, multiplied by their rows' scales (may be null) and cut into blocks of so many
    // banks: null where nothing is kept.
    const Blocks *blocks(const Level &, const Packed &, const float *scale, const Columns &columns, int64_t banks);
    // For the permute kernel, where its level asks for it and the layer is small enough or in quads; null otherwise.
    const Ready *ready(const Level &, const Packed &);
    // What `make` gives, made once: the weights of a convolution whose rows each read their own channel alone.
    template <typename F>
    const std::vector<float> &own(const F &make) {
        std::call_once(made_own_, [&] { own_ = make(); });
        return own_;
    }
    ~Places();

  private:
    struct Kept {
        std::vector<uint32_t> columns;
        uint32_t stride;
        std::vector<uint16_t> at;
    };
    struct One {
        std::atomic<bool> asked{false};
        std::atomic<const Kept *> kept{nullptr};
        ~One() { delete kept.load(); }
    };
    One each_[3];  // by the width of a register

    struct Cut;
    std::atomic<bool> asked_cut_[3]{};
    std::atomic<const Cut *> cut_[3]{};

    std::once_flag made_own_;
    std::vector<float> own_;

    struct Arranged;
    std::atomic<bool> asked_{false};
    std::atomic<const Arranged *> arranged_{nullptr};
};

// y (batch x rows) = act(x (batch x cols) * W^T * scale + bias).
void linear(const Level &, const Packed &, Places &, const float *x, int64_t ldx, int64_t batch, float *y,
            const Finish &, int threads, Choice);

// Which of the two kernels `automatic` takes for so many samples.
bool permutes(const Level &, const Packed &, int64_t batch);

// How the planes of an image lie in memory: `pad` zeros around each, rows `pitch` apart, planes `plane` apart. Zero for
// all three: contiguous. The zeros on the right of a row are those on the left of the next.
struct Layout {
    int64_t pad, pitch, plane;
};

struct Conv {
    int64_t batch, channels, height, width;
    int64_t kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
    Layout in, out, other;           // with a pad, x and y begin at the corner of the padding
    int64_t more_y = 0, more_x = 0;  // zeros below and on the right beyond pad_y and pad_x
    int64_t out_height() const { return steps(height + 2 * pad_y + more_y - dilation_y * (kernel_y - 1), stride_y); }
    int64_t out_width() const { return steps(width + 2 * pad_x + more_x - dilation_x * (kernel_x - 1), stride_x); }

    // Places for a kernel that has `room` to stand in; none if it does not fit at all.
    static int64_t steps(int64_t room, int64_t stride) { return room < 1 ? 0 : (room - 1) / stride + 1; }
};

// y (batch x rows x out_height x out_width) from x (batch x channels x height x width). The packed columns stand as
// (block of `bank` channels, tap, channel in the block), or, where a bank is wider than all channels, as (tap, channel).
// An input whose padding is the convolution's is read in place, where its stride is one and its weights are few.
void conv(const Level &, const Packed &, Places &, const Conv &, const float *x, float *y, const Finish &, int threads);

}  // namespace kernels
}  // namespace prunus
