#include "cuda/prefill/prefill.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <numeric>
#include <vector>

#include "cuda/prefill/blas.hpp"
#include "cuda/prefill/prefill.cuh"
#include "lib/core/parallel.hpp"
#include "lib/model/rope.hpp"

namespace kvcodec::cuda {
namespace {

constexpr int kWidestHead = 256;

/// Bytes of weights, or of logits, that are copied at a time.
constexpr size_t kPieceBytes = size_t{64} << 20;

/// Number of bf16 whose sum is a value of this type: quantized values are products of up to 24 bits.
unsigned parts_of(TensorType type) { return type == TensorType::bf16 ? 1 : type == TensorType::f16 ? 2 : 3; }

/// The device takes the bytes as they are; otherwise the host makes floats of them.
bool is_plain(const TensorView& tensor) { return !is_quantized(tensor.type) && tensor.rows_in_order(); }

/// Floats in device memory, taken apart.
struct Parts {
  DeviceBuffer<uint16_t> data;
  size_t plane = 0;

  void resize(size_t count, unsigned parts = kFloatParts) {
    plane = count;
    data.resize(checked_mul(count, parts));
  }
  FloatParts view() { return {data.data(), plane}; }
  /// Part p of the elements from `first` on.
  const uint16_t* part(unsigned p, size_t first = 0) const { return data.data() + p * plane + first; }
};

struct DeviceLinear {
  Parts weight;
  unsigned parts = 0;
  DeviceBuffer<float> bias;
  size_t outputs = 0, inputs = 0;
};

DeviceLinear upload(const Linear& layer, DeviceBuffer<uint8_t>& staging, const Stream& stream) {
  DeviceLinear own;
  own.outputs = layer.outputs(), own.inputs = layer.inputs();
  const TensorView& tensor = layer.weight;
  own.parts = parts_of(tensor.type);
  const size_t values = own.outputs * own.inputs;
  own.weight.resize(values, own.parts);
  const bool plain = is_plain(tensor);
  const RawFloat type = !plain || tensor.type == TensorType::f32 ? RawFloat::f32
                        : tensor.type == TensorType::f16         ? RawFloat::f16
                                                                 : RawFloat::bf16;
  const size_t value_bytes = type == RawFloat::f32 ? 4 : 2, piece = kPieceBytes / value_bytes;
  std::vector<float> floats(plain ? 0 : std::min(piece, values));
  for (size_t first = 0; first < values; first += piece) {
    const size_t count = std::min(piece, values - first);
    FloatParts to = own.weight.view();
    to.data += first;
    std::span<const std::byte> raw;
    if (plain) {
      raw = tensor.bytes.subspan(first * value_bytes, count * value_bytes);
    } else {
      constexpr size_t kGrain = size_t{1} << 16;
      parallel_for(count, kGrain, [&](size_t begin, size_t end, int) {
        read_floats(tensor, first + begin, std::span(floats).subspan(begin, end - begin));
      });
      raw = std::as_bytes(std::span(floats).first(count));
    }
    staging.resize(std::min(kPieceBytes, std::max(staging.size(), raw.size())));
    staging.upload({reinterpret_cast<const uint8_t*>(raw.data()), raw.size()}, stream);
    stream.run("taking weights apart", run_split, type, staging.data(), count, own.parts, to);
    if (!plain) stream.synchronize();  // the floats are written again, or end here
  }
  if (!layer.bias.empty()) own.bias = DeviceBuffer<float>(layer.bias, stream);
  return own;
}

struct DeviceLayer {
  DeviceBuffer<float> attention_norm, mlp_norm, query_norm, key_norm;
  DeviceLinear query, key, value, output, gate, up, down;
};

/// Rows of angles, of as many positions as were ever wanted.
struct Angles {
  DeviceBuffer<float> cosines, sines;
  size_t positions = 0;

  void reach(const ModelConfig& config, size_t wanted, const Stream& stream) {
    if (wanted <= positions) return;
    const RopeTable table(config.rope, config.head_dim, wanted);
    const size_t count = wanted * as_size(config.head_dim) / 2;
    cosines.resize(count), sines.resize(count);
    cosines.upload({table.cosines(0).data(), count}, stream);
    sines.upload({table.sines(0).data(), count}, stream);
    stream.synchronize();
    positions = wanted;
  }
};

/// Begins to copy rows of floats to the host, where they are when the stream was synchronized.
MatrixView<const float> copy_out(const DeviceBuffer<float>& from, PinnedBuffer<float>& to, size_t rows,
                                 size_t cols, const Stream& stream) {
  from.download(to.span().first(rows * cols), stream);
  return {to.data(), rows, cols};
}

/// Streams and buffers of a prefill, or of a product of logits. Buffers stay for the next one.
struct Workspace {
  Stream stream, outgoing;
  Blas blas{stream};
  Event projected;
  Angles angles;
  DeviceBuffer<float> hidden, query, key, value, gate, up, before_query, before_key, past, logits;
  DeviceBuffer<uint32_t> positions, key_row, past_row;
  DeviceBuffer<AttentionTile> tiles;
  Parts normed, gated, attended, query_parts, key_parts, value_parts;
  // Floats on the way to the host.
  PinnedBuffer<float> query_out, key_out, value_out, before_query_out, before_key_out, logits_out;
  PinnedBuffer<float> past_keys, past_values;  // of one document, on the way to the device

  /// For logits of so many rows.
  void make_room_for_logits(size_t rows, size_t width, size_t outputs) {
    normed.resize(std::max(normed.plane, checked_mul(rows, width)));
    logits.resize(checked_mul(rows, outputs));
    logits_out.reserve(logits.size());
  }

  /// out (n, outputs) = or += layer(x); x: rows of parts, n of them from the first on.
  void apply(const DeviceLinear& layer, const Parts& x, size_t n, bool add, float* out) {
    if (layer.bias.size() > 0) {
      stream.run("adding a bias", run_bias, layer.bias.data(), n, static_cast<unsigned>(layer.outputs), add,
                 out);
      add = true;
    }
    // Products of parts that are not below 2^-24 of the whole, the small ones first, whose truncation is
    // small.
    for (unsigned order = kFloatParts; order-- > 0;)
      for (unsigned p = 0; p < layer.parts && p <= order; ++p) {
        blas.products({x.part(order - p), layer.weight.part(p), n, layer.outputs, layer.inputs, add, out},
                      order == 0 ? kPreciseStretch : layer.inputs);
        add = true;
      }
  }
};

class DevicePrefill final : public PrefillEngine {
 public:
  DevicePrefill(const DeviceWork& device, const LlamaWeights& weights) : device_(device), weights_(weights) {
    const ModelConfig& config = weights.config;
    if (const std::string more = beyond_llama(config); !more.empty())
      throw usage_error("{} models have {}, which a device does not compute", config.family, more);
    if (config.head_dim > kWidestHead)
      throw usage_error("heads of {} dimensions; a device takes at most {}", config.head_dim, kWidestHead);
    if (as_size(config.num_kv_heads) > kMaxGridRows)  // each has a row of blocks
      throw usage_error("{} key/value heads; a device takes at most {}", config.num_kv_heads, kMaxGridRows);
    uint64_t bytes = 0;
    for (const LlamaLayer& layer : weights.layers)
      for (const Linear* linear : {&layer.query, &layer.key, &layer.value, &layer.output, &layer.mlp.gate,
                                   &layer.mlp.up, &layer.mlp.down})
        bytes = checked_add(bytes, checked_mul(checked_mul(linear->outputs(), linear->inputs()),
                                               parts_of(linear->weight.type) * sizeof(uint16_t)) +
                                       linear->bias.size() * sizeof(float));
    if (const uint64_t free = free_bytes(); bytes > free)
      throw OutOfMemory(
          fmt::format("the model's layers take {} bytes of device memory; {} are free", bytes, free));
    give_back(std::make_unique<Workspace>());  // before the copies: the library may be missing
    const Stream stream;
    DeviceBuffer<uint8_t> staging;
    const auto norm = [&](const Norm& own) { return DeviceBuffer<float>(own.weight, stream); };
    const auto linear = [&](const Linear& own) { return upload(own, staging, stream); };
    for (const LlamaLayer& layer : weights.layers)
      layers_.push_back({norm(layer.attention_norm), norm(layer.mlp_norm), norm(layer.query_norm),
                         norm(layer.key_norm), linear(layer.query), linear(layer.key), linear(layer.value),
                         linear(layer.output), linear(layer.mlp.gate), linear(layer.mlp.up),
                         linear(layer.mlp.down)});
    final_norm_ = DeviceBuffer<float>(weights.final_norm.weight, stream);
    stream.synchronize();
  }

  std::unique_ptr<PrefillSteps> start(const PrefillPlan& plan) override;
  bool logits(MatrixView<const float> hidden, MatrixView<float> out) override;

  const DeviceWork& device() const { return device_; }
  const LlamaWeights& weights() const { return weights_; }
  const DeviceLayer& layer(int index) const { return layers_[as_size(index)]; }
  const DeviceBuffer<float>& final_norm() const { return final_norm_; }

  /// The output matrix, copied when first wanted.
  const DeviceLinear& head() {
    const std::lock_guard lock(mutex_);
    if (head_.outputs == 0) {
      const Stream stream;
      DeviceBuffer<uint8_t> staging;
      DeviceLinear head = upload(*weights_.head, staging, stream);
      stream.synchronize();
      head_ = std::move(head);
    }
    return head_;
  }

  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    auto taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  const DeviceWork& device_;
  const LlamaWeights& weights_;
  std::vector<DeviceLayer> layers_;
  DeviceBuffer<float> final_norm_;
  std::mutex mutex_;
  DeviceLinear head_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

/// A workspace for as long as this lives. It goes back unless something went wrong meanwhile: what it grew to
/// may be why memory ran out.
class Borrowed {
 public:
  explicit Borrowed(DevicePrefill& engine) : engine_(engine), workspace_(engine.take()) {}
  ~Borrowed() {
    try {
      engine_.device().alone([&] {
        workspace_->stream.synchronize();
        workspace_->outgoing.synchronize();
        if (std::uncaught_exceptions() == exceptions_)
          engine_.give_back(std::move(workspace_));
        else
          workspace_.reset();
      });
    } catch (const std::exception&) {  // somebody was told already, or does not read what was computed
    }
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Workspace* operator->() { return workspace_.get(); }

 private:
  DevicePrefill& engine_;
  std::unique_ptr<Workspace> workspace_;
  const int exceptions_ = std::uncaught_exceptions();  // on their way when this began
};

/// Steps that each have the device to themselves. All memory is taken when this is made: the CPU takes over then, and
/// nobody does later. Token rows of the embedding are copied there, and back keys, values and, if asked for, queries, chunk
/// by chunk; what else a chunk computes stays there.
class DeviceSteps final : public PrefillSteps {
 public:
  DeviceSteps(DevicePrefill& engine, const PrefillPlan& plan)
      : engine_(engine), config_(engine.weights().config), plan_(plan), at_(engine) {
    const size_t n = plan.batch->tokens.size(), chunk = plan.chunk;
    if (n > UINT32_MAX || plan.key_rows > UINT32_MAX)
      throw failed("a prefill of {} tokens over {} keys; a device counts them in 32 bits", n, plan.key_rows);
    padded_ = attention_padded(static_cast<unsigned>(config_.head_dim));
    const size_t query = as_size(config_.query_width()), key = as_size(config_.key_width()),
                 mlp = as_size(config_.intermediate_size);
    at_->hidden.resize(checked_mul(n, hidden_width()));
    at_->query.resize(checked_mul(chunk, query));
    at_->key.resize(checked_mul(chunk, key)), at_->value.resize(checked_mul(chunk, key));
    at_->gate.resize(checked_mul(chunk, mlp)), at_->up.resize(checked_mul(chunk, mlp));
    const bool queries = plan.options->queries, before = plan.options->before_rope;
    at_->key_out.reserve(chunk * key), at_->value_out.reserve(chunk * key);
    if (queries) at_->query_out.reserve(chunk * query);
    if (before) at_->before_key.resize(chunk * key), at_->before_key_out.reserve(chunk * key);
    if (before && queries)
      at_->before_query.resize(chunk * query), at_->before_query_out.reserve(chunk * query);
    at_->normed.resize(chunk * hidden_width()), at_->gated.resize(chunk * mlp);
    if (plan.logit_rows > 0)
      at_->make_room_for_logits(plan.logit_rows, hidden_width(), engine.head().outputs);
    at_->attended.resize(chunk * query);
    at_->query_parts.resize(checked_mul(chunk * as_size(config_.num_q_heads), padded_));
    at_->key_parts.resize(checked_mul(plan.key_rows * as_size(config_.num_kv_heads), padded_));
    at_->value_parts.resize(at_->key_parts.plane);
    size_t past = 0;
    for (const DocumentPlace& document : plan.documents) past = std::max(past, document.past);
    const size_t of_past = checked_mul(past, key);
    at_->past.resize(of_past), at_->past_row.resize(past);
    at_->past_keys.reserve(of_past), at_->past_values.reserve(of_past);
    at_->angles.reach(config_, plan.longest, at_->stream);
    at_->positions.resize(n), at_->key_row.resize(n);
    upload_numbers(plan.positions, at_->positions);
    upload_numbers(plan.key_row, at_->key_row);
    std::vector<AttentionTile> tiles;
    for (size_t first = 0; first < n; first += chunk) {
      tiles_.push_back(tiles.size());
      cut_in_tiles(first, std::min(chunk, n - first), tiles);
    }
    tiles_.push_back(tiles.size());
    at_->tiles.resize(tiles.size());
    at_->tiles.upload(tiles, at_->stream);
    at_->stream.synchronize();
  }

  void embed() override {
    run([&] {
      const size_t width = hidden_width(),
                   at_once = std::max<size_t>(1, kPieceBytes / (width * sizeof(float)));
      const std::span<const uint32_t> tokens = plan_.batch->tokens;
      std::vector<float> rows(std::min(at_once, tokens.size()) * width);
      for (size_t first = 0; first < tokens.size(); first += at_once) {
        const size_t count = std::min(at_once, tokens.size() - first);
        for (size_t i = 0; i < count; ++i)
          read_floats(*engine_.weights().embedding, tokens[first + i] * width,
                      std::span(rows).subspan(i * width, width));
        at_->hidden.upload(std::span<const float>(rows).first(count * width), at_->stream, first * width);
        at_->stream.synchronize();  // rows are written again
      }
    });
  }

  PastRows past_rows(int /*layer*/, size_t document) override {
    const size_t past = plan_.documents[document].past, width = as_size(config_.key_width());
    return {MatrixView<float>(at_->past_keys.data(), past, width),
            MatrixView<float>(at_->past_values.data(), past, width)};
  }

  void place_past(size_t document) override {
    run([&] {
      const DocumentPlace& own = plan_.documents[document];
      std::vector<uint32_t> rows(own.past);
      std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(own.key_first));
      at_->past_row.upload(rows, at_->stream);
      const auto place = [&](PinnedBuffer<float>& from, Parts& to) {
        at_->past.upload(from.span().first(own.past * as_size(config_.key_width())), at_->stream);
        HeadRows heads = heads_of(at_->past, config_.num_kv_heads, to);
        heads.part_rows = at_->past_row.data();
        at_->stream.run("placing past keys and values", run_place_heads, heads, own.past);
      };
      place(at_->past_keys, at_->key_parts);
      place(at_->past_values, at_->value_parts);
      at_->stream.synchronize();  // the host's rows are written again
    });
  }

  void project(int index, size_t first, size_t count) override {
    run([&] {
      const DeviceLayer& layer = engine_.layer(index);
      norm(layer.attention_norm, first, count);
      at_->apply(layer.query, at_->normed, count, false, at_->query.data());
      at_->apply(layer.key, at_->normed, count, false, at_->key.data());
      at_->apply(layer.value, at_->normed, count, false, at_->value.data());
      const bool queries = plan_.options->queries, before = plan_.options->before_rope;
      HeadRows query = heads_of(at_->query, config_.num_q_heads, at_->query_parts);
      turn(query, layer.query_norm, first);
      query.before = before && queries ? at_->before_query.data() : nullptr;
      query.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
      HeadRows key = heads_of(at_->key, config_.num_kv_heads, at_->key_parts);
      turn(key, layer.key_norm, first);
      key.before = before ? at_->before_key.data() : nullptr;
      key.part_rows = at_->key_row.data() + first;
      HeadRows value = heads_of(at_->value, config_.num_kv_heads, at_->value_parts);
      value.part_rows = at_->key_row.data() + first;
      for (const HeadRows* heads : {&query, &key, &value})
        at_->stream.run("turning heads", run_place_heads, *heads, count);

      at_->projected.record(at_->stream);
      at_->projected.hold_back(at_->outgoing);
      const size_t query_width = as_size(config_.query_width()), key_width = as_size(config_.key_width());
      out_ = {};
      out_.layer = index;
      out_.first = first;
      out_.key = copy_out(at_->key, at_->key_out, count, key_width, at_->outgoing);
      out_.value = copy_out(at_->value, at_->value_out, count, key_width, at_->outgoing);
      if (before)
        out_.key_before_rope =
            copy_out(at_->before_key, at_->before_key_out, count, key_width, at_->outgoing);
      if (!queries) return;
      out_.query = copy_out(at_->query, at_->query_out, count, query_width, at_->outgoing);
      if (before)
        out_.query_before_rope =
            copy_out(at_->before_query, at_->before_query_out, count, query_width, at_->outgoing);
    });
  }

  void finish(int index, size_t first, size_t count) override {
    run([&] {
      const DeviceLayer& layer = engine_.layer(index);
      attend(index, first);
      float* const hidden = at_->hidden.data() + first * hidden_width();
      at_->apply(layer.output, at_->attended, count, true, hidden);
      norm(layer.mlp_norm, first, count);
      at_->apply(layer.gate, at_->normed, count, false, at_->gate.data());
      at_->apply(layer.up, at_->normed, count, false, at_->up.data());
      at_->stream.run("the gate of an MLP", run_silu, at_->gate.data(), at_->up.data(),
                      count * as_size(config_.intermediate_size), at_->gated.view());
      at_->apply(layer.down, at_->gated, count, true, hidden);
    });
  }

  LayerChunk projected(int, size_t, size_t) override {
    run([&] { at_->outgoing.synchronize(); });
    return out_;
  }

  MatrixView<const float> logits(size_t first, size_t count) override {
    MatrixView<const float> rows;
    run([&] {
      const DeviceLinear& head = engine_.head();
      norm(engine_.final_norm(), first, count);
      at_->apply(head, at_->normed, count, false, at_->logits.data());
      rows = copy_out(at_->logits, at_->logits_out, count, head.outputs, at_->stream);
      at_->stream.synchronize();
    });
    return rows;
  }

  MatrixView<const float> hidden() override {
    run([&] {
      const size_t rows = plan_.batch->tokens.size();
      norm(engine_.final_norm(), 0, rows, at_->hidden.data());
      final_hidden_ = Matrix<float>(rows, hidden_width());
      at_->hidden.download({final_hidden_.data(), final_hidden_.size()}, at_->stream);
      at_->stream.synchronize();
    });
    return final_hidden_;
  }

 private:
  template <class Body>
  void run(const Body& body) const {
    engine_.device().must_run(body, DeviceWork::Bits::rounded);
  }

  size_t hidden_width() const { return as_size(config_.hidden_size); }

  void upload_numbers(const std::vector<size_t>& numbers, DeviceBuffer<uint32_t>& to) {
    const std::vector<uint32_t> narrow(numbers.begin(), numbers.end());
    to.upload(narrow, at_->stream);
    at_->stream.synchronize();
  }

  /// The norm of hidden states of tokens from `first` on: written to `out`, or taken apart for products.
  void norm(const DeviceBuffer<float>& weight, size_t first, size_t count, float* out = nullptr) {
    at_->stream.run("normalising rows", run_norm_rows,
                    NormRows{.x = at_->hidden.data() + first * hidden_width(),
                             .rows = count,
                             .width = static_cast<unsigned>(hidden_width()),
                             .weight = weight.data(),
                             .epsilon = config_.norm_epsilon,
                             .out = out,
                             .parts = out ? FloatParts() : at_->normed.view()});
  }

  HeadRows heads_of(DeviceBuffer<float>& rows, int heads, Parts& parts) const {
    HeadRows out;
    out.rows = rows.data();
    out.heads = static_cast<unsigned>(heads), out.dims = static_cast<unsigned>(config_.head_dim);
    out.parts = parts.view();
    out.padded = padded_;
    return out;
  }

  void turn(HeadRows& heads, const DeviceBuffer<float>& norm, size_t first) {
    if (norm.size() > 0) heads.norm = norm.data();
    heads.epsilon = config_.norm_epsilon;
    heads.cosines = at_->angles.cosines.data(), heads.sines = at_->angles.sines.data();
    heads.positions = at_->positions.data() + first;
  }

  /// Those of a chunk are added with the most keys first: the short ones fill the gaps at the end.
  void cut_in_tiles(size_t first, size_t count, std::vector<AttentionTile>& tiles) const {
    const unsigned rows = attention_rows(padded_);
    const size_t size = rows / std::min(rows, static_cast<unsigned>(config_.group_size()));
    const auto before = static_cast<ptrdiff_t>(tiles.size());
    for (const DocumentPlace& document : plan_.documents) {
      const size_t begin = std::max(first, document.first);
      const size_t end = std::min(first + count, document.first + document.tokens);
      for (size_t row = begin; row < end; row += size)
        tiles.push_back({static_cast<uint32_t>(row - first), static_cast<uint32_t>(document.key_first),
                         static_cast<uint32_t>(plan_.positions[row]),
                         static_cast<uint32_t>(std::min(size, end - row))});
    }
    std::stable_sort(tiles.begin() + before, tiles.end(),
                     [](const AttentionTile& a, const AttentionTile& b) { return a.position > b.position; });
  }

  void attend(int index, size_t first) {
    const size_t chunk = first / plan_.chunk;
    CausalAttention attention;
    attention.query = at_->query_parts.view();
    attention.key = at_->key_parts.view(), attention.value = at_->value_parts.view();
    attention.tiles = at_->tiles.data() + tiles_[chunk];
    attention.tile_count = static_cast<unsigned>(tiles_[chunk + 1] - tiles_[chunk]);
    attention.q_heads = static_cast<unsigned>(config_.num_q_heads);
    attention.kv_heads = static_cast<unsigned>(config_.num_kv_heads);
    attention.dims = static_cast<unsigned>(config_.head_dim), attention.padded = padded_;
    const int64_t window = config_.window[as_size(index)];
    attention.window = window > 0 && window < int64_t{UINT32_MAX} ? static_cast<uint32_t>(window) : 0;
    attention.out = at_->attended.view();
    at_->stream.run("attention", run_causal_attention, attention);
  }

  DevicePrefill& engine_;
  const ModelConfig& config_;
  const PrefillPlan& plan_;
  unsigned padded_ = 0;
  std::vector<size_t> tiles_;  // where those of each chunk begin, and the end
  LayerChunk out_;
  Matrix<float> final_hidden_;
  Borrowed at_;  // last: what its work reads is there until it ends
};

std::unique_ptr<PrefillSteps> DevicePrefill::start(const PrefillPlan& plan) {
  if (plan.options->attention) {
    device_.fall_back("prefill: attention to chosen tokens");
    return nullptr;
  }
  auto steps = device_.try_make("prefill", [&] { return std::make_unique<DeviceSteps>(*this, plan); });
  if (steps) device_.count(DeviceWork::Bits::rounded);
  return steps;
}

bool DevicePrefill::logits(MatrixView<const float> hidden, MatrixView<float> out) {
  const auto run = [&] {
    const DeviceLinear& output = head();
    Borrowed at(*this);
    const size_t width = hidden.cols(), rows_of_piece = kPieceBytes / (output.outputs * sizeof(float));
    const size_t at_once = std::min(hidden.rows(), std::max<size_t>(1, rows_of_piece));
    at->make_room_for_logits(at_once, width, output.outputs);
    DeviceBuffer<float> rows(at_once * width);
    for (size_t first = 0; first < hidden.rows(); first += at_once) {
      const size_t count = std::min(at_once, hidden.rows() - first);
      const PackedRows packed(hidden.rows(first, count));
      rows.upload(packed.values(), at->stream);
      at->stream.run("taking rows apart", run_split, RawFloat::f32, rows.data(), count * width, kFloatParts,
                     at->normed.view());
      at->apply(output, at->normed, count, false, at->logits.data());
      const auto made = copy_out(at->logits, at->logits_out, count, output.outputs, at->stream);
      at->stream.synchronize();
      for (size_t i = 0; i < count; ++i) std::ranges::copy(made.row(i), out.row(first + i).begin());
    }
  };
  return device_.try_run(run, DeviceWork::Bits::rounded);
}

}  // namespace

std::shared_ptr<PrefillEngine> make_prefill_engine(const DeviceWork& device, const LlamaWeights& weights) {
  return std::make_shared<DevicePrefill>(device, weights);
}

void add_prefill(const DeviceWork& device) { device.offer<PrefillEngine>("prefill", make_prefill_engine); }

}  // namespace kvcodec::cuda
