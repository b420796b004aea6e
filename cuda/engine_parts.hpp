// What cuda/engine.cpp joins: each area's interface of lib over its twin, one function and one file each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cuda/runtime/runtime.hpp"
#include "lib/codec/engine.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cuda {

/// What the parts of an engine share: the device, which one piece of work has at a time, and to whom they say
/// what they leave.
class DeviceWork {
 public:
  explicit DeviceWork(Engine& engine) : engine_(engine) {}
  void leave(const std::string& what) const { engine_.leave(what); }

  /// Whether results have the bits that lib would have made.
  enum class Bits : uint8_t { same, rounded };

  /// Runs body() on the device. False for input that it refuses as bad, which this processor is to judge,
  /// and, with a word about it, for what it does not take or has no memory for. What body() wrote so far is
  /// to be written again.
  template <class Body>
  bool run(Body&& body, Bits bits = Bits::same) const {
    const std::lock_guard lock(mutex_);
    try {
      std::forward<Body>(body)();
      engine_.take(bits == Bits::same);
      return true;
    } catch (const OutOfMemory&) {  // the sizes of its words would be others each time
      leave("work for which it has no memory");
      return false;
    } catch (const DeviceFault&) {
      throw;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::bad_input) leave(error.what());
      return false;
    }
  }

  /// make() on the device; nothing, and a word about `what`, for what a device does not take or has no memory
  /// for.
  template <class Make>
  auto made(const std::string& what, Make&& make) const -> std::optional<decltype(make())> {
    const std::lock_guard lock(mutex_);
    try {
      return std::forward<Make>(make)();
    } catch (const OutOfMemory&) {
      leave(what + ": work for which it has no memory");
      return std::nullopt;
    } catch (const DeviceFault&) {
      throw;
    } catch (const Error& error) {
      leave(what + ": " + error.what());
      return std::nullopt;
    }
  }

  /// Has what lies on the device until nobody needs it, and then lets it go alone, as all work is done.
  template <class T>
  std::shared_ptr<const T> kept(T made) const {
    return {new const T(std::move(made)), [this](const T* last) {
              const std::lock_guard lock(mutex_);
              delete last;
            }};
  }

  /// Bytes that work may take, asked before it runs: half of the memory that is free, so that what runs
  /// beside this finds some.
  uint64_t room() const {
    const std::lock_guard lock(mutex_);
    return free_bytes() / 2;
  }

  /// Rows of so many bytes on the device that are worked on at a time, asked by what runs: they fill half of
  /// the memory that is free. At least one.
  static size_t rows_at_once(uint64_t bytes_per_row) {
    return static_cast<size_t>(
        std::max<uint64_t>(1, free_bytes() / 2 / std::max<uint64_t>(1, bytes_per_row)));
  }

 private:
  Engine& engine_;
  mutable std::mutex mutex_;
};

std::unique_ptr<AttentionEngine> attention_engine(const DeviceWork& device);
std::unique_ptr<kvcomp::BlockEngine> block_engine(const DeviceWork& device);
TokenChooser cluster_chooser(const DeviceWork& device, const kvcodec::ClusterIndex& index, uint64_t tokens);
KmeansFunction kmeans_function(const DeviceWork& device);
std::unique_ptr<PursuitEngine> pursuit_engine(const DeviceWork& device, const Dictionary& dictionary);
std::shared_ptr<PrefillEngine> prefill_engine(const DeviceWork& device, const LlamaWeights& weights);
std::unique_ptr<ReconstructionEngine> reconstruction_engine(const DeviceWork& device,
                                                            const Dictionary& dictionary);
std::unique_ptr<ResidualEngine> residual_engine(const DeviceWork& device, const Codebooks& books);
std::unique_ptr<RvqTrainEngine> rvq_train_engine(const DeviceWork& device);
std::unique_ptr<SignEngine> sign_engine(const DeviceWork& device);
std::unique_ptr<TrainingEngine> training_engine(const DeviceWork& device, const TrainOptions& options,
                                                size_t width);

}  // namespace kvcodec::cuda
