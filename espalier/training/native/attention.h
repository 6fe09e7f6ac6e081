// Scaled dot product attention of many samples and heads, forward and backward, with the softmax in between.
//
// A head is computed by itself, all of it in the first two caches. Its scores lie [key][query]: vectors run along
// queries, so that a softmax needs no sums across lanes. Products are those of last.h: one whose terms lie side by side
// in one of its factors is a sweep, one whose results do is a meeting. The backward pass computes the scores again; what
// is kept of them is each query's largest and the inverse of its sum.
// Every head is computed in a fixed order: its bits do not depend on other samples.
#pragma once

#include <limits>

#include "last.h"
#include "layout.h"

namespace {

// Scores of a head up to which this beats the library's attention.
#if defined(__AVX2__) && defined(__FMA__)
constexpr Int MOST_SCORES = 1 << 18;
#else
constexpr Int MOST_SCORES = 0;
#endif

// A tensor [sample][head][place][number], of which only the numbers must lie side by side. `at` may be null.
struct Strided {
  float* at;
  Int row, head, place;
  float* of(Int r, Int h) const { return at + r * row + h * head; }
};

struct Attention {
  Int rows, heads, queries, keys, size;  // size: numbers of a head
  double scale;
};

// 2 to the power of x, for x <= 0 (a little more does no harm), to 2 units in the last place; 0 below -126.
inline Vector power(Vector x) {
  constexpr float WHOLE = 12582912;  // 1.5 * 2^23: what it is added to is rounded to a whole number, in its lowest bits
  const Mask small = x < -126.0f;
  const Vector in = small ? spread(-126) : x, shifted = in + WHOLE, rest = in - (shifted - WHOLE);
  Vector sum = rest * 1.535336188319500e-4f + 1.339887440266574e-3f;  // Cephes' polynomial
  sum = sum * rest + 9.618437357674640e-3f;
  sum = sum * rest + 5.550332471162809e-2f;
  sum = sum * rest + 2.402264791363012e-1f;
  sum = sum * rest + 6.931472028550421e-1f;
  sum = sum * rest + 1.0f;
  const Vector whole = (Vector)((Mask)sum + ((Mask)shifted << 23));
  return small ? Vector{} : whole;
}

constexpr float LOG2_E = 1.44269504f;

// `count` rows of `size` numbers that are `apart`, in panels of at most `most` numbers: [panel][row][number], with zeros
// behind a row's last number up to a whole vector.
inline void panels(const float* from, Int apart, Int count, Int size, Int most, float* to) {
  for (Int c = 0; c < size; c += most) {
    const Int width = std::min(most, up(size - c, LANES)), own = std::min(width, size - c);
    for (Int n = 0; n < count; ++n, to += width) {
      std::memset(to + own, 0, (width - own) * sizeof(float));
      std::memcpy(to, from + n * apart + c, own * sizeof(float));
    }
  }
}

thread_local Scratch scores_, changes_, across_, added_, factor_, outcome_;

class Attending {
 public:
  // What `mask` holds is added to the scores: [sample][head][query][key].
  Attending(const Attention& s, const Strided& mask)
      : s_(s), mask_(mask), lines_(up(s.queries, LANES)), wide_(up(s.size, LANES)) {}

  // stats [sample][head][2][queries, in whole vectors]: the largest score (see `scores`), the inverse of the sum.
  void forward(const Strided& q, const Strided& k, const Strided& v, const Strided& y, float* stats) {
    each([&](Int r, Int h, Int head) {
      float *p = scores(q, k, r, h), *most = stats + head * 2 * lines_, *inverse = most + lines_;
      for (Int n = 0; n < lines_; n += LANES) {
        Vector top = spread(-std::numeric_limits<float>::infinity()), sum = {};
        for (Int at = n; at < s_.keys * lines_; at += lines_) {
          const Vector one = load(p + at);
          top = one > top ? one : top;
        }
        const Mask none = top < -std::numeric_limits<float>::max();  // all keys are masked: the result is 0
        top = none ? Vector{} : top;
        for (Int at = n; at < s_.keys * lines_; at += lines_) {
          const Vector one = power(load(p + at) - top);
          sum += one;
          store(p + at, one);
        }
        store(most + n, top);
        store(inverse + n, none ? Vector{} : 1.0f / sum);
      }
      over_keys(p, v, r, h, y);
      for (Int n = 0; n < s_.queries; ++n)
        for (Int e = 0; e < s_.size; ++e) y.of(r, h)[n * y.place + e] *= inverse[n];
    });
  }

  // gq, gk and gv are overwritten with the gradients of q, k and v; g is that of the result.
  void backward(const Strided& q, const Strided& k, const Strided& v, const Strided& g, const float* stats,
                const Strided& gq, const Strided& gk, const Strided& gv) {
    each([&](Int r, Int h, Int head) {
      const float *most = stats + head * 2 * lines_, *inverse = most + lines_;
      float *p = scores(q, k, r, h), *change = changes_.get(s_.keys * lines_);
      products(v, g, r, h, 1, change);
      for (Int n = 0; n < lines_; n += LANES) {
        const Vector top = load(most + n), by = load(inverse + n);
        Vector mean = {};
        for (Int at = n; at < s_.keys * lines_; at += lines_) {
          const Vector share = power(load(p + at) - top) * by;
          mean += share * load(change + at);
          store(p + at, share);
        }
        for (Int at = n; at < s_.keys * lines_; at += lines_)
          store(change + at, load(p + at) * (load(change + at) - mean) * float(s_.scale));
      }
      over_queries(p, g, r, h, gv);
      over_queries(change, q, r, h, gk);
      over_keys(change, k, r, h, gq);
    });
  }

 private:
  template <class Visit>
  void each(const Visit& visit) const {
    for (Int r = 0; r < s_.rows; ++r)
      for (Int h = 0; h < s_.heads; ++h) visit(r, h, r * s_.heads + h);
  }

  // One past the last number of a tensor with `places` places of `size` numbers: nothing is read from there on.
  const float* end(const Strided& x, Int places, Int size) const {
    return x.of(s_.rows - 1, s_.heads - 1) + (places - 1) * x.place + size;
  }

  // [key][query]: each place of a, one for every key, times each place of b, one for every query, times a factor.
  void products(const Strided& a, const Strided& b, Int r, Int h, float factor, float* to) const {
    float* panel = across_.get(lines_ * s_.size + PAIR * SLACK);
    for (Int c = 0, width; c < s_.queries; c += width, panel += s_.size * width) {
      width = std::min<Int>(PAIR * LANES, lines_ - c);
      for (Int at = 0; at < width; at += LANES)
        gather(b.of(r, h) + (c + at) * b.place, end(b, s_.queries, s_.size), b.place,
               std::min<Int>(LANES, s_.queries - c - at), s_.size, panel + at, width);
    }
    panel -= lines_ * s_.size;
    for (Int at = 0; at < lines_ * s_.size; at += LANES) store(panel + at, load(panel + at) * factor);
    const Sweep sweep{0, 0, a.place, 0, 1, 1, s_.size, 1, s_.keys, lines_, 0, lines_};
    sweep.run(a.of(r, h), panel, nullptr, to);
  }

  // The scores of a head, scaled and masked, times log2 of e, [key][query]; those behind the last query mean nothing.
  float* scores(const Strided& q, const Strided& k, Int r, Int h) {
    float* to = scores_.get(s_.keys * lines_);
    products(k, q, r, h, float(s_.scale * LOG2_E), to);
    if (!mask_.at) return to;
    const float* added = masks(r, h);
    for (Int at = 0; at < s_.keys * lines_; at += LANES) store(to + at, load(to + at) + load(added + at) * LOG2_E);
    return to;
  }

  // A head's mask, [key][query]; heads often share one.
  const float* masks(Int r, Int h) {
    float* to = added_.get(up(s_.keys, LANES) * lines_);
    if (mask_.of(r, h) == turned_mask_) return to;
    turned_mask_ = mask_.of(r, h);
    for (Int n = 0; n < s_.queries; n += LANES)
      gather(turned_mask_ + n * mask_.place, end(mask_, s_.queries, s_.keys), mask_.place,
             std::min<Int>(LANES, s_.queries - n), s_.keys, to + n, lines_);
    return to;
  }

  // to [query]: the sum over the keys of p [key][query] times the places of x.
  void over_keys(const float* p, const Strided& x, Int r, Int h, const Strided& to) const {
    float *factor = factor_.get(s_.keys * wide_), *sum = outcome_.zeros(s_.queries * wide_);
    panels(x.of(r, h), x.place, s_.keys, s_.size, wide_, factor);
    for (Int c = 0, size; c < wide_; c += size * LANES) {
      size = std::min<Int>(PAIR, (wide_ - c) / LANES);
      const Cut tall(s_.queries, REGISTERS / size);
      for (Int t = 0; t < tall.parts; ++t)
        choose<PAIR, REGISTERS>(
            [](auto vectors, auto tile) { return &meeting<Single, vectors, vectors * tile <= REGISTERS ? tile : 1>; },
            size, tall.size(t))(p + tall.begin(t), 0, lines_, factor + c, 1, s_.keys, wide_, sum + tall.begin(t) * wide_ + c);
    }
    put(sum, s_.queries, to, r, h);
  }

  // to [key]: the sum over the queries of p [key][query] times the places of x.
  void over_queries(const float* p, const Strided& x, Int r, Int h, const Strided& to) const {
    float *factor = factor_.get(s_.queries * wide_), *sum = outcome_.get(s_.keys * wide_);
    panels(x.of(r, h), x.place, s_.queries, s_.size, PAIR * LANES, factor);
    Sweep{0, 0, lines_, 0, 1, 1, s_.queries, 1, s_.keys, wide_, 0, wide_}.run(p, factor, nullptr, sum);
    put(sum, s_.keys, to, r, h);
  }

  void put(const float* from, Int places, const Strided& to, Int r, Int h) const {
    for (Int n = 0; n < places; ++n)
      std::memcpy(to.of(r, h) + n * to.place, from + n * wide_, s_.size * sizeof(float));
  }

  const Attention s_;
  const Strided mask_;
  const Int lines_, wide_;  // queries, and numbers of a head, in whole vectors
  const float* turned_mask_ = nullptr;
};

}  // namespace
