// Convolutions of every channel by itself (depthwise), of images whose channels lie last: many clients, any stride.
//
// Vectors run along channels, which must fill whole ones; images may be bfloat16, all arithmetic is in float32. There are
// few products for every number that is read, so nothing is tiled.
#pragma once

#include "last.h"

namespace {

thread_local Scratch taps_, back_;

template <class T>
class Depthwise {
 public:
  explicit Depthwise(const Last& s) : s_(s), size_(s.window * s.out), kernel_(taps_.get(2 * size_)), sum_(kernel_ + size_) {}

  void forward(const T* x, const float* w, const float* bias, T* y) {
    for (Int k = 0; k < s_.clients; ++k, w += size_) {
      turn(w);
      for (Int n = 0; n < s_.images; ++n, x += s_.image(), y += s_.result())
        places([&](Int r, Int p, Int c, Int at) {
          Vector total = bias ? load(bias + k * s_.out + c) : Vector{};
          meet(r, p, c, [&](Int in, Int tap) { total += load(x + in) * load(kernel_ + tap); });
          store(y + at, total);
        });
    }
  }

  // Null: gx, gw, gb that are not wanted; the others are overwritten.
  void backward(const T* x, const float* w, const T* g, T* gx, float* gw, float* gb) {
    for (Int k = 0; k < s_.clients; ++k, w += size_) {
      turn(w);
      std::memset(sum_, 0, size_ * sizeof(float));
      if (gb) std::memset(gb + k * s_.out, 0, s_.out * sizeof(float));
      for (Int n = 0; n < s_.images; ++n, x += s_.image(), g += s_.result()) {
        float* back = back_.zeros(gx ? s_.image() : 0);
        places([&](Int r, Int p, Int c, Int at) {
          const Vector slope = load(g + at);
          if (gb) store(gb + k * s_.out + c, load(gb + k * s_.out + c) + slope);
          if (gw) meet(r, p, c, [&](Int in, Int tap) { store(sum_ + tap, load(sum_ + tap) + load(x + in) * slope); });
          if (gx) meet(r, p, c, [&](Int in, Int tap) { store(back + in, load(back + in) + load(kernel_ + tap) * slope); });
        });
        if (!gx) continue;
        for (Int at = 0; at < s_.image(); at += LANES) store(gx + at, load(back + at));
        gx += s_.image();
      }
      for (Int c = 0; gw && c < s_.out; ++c)
        for (Int tap = 0; tap < s_.window; ++tap) *gw++ = sum_[tap * s_.out + c];
    }
  }

 private:
  // A client's weights, [channel][tap], as [tap][channel].
  void turn(const float* w) {
    for (Int c = 0; c < s_.out; ++c)
      for (Int tap = 0; tap < s_.window; ++tap) kernel_[tap * s_.out + c] = *w++;
  }

  // Calls `visit(row, column, channel, number)` for every vector of a result.
  template <class Visit>
  void places(const Visit& visit) const {
    for (Int r = 0, at = 0; r < s_.rows; ++r)
      for (Int p = 0; p < s_.columns; ++p)
        for (Int c = 0; c < s_.out; c += LANES, at += LANES) visit(r, p, c, at);
  }

  // Calls `visit(number of the image, number of the weights)` for all weights that meet the image at a place.
  template <class Visit>
  void meet(Int r, Int p, Int c, const Visit& visit) const {
    const Int top = r * s_.step - s_.ph, left = p * s_.step - s_.pw;
    for (Int i = std::max<Int>(0, -top); i < std::min(s_.kh, s_.height - top); ++i)
      for (Int j = std::max<Int>(0, -left); j < std::min(s_.kw, s_.width - left); ++j)
        visit(((top + i) * s_.width + left + j) * s_.out + c, (i * s_.kw + j) * s_.out + c);
  }

  const Last s_;
  const Int size_;  // weights of a client
  float *kernel_, *sum_;
};

}  // namespace
