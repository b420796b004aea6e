// --shard i/N: one machine's share of the work.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/frame/command.hpp"

namespace kvcodec::cli {

/// Share i of N, counted from 1. The items, in their order, lie one behind the other on an axis of work
/// (tokens, for documents); share i has those whose middle lies in the i-th of N equal intervals of it. So
/// the shares in their order give all items, and the work of each differs from 1/N of the total by at most
/// that of the largest item.
struct Shard {
  int64_t number = 1, count = 1;

  /// Numbers of the things in the share; offsets: where the work of each begins, and the end of the last one.
  std::vector<size_t> choose(std::span<const uint64_t> offsets) const;
  /// The same of documents, whose work is their tokens.
  std::vector<size_t> documents(const Documents& all) const { return choose(all.offsets); }
  /// The same of some of the documents (ascending).
  std::vector<size_t> among(const Documents& all, const std::vector<size_t>& chosen) const;
};

/// The option.
struct ShardOption {
  std::string text;

  /// joined: how what the shares give is joined, in the option's help.
  void declare(Command& command, const std::string& joined = "kvcodec cat joins what N such commands write");
  bool given() const { return !text.empty(); }
  /// All of it if none was named. Throws Error(usage) for what is not a share.
  Shard shard() const;
};

}  // namespace kvcodec::cli
