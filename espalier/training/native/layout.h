// How a batch lies in memory while it is computed, and the ways there and back.
#pragma once

#include "vectors.h"

namespace {

struct Shape {
  explicit Shape(const Int* n)
      : clients(n[0]), batch(n[1]), in(n[2]), height(n[3]), width(n[4]), out(n[5]), kh(n[6]), kw(n[7]), ph(n[8]),
        pw(n[9]), rows(height + 2 * ph - kh + 1), columns(width + 2 * pw - kw + 1), window(kh * kw),
        deep(even(batch)), vectors((columns * deep - 1) / LANES + 1),
        line(odd(vectors * LANES + (kw - 1) * deep)), plane((height + 2 * ph) * line),
        g_line(odd((vectors + 1) * LANES)), g_plane(rows * g_line), d_line(odd(width * deep)),
        d_plane(height * d_line) {}
  Int clients, batch, in, height, width, out, kh, kw, ph, pw;
  Int rows, columns, window;  // rows and columns of the output
  Int deep;                   // images side by side; a batch's last block may have fewer, and zeros in their place
  Int vectors;                // of a line of the output
  Int line, plane;            // numbers from one row, one channel of the images to the next
  Int g_line, g_plane;        // the same of the output's gradient: a vector of zeros follows every row
  Int d_line, d_plane;        // the same of the input's gradient
  Int pixels(bool pooled) const { return pooled ? (rows / 2) * (columns / 2) : rows * columns; }

 private:
  // As few blocks as there can be, all of nearly one size: 23 images are 12 and 11.
  static Int even(Int batch) {
    const Int blocks = std::max<Int>(1, (batch + LANES - 1) / LANES);
    return std::max<Int>(1, (batch + blocks - 1) / blocks);
  }
};

constexpr Int SLACK = (LANES + 1) * LANES;  // what `gather` may write and `scatter` may read too much

// `count` numbers of each image, which are `apart`, side by side. Lanes and columns that are not there become zeros,
// over what is written next.
void gather(const float* from, const float* end, Int apart, Int images, Int count, float* to, Int deep) {
  static const float nothing[LANES] = {};
  for (Int at = 0; deep == 1 && at < count; at += LANES)
    store(to + at, keep(read<Vector>(from + at, end), count - at));
  for (Int at = 0; deep > 1 && at < count; at += LANES) {
    const float* row = from + at;
    Int step = apart;
    float copy[LANES * LANES];
    if (row + (images - 1) * apart + LANES > end) {
      for (Int b = 0; b < images; ++b) store(copy + b * LANES, read<Vector>(row + b * apart, end));
      row = copy, step = LANES;
    }
    const Mask there = first(count - at);
    Vector v[LANES];
    UNROLLED
    for (int b = 0; b < LANES; ++b) v[b] = (Vector)((Mask)load(b < images ? row + b * step : nothing) & there);
    turn(v);
    UNROLLED
    for (int p = 0; p < LANES; ++p) store(to + (at + p) * deep, v[p]);
  }
}

// The way back; an image has `left` numbers from `to` on.
void scatter(const float* from, Int deep, Int count, float* to, Int left, Int apart, Int images) {
  for (Int at = 0; deep == 1 && at < count; at += LANES) write(to + at, to + left, load(from + at));
  for (Int at = 0; deep > 1 && at < count; at += LANES) {
    Vector v[LANES];
    UNROLLED
    for (int p = 0; p < LANES; ++p) v[p] = load(from + (at + p) * deep);
    turn(v);
    if (at + LANES <= left) {
      UNROLLED
      for (int b = 0; b < LANES; ++b)
        if (b < images) store(to + b * apart + at, v[b]);
    } else {
      float copy[LANES * LANES];
      UNROLLED
      for (int b = 0; b < LANES; ++b) store(copy + b * LANES, v[b]);
      for (Int b = 0; b < images; ++b) std::memcpy(to + b * apart + at, copy + b * LANES, (left - at) * sizeof(float));
    }
  }
}

// A block of images into planes with padding, which hold zeros there already.
void lay(const float* x, const float* end, Int images, float* to, const Shape& s) {
  for (Int c = 0; c < s.in; ++c)
    for (Int r = 0; r < s.height; ++r, x += s.width)
      gather(x, end, s.in * s.height * s.width, images, s.width,
             to + c * s.plane + (r + s.ph) * s.line + s.pw * s.deep, s.deep);
}

}  // namespace
