// The training of one client whose model is a chain of layers under softmax cross-entropy: all steps in one call.
//
// One client after the other makes all its steps, instead of all clients one step after the other: a small model's
// weights then stay in the second cache from the first step to the last. Layers are those of linear.h and kernels.cpp,
// so a step rounds as it does where each layer is a call of its own.
#pragma once

#include <cmath>
#include <vector>

#include "linear.h"
#include "vectors.h"

// A layer, by places in the flat vector (bias -1: none) and sizes. A linear one has only `in` and `out`.
// With `pooled`, ReLU and 2x2 max-pooling follow a convolution; with `relu`, ReLU follows a layer.
struct Link {
  Int conv, weight, bias, trains_weight, trains_bias, relu, pooled, in, height, width, out, kh, kw, ph, pw;
};

// What a client trains: x [steps, width, ...] and labels [steps, width], of which the first `sizes` [steps] count.
// Null where there is none: momentum, anchor and correction [size of the vector], offset [classes] of the logits.
// `spans` [n_spans, 2] are the parts of the vector that move. `loss` is summed over the samples.
struct Training {
  float *vector, *momentum;
  const float *anchor, *correction, *offset, *x;
  const Int *labels, *sizes, *spans;
  const Link* links;
  Int n_links, n_spans, size, steps, width;
  double lr, mu, decay, momentum_rate;
  Int nesterov;
  double loss;
};

namespace {

thread_local Scratch activations_, slopes_, sink_, filters_;

inline void rectify(float* y, Int count) {
  for (Int i = 0; i < count; ++i) y[i] = y[i] <= 0 ? 0 : y[i];
}

inline void rectify_back(const float* y, float* g, Int count) {
  for (Int i = 0; i < count; ++i) g[i] = y[i] <= 0 ? 0 : g[i];
}

// One sample's loss; g becomes the logits' gradient times `scale`.
inline float cross_entropy(const float* z, const float* offset, Int label, float* g, Int classes, float scale) {
  float most = -INFINITY, total = 0;
  for (Int c = 0; c < classes; ++c) {
    g[c] = offset ? z[c] + offset[c] : z[c];
    most = g[c] > most ? g[c] : most;
  }
  const float own = g[label] - most;
  for (Int c = 0; c < classes; ++c) total += g[c] = std::exp(g[c] - most);
  for (Int c = 0; c < classes; ++c) g[c] = (g[c] / total - (c == label ? 1.0f : 0.0f)) * scale;
  return std::log(total) - own;
}

class Trainee {
 public:
  explicit Trainee(Training& t) : t_(t), first_(t.n_links) {
    Int values = 0, widest = 0, pooled = 0, filters = 0;
    for (Int l = 0; l < t.n_links; ++l) {
      const Link& link = t.links[l];
      at_.push_back(values), where_at_.push_back(pooled);
      values += up(t.width * outputs(link), LANES);
      if (link.pooled) pooled += t.width * outputs(link) + LANES;
      widest = std::max(widest, std::max(t.width * outputs(link), l ? t.width * inputs_of(link) : 0));
      if (link.conv) filters = std::max(filters, link.out * (link.in * link.kh * link.kw + 1));
      if (first_ == t.n_links && (link.trains_weight || link.trains_bias)) first_ = l;
    }
    values_ = activations_.get(values);
    near_ = slopes_.get(2 * up(widest, LANES));
    far_ = near_ + up(widest, LANES);
    filters_at_ = filters_.get(filters);
    where_.resize(pooled);
    const bool filled = t.decay != 0 || t.anchor;
    plain_ = !t.momentum && !filled;
    to_ = plain_ ? t.vector : t.momentum && !t.nesterov ? t.momentum : sink_.get(t.size);
  }

  // False if a label is no class.
  bool run() {
    const Link& last = t_.links[t_.n_links - 1];
    const Int classes = outputs(last), sample = inputs_of(t_.links[0]);
    t_.loss = 0;
    for (Int step = 0; step < t_.steps; ++step) {
      const Int rows = t_.sizes[step];
      const float *x = t_.x + step * t_.width * sample, *logits = forward(x, rows);
      const float scale = (plain_ ? -static_cast<float>(t_.lr) : 1.0f) * (1.0f / rows);
      for (Int b = 0; b < rows; ++b) {
        const Int label = t_.labels[step * t_.width + b];
        if (label < 0 || label >= classes) return false;
        t_.loss += cross_entropy(logits + b * classes, t_.offset, label, near_ + b * classes, classes, scale);
      }
      before();
      backward(x, rows);
      after();
    }
    return true;
  }

 private:
  static Int inputs_of(const Link& l) { return l.conv ? l.in * l.height * l.width : l.in; }
  static Shape shape(const Link& l, Int rows) {
    const Int n[] = {1, rows, l.in, l.height, l.width, l.out, l.kh, l.kw, l.ph, l.pw};
    return Shape(n);
  }
  static Int outputs(const Link& l) { return l.conv ? l.out * shape(l, 1).pixels(l.pooled) : l.out; }

  const float* forward(const float* x, Int rows) {
    for (Int l = 0; l < t_.n_links; ++l) {
      const Link& link = t_.links[l];
      const float *w = t_.vector + link.weight, *bias = link.bias < 0 ? nullptr : t_.vector + link.bias;
      float* y = values_ + at_[l];
      if (link.conv)
        ::forward(x, w, bias, y, link.pooled ? where_.data() + where_at_[l] : nullptr, shape(link, rows));
      else
        linear(x, w, bias, y, Layer{1, rows, link.in, link.out});
      if (link.relu) rectify(y, rows * outputs(link));
      x = y;
    }
    return x;
  }

  // From the logits' gradient in `near_` down to the first layer that is trained.
  void backward(const float* x, Int rows) {
    for (Int l = t_.n_links - 1; l >= first_; --l, std::swap(near_, far_)) {
      const Link& link = t_.links[l];
      const float *below = l ? values_ + at_[l - 1] : x, *w = t_.vector + link.weight;
      float *gx = l > first_ ? far_ : nullptr, *gw = link.trains_weight ? to_ + link.weight : nullptr;
      float* gb = link.trains_bias && link.bias >= 0 ? to_ + link.bias : nullptr;
      if (link.relu) rectify_back(values_ + at_[l], near_, rows * outputs(link));
      if (link.conv)
        conv_back(link, below, w, gx, gw, gb, l, rows);
      else
        linear_back(below, w, near_, Sinks{gx, gw, gb, true, true}, Layer{1, rows, link.in, link.out});
    }
  }

  void conv_back(const Link& link, const float* below, const float* w, float* gx, float* gw, float* gb, Int l,
                 Int rows) {
    const Int count = link.out * link.in * link.kh * link.kw;
    float *own = filters_at_, *own_bias = gb ? own + count : nullptr;
    ::backward(below, w, near_, link.pooled ? where_.data() + where_at_[l] : nullptr, gx, own, own_bias,
               shape(link, rows));
    for (Int i = 0; gw && i < count; ++i) gw[i] += own[i];
    for (Int i = 0; gb && i < link.out; ++i) gb[i] += own_bias[i];
  }

  // Puts into the sink what belongs to the gradient but not to the loss; in plain SGD the sink is the weights.
  void before() {
    static constexpr void (Trainee::*fills[])(Int, Int) = {
        &Trainee::fill<false, false, false>, &Trainee::fill<false, false, true>, &Trainee::fill<false, true, false>,
        &Trainee::fill<false, true, true>,   &Trainee::fill<true, false, false>, &Trainee::fill<true, false, true>,
        &Trainee::fill<true, true, false>,   &Trainee::fill<true, true, true>};
    const bool keeps = to_ == t_.momentum;
    for (Int s = 0; !plain_ && s < t_.n_spans; ++s)
      (this->*fills[4 * keeps + 2 * (t_.anchor != nullptr) + (t_.correction != nullptr)])(t_.spans[2 * s],
                                                                                         t_.spans[2 * s + 1]);
  }

  template <bool keeps, bool pulled, bool corrected>
  void fill(Int from, Int till) {
    const float decay = t_.decay, mu = t_.mu, keep = t_.momentum_rate;
    const float *w = t_.vector, *anchor = t_.anchor, *correction = t_.correction;
    float* __restrict to = to_;
    for (Int i = from; i < till; ++i) {
      float g = decay * w[i];
      if constexpr (keeps) g += keep * to[i];
      if constexpr (pulled) g += mu * (w[i] - anchor[i]);
      if constexpr (corrected) g += correction[i];
      to[i] = g;
    }
  }

  void after() {
    if (plain_ && !t_.correction) return;
    const float lr = t_.lr, keep = t_.momentum_rate;
    float *__restrict w = t_.vector, *__restrict memory = t_.momentum;
    for (Int s = 0; s < t_.n_spans; ++s) {
      const Int from = t_.spans[2 * s], till = t_.spans[2 * s + 1];
      if (t_.nesterov)
        for (Int i = from; i < till; ++i) {
          memory[i] = keep * memory[i] + to_[i];
          w[i] -= lr * (to_[i] + keep * memory[i]);
        }
      else
        for (Int i = from; i < till; ++i) w[i] -= lr * (plain_ ? t_.correction : to_)[i];
    }
  }

  Training& t_;
  Int first_;                         // the first layer that is trained
  bool plain_;                        // the backward pass itself is the step
  std::vector<Int> at_, where_at_;    // where each layer's results begin
  std::vector<uint8_t> where_;
  float *values_, *near_, *far_, *filters_at_, *to_;
};

}  // namespace
