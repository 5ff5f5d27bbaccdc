// One convolution made ready for images of one size: what does not change from image to image is decoded once.
#pragma once

#include <memory>
#include <vector>

#include "pool.h"
#include "run.h"

namespace prunus {
namespace kernels {

// How the planes of an image are read and where its pixels lie in them.
struct Geometry {
    int64_t out_h, out_w, taps;
    int64_t phases_y, phases_x;        // phases of the stride that some tap reads
    int64_t pitch, plane_rows, plane;  // floats between rows, rows, floats between planes
    int64_t pixels;                    // counted over whole rows
    int64_t channels;                  // planes of one phase: channels, rounded up to whole banks
    bool in_place;                     // the image itself serves as planes
    bool by_row;                       // registers never cross from one row of the output to the next
    bool windows;    // the pixels of a tile lie below each other, and its inputs are copied side by side
    int64_t room;    // then: rows of a window
    int64_t across;  // and registers in a row of the output
};

// The weights [channel][tap] of a convolution whose rows each read their own channel alone; none for any other.
std::vector<float> own_channels(const Level &, const Packed &, const Conv &);

class ConvJob {
  public:
    // Without `places` the decoded layer belongs to this object; otherwise to them, or to the calling thread until its
    // next convolution.
    ConvJob(const Level &, const Packed &, const Conv &, const Finish &, Places *places);

    // One image; `other` is what is added to it, or null. Its tiles are shared between `threads` threads.
    void image(const float *x, const float *other, float *y, int threads) const;

    int64_t work() const;  // multiply-adds for one image, and about as much for each pixel moved
    int64_t in_size() const;
    int64_t out_size() const;
    int64_t other_size() const;

  private:
    const Level &level_;
    const Packed p_;
    const Conv c_;
    const Finish f_;
    const Geometry g_;
    const uint16_t *narrow_ = nullptr;  // offsets of the inputs; null where they need more than 16 bits
    const uint32_t *wide_ = nullptr;
    const float *values_ = nullptr;
    const int64_t *cuts_ = nullptr;  // [groups][blocks + 1]: which slots of a group belong to a block of channels
    int64_t blocks_ = 0;
    int64_t step_ = 0;  // banks in a block
    std::vector<float> kept_own_;
    const std::vector<float> &own_;  // [channel][tap] where every row reads its own channel alone; otherwise empty
    std::unique_ptr<char[]> kept_[4];

    void *take(bool keep, Scratch use, int64_t bytes);
    void decode(Places *places);
    void cut(bool keep);
    int64_t block_channels() const;
    void make_plane(const float *x, int64_t channel, float *planes) const;
    int64_t vectors() const;
    int64_t tiles() const;
    void fill_window(int64_t block, int64_t row, int64_t rows, int64_t column, const float *x, float *out) const;
    void run_tile(int64_t tile, int64_t g0, int64_t g1, const float *planes, const float *other, float *y) const;
    void by_channel(const float *x, const float *other, float *y, int threads) const;
    int64_t flat_runs(int64_t start, int64_t first, int64_t last, Run *runs) const;
};

}  // namespace kernels
}  // namespace prunus
