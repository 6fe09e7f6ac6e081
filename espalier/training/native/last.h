// Convolutions of images whose channels lie last, [image][row][column][channel]: many clients, any stride.
//
// Vectors run along channels, so that nothing is turned on its way in or out, and a kernel's row is one line of
// `columns * channels` numbers of an image. Channels that vectors run along must fill whole vectors: the results'
// always, the images' too where their gradient is wanted. Kernels of one weight take any number: zeros fill the vectors.
//  - Forward, a tile of neighbouring places by vectors of outputs stays in registers over the sum.
//  - The gradient of the input is the same sweep over the result's gradient, the kernel turned round: with a stride
//    there is one for every place of an image within the stride, each with the rows and columns of the kernel it meets.
//  - The gradient of the weights goes band by band of rows that stay in the first cache: a tile of numbers of a kernel
//    row by vectors of outputs stays in registers while a band passes.
// Images and their gradients may be bfloat16, if the processor multiplies that: all of the above is then done in words
// of two numbers, whose two products one instruction adds to a sum in float32. In sweeps a word is two neighbouring
// channels, in meetings two neighbouring places of one channel. Weights and their gradients stay in float32.
// Every client is computed by itself in a fixed order: its bits do not depend on its neighbours.
#pragma once

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "pooling.h"
#include "vectors.h"

namespace {

// Weights of a layer up to which this beats a library's convolution, all three products taken together. Measured on
// one core (Zen 5) against oneDNN, batches of 32. AVX-512: 1.0 to 1.2 times as fast for 16 to 64 channels of 3x3, 1.3
// to 1.5 with stride 2, 3 with 1x1 and stride 2, 4 from 3 to 16 channels; 0.94 for 128 to 128. The same core with AVX2
// in both: 1.2 to 1.4. Elsewhere it was not measured.
#if defined(__AVX2__) && defined(__FMA__)
constexpr Int MOST_WEIGHTS = 1 << 17;
#else
constexpr Int MOST_WEIGHTS = 0;
#endif

// How numbers are stored and multiplied: float32, a word of memory each.
struct Single {
  typedef float Number;
  static constexpr Int WORD = 1;  // numbers of a word
  static float number(float value) { return value; }
  static Vector all(const float* word) { return spread(*word); }
  static Vector add(Vector sum, Vector a, Vector b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
// bfloat16, two to a word.
struct Pair {
  typedef Half Number;
  static constexpr Int WORD = 2;
  static Half number(float value) { return half(value); }
  static Vector all(const float* word) {
    int32_t bits;
    std::memcpy(&bits, word, sizeof bits);
    return (Vector)(bits - Mask{});
  }
  static Vector add(Vector sum, Vector a, Vector b) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

template <class A>
inline const float* words(const typename A::Number* numbers) { return reinterpret_cast<const float*>(numbers); }

struct Last {
  Last(const Int* n, bool pooled)
      : clients(n[0]), images(n[1]), in(n[2]), height(n[3]), width(n[4]), out(n[5]), kh(n[6]), kw(n[7]), ph(n[8]),
        pw(n[9]), step(n[10]), rows((height + 2 * ph - kh) / step + 1), columns((width + 2 * pw - kw) / step + 1),
        window(kh * kw), pooled(pooled) {}
  Int clients, images, in, height, width, out, kh, kw, ph, pw, step;  // images of a client
  Int rows, columns, window;                                          // rows and columns before pooling
  bool pooled;                                                        // ReLU and 2x2 max-pooling follow
  Int filters() const { return out * in * window; }
  Int filled() const { return std::max(up(out, LANES) * in, out * up(in, LANES)) * window; }  // filters in whole vectors
  bool points() const { return window == 1 && step == 1 && !pooled; }
  Int image() const { return height * width * in; }
  Int sums() const { return rows * columns * out; }
  Int result() const { return pooled ? rows / 2 * (columns / 2) * out : sums(); }
};

// Images with columns of zeros beside them, which a sweep may run into; without any they are taken as they are.
class Padded {
 public:
  Padded(Int height, Int width, Int channels, Int left, Int right)
      : line_((left + width + right) * channels), height_(height), own_(width * channels), at_(left * channels),
        same_(!left && !right) {}
  Int line() const { return line_; }
  // Where a row's first number would be if there were `left` columns before it.
  const float* put(const float* x, Scratch& room) const {
    if (same_) return x;
    float* to = room.get(height_ * line_);
    for (Int r = 0; r < height_; ++r, x += own_, to += line_) {
      std::memset(to, 0, at_ * sizeof(float));
      std::memcpy(to + at_, x, own_ * sizeof(float));
      std::memset(to + at_ + own_, 0, (line_ - at_ - own_) * sizeof(float));
    }
    return to - height_ * line_;
  }

 private:
  Int line_, height_, own_, at_;
  bool same_;
};

thread_local Scratch beside_, beside_too_, turned_, gathered_;

constexpr int PAIR = 2;  // vectors of channels that are computed together

// PT places by VT vectors of channels. Kernel: [row][word of the row][channel].
template <class A, int VT, int PT>
void places(const float* x, Int line, Int step, Int high, Int span, const float* w, const float* start,
            typename A::Number* to, Int apart) {
  constexpr int FOURS = (PT + 3) / 4;
  Vector total[PT][VT];
  UNROLLED
  for (int v = 0; v < VT; ++v) {
    const Vector from = start ? load(start + v * LANES) : Vector{};
    UNROLLED
    for (int p = 0; p < PT; ++p) total[p][v] = from;
  }
  for (Int i = 0; i < high; ++i, x += line) {
    const float* four[FOURS];  // addresses are few: a register for every fourth place
    UNROLLED
    for (int q = 0; q < FOURS; ++q) four[q] = x + 4 * q * step;
    for (Int e = 0; e < span; ++e, w += VT * LANES) {
      Vector near[VT];
      UNROLLED
      for (int v = 0; v < VT; ++v) near[v] = load(w + v * LANES);
      UNROLLED
      for (int p = 0; p < PT; ++p) {
        const Vector one = A::all(four[p / 4] + p % 4 * step);
        UNROLLED
        for (int v = 0; v < VT; ++v) total[p][v] = A::add(total[p][v], one, near[v]);
      }
      UNROLLED
      for (int q = 0; q < FOURS; ++q) ++four[q];
    }
  }
  UNROLLED
  for (int p = 0; p < PT; ++p) {
    UNROLLED
    for (int v = 0; v < VT; ++v) store(to + p * apart + v * LANES, total[p][v]);
  }
}

// One pass of a kernel over an image: `rows` by `columns` results of `channels`, summed over `high` rows of the kernel
// of `span` words each. Row r of the results meets rows from top + r * down on, of which there are `height`.
struct Sweep {
  Int line, down, across, top, height, high, span;
  Int rows, columns, channels, to_line, to_apart;
  Int filters() const { return high * span * channels; }
  template <class A = Single>
  void run(const float* x, const float* w, const float* start, typename A::Number* to) const {
    for (Int c = 0, size; c < channels; c += size * LANES, w += high * span * size * LANES) {
      size = std::min<Int>(PAIR, (channels - c) / LANES);
      const Cut wide(columns, REGISTERS / size);
      for (Int r = 0; r < rows; ++r) {
        const Int first = top + r * down, low = std::max<Int>(0, -first), till = std::min(high, height - first);
        for (Int t = 0; t < wide.parts; ++t)
          choose<PAIR, REGISTERS>(
              [](auto vectors, auto tile) { return &places<A, vectors, vectors * tile <= REGISTERS ? tile : 1>; }, size,
              wide.size(t))(x + (first + low) * line + wide.begin(t) * across, line, across, till - low, span,
                            w + low * span * size * LANES, start ? start + c : start,
                            to + r * to_line + wide.begin(t) * to_apart + c, to_apart);
      }
    }
  }
};

// Weights in the order in which a sweep reads them: [pair of vectors][row][word of the row][channel of the pair].
// `from` tells where the weight of a row, a column, a number of that column and a channel lies. Zeros fill the vectors.
template <class A, class From>
void pack_last(const float* w, Int high, Int wide, Int depth, Int channels, float* words, const From& from) {
  auto* to = reinterpret_cast<typename A::Number*>(words);
  for (Int c = 0, size; c < channels; c += size) {
    size = std::min<Int>(PAIR * LANES, up(channels, LANES) - c);
    for (Int i = 0; i < high; ++i)
      for (Int j = 0; j < wide; ++j)
        for (Int e = 0; e < depth; e += A::WORD)
          for (Int o = c; o < c + size; ++o)
            for (Int n = e; n < e + A::WORD; ++n) *to++ = A::number(o < channels ? w[from(i, j, n, o)] : 0);
  }
}

constexpr Int TOGETHER = 64;  // places that are computed together where each is for itself

// Calls `visit` with the sizes of every part of a client's images, and where it begins in them and in the results: an
// image each, or, of kernels of one weight, neighbouring places of any images, so many that the first cache holds them.
template <class Visit>
void parts(const Last& s, const Visit& visit) {
  Last part = s;
  if (!s.points())
    for (Int n = 0; n < s.images; ++n) visit(part, n * s.image(), n * s.result());
  else
    for (Int at = 0, till = s.images * s.rows * s.columns; at < till; at += TOGETHER) {
      part.height = part.rows = 1, part.width = part.columns = std::min(TOGETHER, till - at);
      visit(part, at * s.in, at * s.out);
    }
}

// Rows of one width into rows of another: cut off, or with zeros behind.
template <class T>
void fit(const T* from, Int width, T* to, Int wanted, Int rows) {
  const Int kept = std::min(width, wanted);
  for (Int r = 0; r < rows; ++r, from += width, to += wanted) {
    for (Int n = 0; n < kept; ++n) to[n] = from[n];
    for (Int n = kept; n < wanted; ++n) to[n] = 0;
  }
}

// Calls `visit` with the four corners of every window of an image, a vector of channels each.
template <class T, class Visit>
void windows(T* image, const Last& s, const Visit& visit) {
  for (Int r = 0, at = 0; r < s.rows / 2; ++r)
    for (Int p = 0; p < s.columns / 2; ++p)
      for (Int c = 0; c < s.out; c += LANES, at += LANES) {
        T* corner = image + (2 * r * s.columns + 2 * p) * s.out + c;
        visit(at, corner, corner + s.out, corner + s.columns * s.out, corner + (s.columns + 1) * s.out);
      }
}

template <class T>
void pool_last(const T* x, T* y, uint8_t* where, const Last& s) {
  windows(x, s, [&](Int at, const T* a, const T* b, const T* c, const T* d) {
    Largest found{load(a)};
    found.against(load(b), 1), found.against(load(c), 2), found.against(load(d), 3);
    store(y + at, found.value());
    const Bytes which = found.where();
    std::memcpy(where + at, &which, sizeof which);
  });
}

template <class T>
void unpool_last(const T* g, const uint8_t* where, T* to, const Last& s) {
  std::memset(to, 0, s.sums() * sizeof(T));
  windows(to, s, [&](Int at, T* a, T* b, T* c, T* d) {
    Bytes which;
    std::memcpy(&which, where + at, sizeof which);
    const Mask taken = widened(which);
    const Vector slope = load(g + at);
    store(a, where_is(0, taken, slope)), store(b, where_is(1, taken, slope));
    store(c, where_is(2, taken, slope)), store(d, where_is(3, taken, slope));
  });
}

thread_local Scratch whole_, filled_, slopes_filled_, start_;

template <class A>
void forward_last(const typename A::Number* x, const float* w, const float* bias, typename A::Number* y, uint8_t* where,
                  const Last& s) {
  const Int depth = s.in / A::WORD, filled = up(s.out, LANES);
  float *kernel = turned_.get(s.filled()), *start = start_.get(filled);
  auto* beside = reinterpret_cast<typename A::Number*>(filled_.get(filled == s.out ? 0 : TOGETHER * filled));
  for (Int k = 0; k < s.clients; ++k, w += s.filters()) {
    pack_last<A>(w, s.kh, s.kw, s.in, s.out, kernel,
                 [&](Int i, Int j, Int c, Int o) { return (o * s.in + c) * s.window + i * s.kw + j; });
    const Int image = k * s.images * s.image(), result = k * s.images * s.result();
    if (bias) fit(bias + k * s.out, s.out, start, filled, 1);
    auto* whole = reinterpret_cast<typename A::Number*>(whole_.get(s.pooled ? s.sums() : 0));  // an image before it is pooled
    parts(s, [&](const Last& part, Int from, Int to) {
      const Padded wide(part.height, part.width, depth, s.pw, s.pw);
      const Sweep sweep{wide.line(), s.step, s.step * depth, -s.ph, part.height, s.kh, s.kw * depth,
                        part.rows, part.columns, filled, part.columns * filled, filled};
      sweep.run<A>(wide.put(words<A>(x + image + from), beside_), kernel, bias ? start : nullptr,
                   s.pooled ? whole : filled > s.out ? beside : y + result + to);
      if (filled > s.out) fit(beside, filled, y + result + to, s.out, part.columns);
      if (s.pooled) pool_last(whole, y + result + to, where + result + to, s);
    });
  }
}

// ---- the gradients

// ET numbers of a row of the kernel by VT vectors of outputs, over a part of an image, added to `to`.
template <class A, int VT, int ET>
void meeting(const float* x, Int line, Int step, const float* g, Int rows, Int columns, Int channels, float* to) {
  Vector total[ET][VT];
  UNROLLED
  for (int e = 0; e < ET; ++e) {
    UNROLLED
    for (int v = 0; v < VT; ++v) total[e][v] = load(to + e * channels + v * LANES);
  }
  for (Int r = 0; r < rows; ++r, x += line, g += columns * channels)
    for (Int p = 0; p < columns; ++p) {
      const float* at = x + p * step;
      Vector near[VT];
      UNROLLED
      for (int v = 0; v < VT; ++v) near[v] = load(g + p * channels + v * LANES);
      UNROLLED
      for (int e = 0; e < ET; ++e) {
        const Vector one = A::all(at + e);
        UNROLLED
        for (int v = 0; v < VT; ++v) total[e][v] = A::add(total[e][v], one, near[v]);
      }
    }
  UNROLLED
  for (int e = 0; e < ET; ++e) {
    UNROLLED
    for (int v = 0; v < VT; ++v) store(to + e * channels + v * LANES, total[e][v]);
  }
}

constexpr Int BAND = 8192;  // numbers of a band, of the image and of the gradient

// Adds one image's part to `to`, [row][number of the row][output]. The image has beside it what the kernel meets there;
// `columns` words of the gradient's rows are `step` words of the image's apart.
template <class A>
void weights_last(const float* x, Int line, Int step, const float* g, Int columns, float* to, const Last& s) {
  const Int span = s.kw * s.in;
  const Cut bands(s.rows, std::max<Int>(1, BAND / (columns * s.out + s.step * line)));
  for (Int t = 0; t < bands.parts; ++t)
    for (Int i = 0; i < s.kh; ++i) {
      // Row r of the gradient meets row r * step + i - ph of the image, if there is one.
      const Int from = std::max(bands.begin(t), (std::max<Int>(0, s.ph - i) + s.step - 1) / s.step);
      const Int last = s.height - 1 + s.ph - i, till = last < 0 ? 0 : std::min(bands.begin(t + 1), last / s.step + 1);
      if (from >= till) continue;
      for (Int c = 0, size; c < s.out; c += size * LANES) {
        size = std::min<Int>(PAIR, (s.out - c) / LANES);
        const Cut parts(span, REGISTERS / size);
        for (Int u = 0; u < parts.parts; ++u)
          choose<PAIR, REGISTERS>(
              [](auto vectors, auto part) { return &meeting<A, vectors, vectors * part <= REGISTERS ? part : 1>; },
              size, parts.size(u))(x + (from * s.step + i - s.ph) * line + parts.begin(u), s.step * line, step,
                                   g + from * columns * s.out + c, till - from, columns, s.out,
                                   to + (i * span + parts.begin(u)) * s.out + c);
      }
    }
}

void image_weights(const float* x, const float* g, float* to, const Last& s) {
  const Padded wide(s.height, s.width, s.in, s.pw, s.pw);
  weights_last<Single>(wide.put(x, beside_), wide.line(), s.step * s.in, g, s.columns, to, s);
}

#if defined(__AVX512BF16__)
thread_local Scratch image_words_, gradient_words_;

// Words of which the first number is one of a and the second one of b (null: 0).
inline void zip(const Half* a, const Half* b, Int count, float* words) {
  auto* to = reinterpret_cast<uint32_t*>(words);
  for (Int n = 0; b && n < count; ++n) to[n] = a[n] | uint32_t{b[n]} << 16;
  for (Int n = 0; !b && n < count; ++n) to[n] = a[n];
}

// Word p of a row of the gradient has its columns 2 p and 2 p + 1; a word of the image has a number and the one that lies
// where the kernel comes to next.
void image_weights(const Half* x, const Half* g, float* to, const Last& s) {
  const Padded wide(s.height, s.width, s.in / Pair::WORD, s.pw, s.pw);
  const auto* image = reinterpret_cast<const Half*>(wide.put(words<Pair>(x), beside_));
  const Int line = wide.line() * Pair::WORD, step = s.step * s.in, pairs = (s.columns + 1) / 2;
  const Int count = s.height * line, met = std::max<Int>(0, count - step);
  float *own = image_words_.get(count), *slope = gradient_words_.get(s.rows * pairs * s.out);
  zip(image, image + step, met, own);
  zip(image + met, nullptr, count - met, own + met);
  for (Int r = 0; r < s.rows; ++r)
    for (Int p = 0; p < s.columns; p += 2) {
      const Half* at = g + (r * s.columns + p) * s.out;
      zip(at, p + 1 < s.columns ? at + s.out : nullptr, s.out, slope + (r * pairs + p / 2) * s.out);
    }
  weights_last<Pair>(own, line, 2 * step, slope, pairs, to, s);
}
#endif

// The sweeps that give the gradient of an image, one for every place within the stride, and their weights.
template <class A>
class Inward {
 public:
  explicit Inward(const Last& s)
      : s_(s), depth_(s.out / A::WORD), filled_in_(up(s.in, LANES)), left_(s.step > 1 && s.kw > 1 ? s.kw : s.kw - 1),
        wide_(s.rows, s.columns, depth_, left_, left_) {}

  void pack(const float* w, float* to) const {
    for (Int a = 0; a < s_.step; ++a)
      for (Int b = 0; b < s_.step; ++b) {
        const Met rows = met(a, s_.kh, s_.ph), columns = met(b, s_.kw, s_.pw);
        pack_last<A>(w, rows.count, columns.count, s_.out, s_.in, to, [&](Int i, Int j, Int o, Int c) {
          return (o * s_.in + c) * s_.window + (rows.last - i * s_.step) * s_.kw + columns.last - j * s_.step;
        });
        to += rows.count * columns.count * depth_ * filled_in_;
      }
  }

  void run(const typename A::Number* g, const float* kernel, typename A::Number* to) const {
    const float* from = wide_.put(words<A>(g), beside_too_);
    for (Int a = 0; a < s_.step; ++a)
      for (Int b = 0; b < s_.step; ++b) {
        const Met rows = met(a, s_.kh, s_.ph), columns = met(b, s_.kw, s_.pw);
        const Sweep sweep{wide_.line(), 1, depth_, rows.begin, s_.rows, rows.count, columns.count * depth_,
                          within(s_.height, a), within(s_.width, b), filled_in_, s_.step * s_.width * filled_in_,
                          s_.step * filled_in_};
        sweep.run<A>(from + (left_ + columns.begin) * depth_, kernel, nullptr, to + (a * s_.width + b) * filled_in_);
        kernel += sweep.filters();
      }
  }

 private:
  // Of a kernel of `size` rows: how many meet a place, the last of them, and the row of the gradient that it meets.
  struct Met {
    Int count, last, begin;
  };
  Met met(Int place, Int size, Int padding) const {
    const Int first = (place + padding) % s_.step, count = first < size ? (size - 1 - first) / s_.step + 1 : 0;
    const Int last = first + (count - 1) * s_.step;
    return {count, last, count ? (place + padding - last) / s_.step : 0};
  }
  Int within(Int size, Int place) const { return place < size ? (size - 1 - place) / s_.step + 1 : 0; }

  const Last s_;
  const Int depth_, filled_in_, left_;  // words of a place of the gradient; channels; columns of zeros beside it
  const Padded wide_;
};

// Null: gx, gw, gb that are not wanted; the others are overwritten.
template <class A>
void backward_last(const typename A::Number* x, const float* w, const typename A::Number* g, const uint8_t* where,
                   typename A::Number* gx, float* gw, float* gb, const Last& s) {
  typedef typename A::Number Number;
  const Int image = s.images * s.image(), result = s.images * s.result();
  const Int in = up(s.in, LANES), out = up(s.out, LANES);  // channels in whole vectors
  float* kernel = turned_.get(s.filled());
  auto* whole = reinterpret_cast<Number*>(whole_.get(s.pooled ? s.sums() : 0));
  auto* inward = reinterpret_cast<Number*>(filled_.get(in == s.in ? 0 : TOGETHER * in));
  auto* slopes = reinterpret_cast<Number*>(slopes_filled_.get(out == s.out ? 0 : TOGETHER * out));
  if (gb) std::memset(gb, 0, s.clients * s.out * sizeof(float));
  for (Int k = 0; k < s.clients; ++k, x += image, g += result, w += s.filters()) {
    if (gx) Inward<A>(s).pack(w, kernel);
    float* sum = gathered_.zeros(s.filled());
    parts(s, [&](Last part, Int from, Int to) {
      if (s.pooled) unpool_last(g + to, where + k * result + to, whole, s);
      const Number* slope = s.pooled ? whole : g + to;
      for (Int at = 0; gb && at < part.sums(); at += s.out)
        for (Int o = 0; o < s.out; ++o) gb[k * s.out + o] += single(slope[at + o]);
      if (gx) {
        Number* back = gx + k * image + from;
        Inward<A>(part).run(slope, kernel, in > s.in ? inward : back);
        if (in > s.in) fit(inward, in, back, s.in, part.columns);
      }
      if (!gw) return;
      if (out > s.out) fit(slope, s.out, slopes, out, part.columns);
      part.out = out;
      image_weights(x + from, out > s.out ? slopes : slope, sum, part);
    });
    for (Int o = 0; gw && o < s.out; ++o)
      for (Int c = 0; c < s.in; ++c)
        for (Int at = 0; at < s.window; ++at) *gw++ = sum[(at * s.in + c) * out + o];
  }
}

}  // namespace
