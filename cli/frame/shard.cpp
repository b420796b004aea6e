#include "cli/frame/shard.hpp"

#include <charconv>

#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

constexpr int64_t kMostShards = 1000000;

bool to_count(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number >= 1 && number <= kMostShards;
}

}  // namespace

std::vector<size_t> Shard::choose(std::span<const uint64_t> offsets) const {
  const size_t things = offsets.size() - 1;
  const bool idle = offsets.back() == 0;  // without any work each thing counts as one
  const auto shares = static_cast<uint64_t>(count), share = static_cast<uint64_t>(number);
  // Middles are counted in halves. An empty thing at the very end has its middle on the end.
  const uint64_t total = 2 * (idle ? things : offsets.back());
  const auto begin_of = [&](uint64_t i) { return total / shares * i + total % shares * i / shares; };
  const uint64_t begin = begin_of(share - 1), end = share == shares ? total + 1 : begin_of(share);
  std::vector<size_t> chosen;
  for (size_t i = 0; i < things; ++i)
    if (const uint64_t middle = idle ? 2 * i + 1 : offsets[i] + offsets[i + 1];
        begin <= middle && middle < end)
      chosen.push_back(i);
  return chosen;
}

std::vector<size_t> Shard::among(const Documents& all, const std::vector<size_t>& chosen) const {
  std::vector<uint64_t> offsets{0};
  for (const size_t document : chosen) offsets.push_back(offsets.back() + all.length(document));
  std::vector<size_t> share;
  for (const size_t place : choose(offsets)) share.push_back(chosen[place]);
  return share;
}

void ShardOption::declare(Command& command, const std::string& joined) {
  command.option(
      {.name = "shard",
       .help = "only share i of N of the documents, i from 1 on, with about as many tokens each; " + joined +
               " (default: all of them)",
       .target = &text},
      "i/N");
}

Shard ShardOption::shard() const {
  if (text.empty()) return {};
  Shard shard;
  const size_t slash = text.find('/');
  const std::string_view view(text);
  if (slash == std::string::npos || !to_count(view.substr(0, slash), shard.number) ||
      !to_count(view.substr(slash + 1), shard.count) || shard.number > shard.count)
    throw usage_error("--shard is '{}'; it must be i/N with 1 <= i <= N, as 3/64", text);
  return shard;
}

}  // namespace kvcodec::cli
