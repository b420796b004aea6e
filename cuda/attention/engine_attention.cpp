#include <map>
#include <numeric>
#include <vector>

#include "cuda/attention/attention.hpp"
#include "cuda/engine_parts.hpp"
#include "lib/attention/attention.hpp"

namespace kvcodec::cuda {
namespace {

/// Rows as a device takes them; nothing for rows that only lib can read.
std::optional<DeviceRows> on_device(const RowSource& source) {
  if (const auto rows = source.in_memory()) {
    const size_t tokens = source.tokens(), dims = source.dims();
    if (rows->type == DType::f32) {
      const auto view = [&](const std::byte* data, size_t stride) {
        return MatrixView<const float>(reinterpret_cast<const float*>(data), tokens, dims,
                                       stride / sizeof(float));
      };
      return DeviceRows(view(rows->keys, rows->key_stride_bytes),
                        view(rows->values, rows->value_stride_bytes));
    }
    const auto view = [&](const std::byte* data, size_t stride) {
      return MatrixView<const uint16_t>(reinterpret_cast<const uint16_t*>(data), tokens, dims,
                                        stride / sizeof(uint16_t));
    };
    return DeviceRows(rows->type, view(rows->keys, rows->key_stride_bytes),
                      view(rows->values, rows->value_stride_bytes));
  }
  if (const auto coded = source.in_two_bits()) return DeviceRows(*coded);
  return std::nullopt;
}

class Attending final : public AttentionEngine {
 public:
  explicit Attending(const DeviceWork& device) : device_(device) {}

  /// Copies the rows of as many heads as fit there, each once, with queries and lists of tokens, and results
  /// back.
  bool attend(std::span<const kvcodec::Attention> heads) const override {
    for (const kvcodec::Attention& head : heads) {
      if (head.queries.cols() > kWidest) {
        device_.leave(
            fmt::format("attention of heads of {} dimensions (more than {})", head.queries.cols(), kWidest));
        return false;
      }
      for (const kvcodec::AttentionPart& part : head.parts)
        if (!part.rows->in_memory() && !part.rows->in_two_bits()) {
          device_.leave("attention to rows that must be decoded first");
          return false;
        }
    }
    // Heads that share rows one after the other, so that each piece holds what it needs once.
    std::vector<size_t> order(heads.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto rows_of = [&](size_t i) { return heads[i].parts.empty() ? nullptr : heads[i].parts[0].rows; };
    std::ranges::stable_sort(order, std::less<const RowSource*>(), rows_of);
    const auto run = [&] {
      const uint64_t room = free_bytes() / 2;
      for (size_t first = 0; first < order.size();) {
        std::map<const RowSource*, DeviceRows> rows;
        std::vector<Attention> part;
        uint64_t bytes = 0;
        size_t next = first;
        for (; next < order.size(); ++next) {
          const kvcodec::Attention& head = heads[order[next]];
          uint64_t more = 0;
          for (const kvcodec::AttentionPart& each : head.parts) {
            if (!rows.contains(each.rows))
              more += uint64_t{each.rows->tokens()} * each.rows->dims() * 2 * sizeof(float);
            more += attention_scratch_bytes(head.queries.rows(), each.size(), each.rows->dims());
          }
          if (next > first && bytes + more > room) break;
          bytes += more;
          Attention& own = part.emplace_back(
              Attention{.queries = head.queries, .parts = {}, .out = head.out, .scale = head.scale});
          for (const kvcodec::AttentionPart& each : head.parts) {
            auto place = rows.find(each.rows);
            if (place == rows.end()) place = rows.emplace(each.rows, *on_device(*each.rows)).first;
            own.parts.push_back({.rows = &place->second, .tokens = each.tokens, .visible = each.visible});
          }
        }
        cuda::attend(part);
        first = next;
      }
    };
    return device_.run(run, DeviceWork::Bits::rounded);
  }

 private:
  static constexpr size_t kWidest = 256;  ///< dimensions, as DeviceRows
  const DeviceWork& device_;
};

}  // namespace

std::unique_ptr<AttentionEngine> attention_engine(const DeviceWork& device) {
  return std::make_unique<Attending>(device);
}

}  // namespace kvcodec::cuda
