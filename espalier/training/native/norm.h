// Group normalisation of images whose channels lie last, [image][place][channel], with each client's own scale and
// shift, and ReLU behind it if asked for. Channels must fill whole vectors. An image of one place and group is a row
// that is normalised as a layer.
#pragma once

#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

struct Norm {
  Int clients, images, places, channels, groups;  // images of a client
  double eps;
  bool relu;
  Int image() const { return places * channels; }
  Int share() const { return channels / groups; }
  bool layer() const { return places == 1 && groups == 1 && !relu; }  // a normalisation of vectors, one after the other
};

constexpr int ABREAST = 4;  // vectors of channels, or neighbouring places, that are summed side by side

// Calls `step(place, channel, v)` for all places of VT vectors of channels; `v` tells the sums that it may use apart.
template <int VT, class Step>
inline void across(const Norm& s, Int channel, const Step& step) {
  constexpr int PT = ABREAST / VT;
  Int p = 0;
  for (; p + PT <= s.places; p += PT) {
    UNROLLED
    for (int n = 0; n < PT; ++n) {
      UNROLLED
      for (int v = 0; v < VT; ++v) step(p + n, channel + v * LANES, n * VT + v);
    }
  }
  for (; p < s.places; ++p) {
    UNROLLED
    for (int v = 0; v < VT; ++v) step(p, channel + v * LANES, v);
  }
}

// Adds up what was kept apart: VT vectors of sums.
template <int VT>
inline void joined(const Vector* apart, float* to) {
  UNROLLED
  for (int v = 0; v < VT; ++v) {
    Vector total = apart[v];
    UNROLLED
    for (int n = 1; n < ABREAST / VT; ++n) total += apart[n * VT + v];
    store(to + v * LANES, total);
  }
}

// Runs `block` over all channels, ABREAST vectors at a time and then the powers of two that are left.
template <class Block>
inline void blocks(Int channels, const Block& block) {
  Int c = 0;
  for (; c + 4 * LANES <= channels; c += 4 * LANES) block(c, std::integral_constant<int, 4>());
  for (; c + 2 * LANES <= channels; c += 2 * LANES) block(c, std::integral_constant<int, 2>());
  for (; c < channels; c += LANES) block(c, std::integral_constant<int, 1>());
}

// T: how images and their gradients are stored, float or Half; everything is computed in float.
template <class T>
class Normaliser {
 public:
  explicit Normaliser(const Norm& s) : s_(s), scale_(s.channels), shift_(s.channels), a_(s.channels), b_(s.channels) {}

  // stats [image][group]: mean, and the inverse of the deviation.
  void forward(const T* x, const float* w, const float* bias, T* y, float* stats) {
    if (s_.layer()) return layer_forward(x, w, bias, y, stats);
    for (Int k = 0; k < s_.clients; ++k, w += s_.channels, bias += s_.channels)
      for (Int n = 0; n < s_.images; ++n, x += s_.image(), y += s_.image(), stats += 2 * s_.groups) {
        measure(x, stats);
        prepare(stats, w, bias);
        blocks(s_.channels, [&](Int c, auto vectors) {
          constexpr int VT = decltype(vectors)::value;
          Vector scale[VT], shift[VT];
          UNROLLED
          for (int v = 0; v < VT; ++v) {
            scale[v] = load(&scale_[c + v * LANES]), shift[v] = load(&shift_[c + v * LANES]);
          }
          across<VT>(s_, c, [&](Int p, Int channel, int v) {
            const Vector at = load(x + p * s_.channels + channel) * scale[v % VT] + shift[v % VT];
            store(y + p * s_.channels + channel, s_.relu ? (at <= Vector{} ? Vector{} : at) : at);
          });
        });
      }
  }

  // gw and gb [client][channel] are overwritten; gx may be null.
  void backward(const T* x, const float* w, const float* bias, const T* g, const float* stats, T* gx, float* gw,
                float* gb) {
    std::memset(gw, 0, s_.clients * s_.channels * sizeof(float));
    std::memset(gb, 0, s_.clients * s_.channels * sizeof(float));
    if (s_.layer()) return layer_backward(x, w, g, stats, gx, gw, gb);
    for (Int k = 0; k < s_.clients; ++k, w += s_.channels, bias += s_.channels, gw += s_.channels, gb += s_.channels)
      for (Int n = 0; n < s_.images; ++n, x += s_.image(), g += s_.image(), stats += 2 * s_.groups) {
        prepare(stats, w, bias);
        total(x, g);
        for (Int c = 0; c < s_.channels; ++c) {
          const float *group = stats + 2 * (c / s_.share()), centred = b_[c] - group[0] * a_[c];
          gb[c] += a_[c];
          gw[c] += b_[c] = centred * group[1];
        }
        if (!gx) continue;
        spread_back(x, w, g, stats, gx);
        gx += s_.image();
      }
  }

 private:
  // ---- layers: LANES images at a time, so that their sums become the lanes of one vector

  template <class Step>
  void abreast(const Step& step) const {
    for (Int k = 0, at = 0; k < s_.clients; ++k)
      for (Int n = 0, count; n < s_.images; n += count, at += count)
        step(k * s_.channels, at, count = std::min<Int>(LANES, s_.images - n));
  }

  // Lane l of the result is the sum of `of(l, c)` over the vectors of channels of image l.
  template <class Of>
  Vector across_channels(Int images, const Of& of) const {
    Vector part[LANES] = {};
    for (Int l = 0; l < images; ++l)
      for (Int c = 0; c < s_.channels; c += LANES) part[l] += of(l, c);
    return sums(part);
  }

  void layer_forward(const T* x, const float* w, const float* bias, T* y, float* stats) const {
    const float each = 1.0f / s_.channels;
    abreast([&](Int own, Int at, Int images) {
      const T* from = x + at * s_.channels;
      const auto value = [&](Int l, Int c) { return load(from + l * s_.channels + c); };
      const Vector mean = across_channels(images, value) * each;
      const Vector apart = across_channels(images, [&](Int l, Int c) {
        const Vector away = value(l, c) - mean[l];
        return away * away;
      }) * each;
      for (Int l = 0; l < images; ++l) {
        const float inverse = 1 / std::sqrt(apart[l] + float(s_.eps));
        stats[2 * (at + l)] = mean[l], stats[2 * (at + l) + 1] = inverse;
        for (Int c = 0; c < s_.channels; c += LANES) {
          const Vector scale = load(w + own + c) * inverse;
          store(y + (at + l) * s_.channels + c, (value(l, c) - mean[l]) * scale + load(bias + own + c));
        }
      }
    });
  }

  void layer_backward(const T* x, const float* w, const T* g, const float* stats, T* gx, float* gw, float* gb) const {
    const float each = 1.0f / s_.channels;
    abreast([&](Int own, Int at, Int images) {
      const auto slope = [&](Int l, Int c) { return load(g + (at + l) * s_.channels + c); };
      const auto scaled = [&](Int l, Int c) { return slope(l, c) * load(w + own + c); };
      const auto normal = [&](Int l, Int c) {
        return (load(x + (at + l) * s_.channels + c) - stats[2 * (at + l)]) * stats[2 * (at + l) + 1];
      };
      for (Int c = 0; c < s_.channels; c += LANES) {
        Vector one = load(gb + own + c), product = load(gw + own + c);
        for (Int l = 0; l < images; ++l) one += slope(l, c), product += slope(l, c) * normal(l, c);
        store(gb + own + c, one), store(gw + own + c, product);
      }
      if (!gx) return;
      const auto along = [&](Int l, Int c) { return scaled(l, c) * normal(l, c); };
      const Vector shift = across_channels(images, scaled) * each, scale = across_channels(images, along) * each;
      for (Int l = 0; l < images; ++l)
        for (Int c = 0; c < s_.channels; c += LANES)
          store(gx + (at + l) * s_.channels + c,
                (scaled(l, c) - shift[l] - normal(l, c) * scale[l]) * stats[2 * (at + l) + 1]);
    });
  }

  // ---- images

  // Each channel's sums are of what lies above its first number: nothing is lost where a mean is far from zero.
  void measure(const T* x, float* stats) {
    blocks(s_.channels, [&](Int c, auto vectors) {
      constexpr int VT = decltype(vectors)::value;
      Vector first[VT], sum[ABREAST] = {}, square[ABREAST] = {};
      UNROLLED
      for (int v = 0; v < VT; ++v) first[v] = load(x + c + v * LANES);
      across<VT>(s_, c, [&](Int p, Int channel, int v) {
        const Vector above = load(x + p * s_.channels + channel) - first[v % VT];
        sum[v] += above;
        square[v] += above * above;
      });
      joined<VT>(sum, &a_[c]);
      joined<VT>(square, &b_[c]);
    });
    for (Int q = 0; q < s_.groups; ++q) {
      double mean = 0, apart = 0;
      for (Int c = q * s_.share(); c < (q + 1) * s_.share(); ++c) mean += single(x[c]) + a_[c] / double(s_.places);
      mean /= s_.share();
      for (Int c = q * s_.share(); c < (q + 1) * s_.share(); ++c) {
        const double own = a_[c] / double(s_.places), away = single(x[c]) + own - mean;
        apart += std::max(0.0, b_[c] - own * a_[c]) + s_.places * away * away;
      }
      stats[2 * q] = mean;
      stats[2 * q + 1] = 1 / std::sqrt(apart / (s_.places * s_.share()) + s_.eps);
    }
  }

  // What a number of each channel is multiplied with, and what is added.
  void prepare(const float* stats, const float* w, const float* bias) {
    for (Int c = 0; c < s_.channels; ++c) {
      const float* group = stats + 2 * (c / s_.share());
      scale_[c] = group[1] * w[c];
      shift_[c] = bias[c] - group[0] * scale_[c];
    }
  }

  inline Vector passed(const T* x, const T* g, Int at, Vector scale, Vector shift) const {
    const Vector slope = load(g + at);
    return s_.relu ? (load(x + at) * scale + shift <= Vector{} ? Vector{} : slope) : slope;
  }

  // Sums over the places: of the gradient, and of the gradient times x.
  void total(const T* x, const T* g) {
    blocks(s_.channels, [&](Int c, auto vectors) {
      constexpr int VT = decltype(vectors)::value;
      Vector one[ABREAST] = {}, product[ABREAST] = {}, scale[VT], shift[VT];
      UNROLLED
      for (int v = 0; v < VT; ++v) {
        scale[v] = load(&scale_[c + v * LANES]), shift[v] = load(&shift_[c + v * LANES]);
      }
      across<VT>(s_, c, [&](Int p, Int channel, int v) {
        const Int at = p * s_.channels + channel;
        const Vector slope = passed(x, g, at, scale[v % VT], shift[v % VT]);
        one[v] += slope;
        product[v] += slope * load(x + at);
      });
      joined<VT>(one, &a_[c]);
      joined<VT>(product, &b_[c]);
    });
  }

  // gx = scale * g + (what the mean and the deviation of the group take back), a_ and b_ being the gradients of shift
  // and scale.
  void spread_back(const T* x, const float* w, const T* g, const float* stats, T* gx) {
    for (Int q = 0; q < s_.groups; ++q) {
      double shift = 0, scale = 0;
      const Int from = q * s_.share(), till = from + s_.share();
      for (Int c = from; c < till; ++c) shift += double(w[c]) * a_[c], scale += double(w[c]) * b_[c];
      const double mean = stats[2 * q], inverse = stats[2 * q + 1], count = s_.places * s_.share();
      const double by = -inverse * inverse * scale / count;
      for (Int c = from; c < till; ++c) a_[c] = by, b_[c] = -inverse * shift / count - mean * by;
    }
    blocks(s_.channels, [&](Int c, auto vectors) {
      constexpr int VT = decltype(vectors)::value;
      Vector scale[VT], shift[VT], by[VT], plus[VT];
      UNROLLED
      for (int v = 0; v < VT; ++v) {
        scale[v] = load(&scale_[c + v * LANES]), shift[v] = load(&shift_[c + v * LANES]);
        by[v] = load(&a_[c + v * LANES]), plus[v] = load(&b_[c + v * LANES]);
      }
      across<VT>(s_, c, [&](Int p, Int channel, int v) {
        const Int at = p * s_.channels + channel;
        const Vector slope = passed(x, g, at, scale[v % VT], shift[v % VT]);
        store(gx + at, slope * scale[v % VT] + load(x + at) * by[v % VT] + plus[v % VT]);
      });
    });
  }

  const Norm s_;
  std::vector<float> scale_, shift_, a_, b_;
};

}  // namespace
