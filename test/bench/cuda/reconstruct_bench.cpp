// Signals from packed codes: from atoms of floats, as lib sums them, also where products with vectors stand
// for the atoms; from atoms of 8 bits, whose slices stay in shared memory; and the whole load of a cache of
// 512 documents of 512 tokens, from files in the page cache to 16-bit values on the device, beside the load
// of the values themselves.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "cuda/reconstruct/reconstruct.cuh"
#include "cuda/reconstruct/reconstruct.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/sparse/dictionary.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

struct Shape {
  size_t signals, atoms, dims, each;

  std::string text() const { return fmt::format("{} x {} of {} x {}", signals, each, atoms, dims); }
};

/// How a coefficient is stored: in 16 bits, or as levels of so many bits times a scale of a byte.
struct Stored {
  const char* name;
  unsigned bits;
};
constexpr Stored kStored[] = {{"f16", 16}, {"i8", 8}, {"i4", 4}};

/// Random codes, in the forms of a file and of lib/.
struct Codes {
  std::vector<uint32_t> ids;
  std::vector<float> coefficients;  ///< as they are once stored
  std::vector<uint16_t> halves;
  std::vector<uint8_t> packed, words, scales;
  std::vector<float> numbers;  ///< of 256 words and of 256 scales
  unsigned width, bits;

  Codes(const Shape& shape, unsigned coefficient_bits)
      : ids(shape.signals * shape.each),
        coefficients(random_floats(2, ids.size())),
        numbers(512),
        width(index_bits(shape.atoms)),
        bits(coefficient_bits) {
    Rng rng(1);
    for (auto& id : ids) id = static_cast<uint32_t>(rng.below(shape.atoms));
    packed.resize(packed_bytes(ids.size(), width));
    pack_bits(std::span<const uint32_t>(ids), width, shape.atoms, packed);
    if (bits == 16) {
      halves.resize(ids.size());
      narrow(DType::f16, coefficients, halves);
      widen(DType::f16, halves, coefficients);
      return;
    }
    const int middle = 1 << (bits - 1);
    for (int i = 0; i < 256; ++i) {
      numbers[static_cast<size_t>(i)] = static_cast<float>(i - middle);
      numbers[256 + static_cast<size_t>(i)] = std::ldexp(static_cast<float>(8 + i % 8), i / 8 - 23);
    }
    scales.resize(shape.signals);
    for (auto& scale : scales) scale = static_cast<uint8_t>(64 + rng.below(64));
    std::vector<uint32_t> levels(ids.size());
    for (size_t k = 0; k < ids.size(); ++k) {
      levels[k] = static_cast<uint32_t>(1 + rng.below(static_cast<uint64_t>(2 * middle - 1)));
      coefficients[k] = numbers[levels[k]] * numbers[256 + scales[k / shape.each]];
    }
    words.resize(packed_bytes(ids.size(), bits));
    pack_bits(std::span<const uint32_t>(levels), bits, uint64_t{1} << bits, words);
  }

  double bytes() const {
    return static_cast<double>(packed.size() + 2 * halves.size() + words.size() + scales.size());
  }
};

std::vector<uint32_t> whole_words(const std::vector<uint8_t>& bytes) {
  std::vector<uint32_t> words(bytes.size() / 4 + 2);  // kernels read the word behind an element too
  std::ranges::copy(bytes, reinterpret_cast<uint8_t*>(words.data()));
  return words;
}

/// Codes in device memory.
struct OnDevice {
  cuda::DeviceBuffer<uint32_t> packed, words;
  cuda::DeviceBuffer<uint16_t> halves;
  cuda::DeviceBuffer<uint8_t> scales;
  cuda::DeviceBuffer<float> numbers;
  cuda::DeviceCodes codes;

  OnDevice(const Codes& host, size_t each, const cuda::Stream& stream)
      : halves(host.halves, stream), scales(host.scales, stream), numbers(host.numbers, stream) {
    const std::vector<uint32_t> packed_words = whole_words(host.packed), of_words = whole_words(host.words);
    packed = cuda::DeviceBuffer<uint32_t>(packed_words, stream);
    words = cuda::DeviceBuffer<uint32_t>(of_words, stream);
    codes.packed = packed.data(), codes.bits = host.width, codes.each = static_cast<uint32_t>(each);
    if (host.bits == 16) {
      codes.half_coefficients = halves.data();
    } else {
      codes.words = words.data(), codes.word_bits = host.bits;
      codes.numbers = numbers.data(), codes.signal_scales = scales.data();
    }
    stream.synchronize();  // the words end here
  }
};

/// What lib makes of the first signals.
template <class Atoms>
Matrix<float> expected_signals(const Atoms& atoms, const Codes& codes, const Shape& shape) {
  const size_t checked = std::min<size_t>(shape.signals, 4096);
  Matrix<float> expected(checked, shape.dims);
  const std::vector<uint64_t> offsets = uniform_offsets(checked, shape.each);
  Reconstructor(atoms).run({std::span<const uint32_t>(codes.ids).first(offsets.back()),
                            std::span<const float>(codes.coefficients).first(offsets.back()), offsets},
                           expected);
  return expected;
}

/// From atoms of floats: into floats, or from atoms rounded to bf16 into bf16. Out: float or uint16_t.
template <class Out>
void float_case(DeviceBench& bench, const std::string& name, const Shape& large) {
  if (!bench.wanted(name)) return;
  constexpr bool kFloats = std::is_same_v<Out, float>;
  const Shape shape = bench.small() ? Shape{70, 100, large.dims / 4, 5} : large;
  const Codes codes(shape, 16);
  std::vector<float> atoms = random_floats(3, shape.atoms * shape.dims);
  std::vector<uint16_t> halves(atoms.size());
  if (!kFloats) {
    narrow(DType::bf16, atoms, halves);
    widen(DType::bf16, halves, atoms);
  }
  const Matrix<float> expected =
      expected_signals(MatrixView<const float>(atoms.data(), shape.atoms, shape.dims), codes, shape);
  const auto& stream = bench.stream();
  std::vector<Out> stored;
  if constexpr (kFloats)
    stored = atoms;
  else
    stored = halves;
  const cuda::DeviceBuffer<Out> device_atoms(stored, stream);
  const cuda::DeviceAtoms device{device_atoms.data(), static_cast<uint32_t>(shape.atoms),
                                 static_cast<uint32_t>(shape.dims), static_cast<uint32_t>(shape.dims)};
  const size_t values = shape.signals * shape.dims;
  const double moved = codes.bytes() + static_cast<double>(sizeof(Out) * (values + atoms.size()));
  std::vector<std::unique_ptr<OnDevice>> on_device;
  std::vector<cuda::DeviceBuffer<Out>> out;
  const size_t sets = bench.sets_of(moved);
  for (size_t set = 0; set < sets; ++set) {
    on_device.push_back(std::make_unique<OnDevice>(codes, shape.each, stream));
    out.emplace_back(values);
  }
  cuda::DeviceBuffer<unsigned long long> bad(1);
  bad.fill(0xff, stream);
  const auto launch = [&](size_t set) {
    const cuda::DeviceSignals signals{
        out[set].data(), kFloats ? cuda::SignalType::f32 : cuda::SignalType::bf16, shape.signals, shape.dims};
    cuda::check(cuda::run_reconstruct(kFloats ? cuda::AtomType::f32 : cuda::AtomType::bf16, device,
                                      on_device[set]->codes, {}, signals, bad.data(), stream.handle()),
                "reconstruction");
  };
  launch(0);
  std::vector<Out> found(values), wanted(expected.size());
  out[0].download(found, stream);
  stream.synchronize();
  if constexpr (kFloats)
    std::copy_n(expected.data(), expected.size(), wanted.begin());
  else
    narrow(DType::bf16, {expected.data(), expected.size()}, wanted);
  verify(std::equal(wanted.begin(), wanted.end(), found.begin()), name);
  bench.measure(name, shape.text(), {.bytes = moved}, sets, launch);
}

// Atoms of 8 bits -----------------------------------------------------------------------------------

Shape level_shape(const DeviceBench& bench) {
  return bench.small() ? Shape{70, 100, 40, 5}
                       : Shape{.signals = 1 << 17, .atoms = 8192, .dims = 512, .each = 64};
}

ByteAtoms random_levels(const Shape& shape) {
  const std::vector<float> atoms = random_floats(3, shape.atoms * shape.dims);
  return round_to_bytes({atoms.data(), shape.atoms, shape.dims});
}

/// A dictionary in slices, and room for the weights of some signals.
class Levels {
 public:
  Levels(const ByteAtoms& atoms, const Shape& shape, size_t signals, const cuda::Stream& stream)
      : scales_(atoms.scales, stream), units_(signals), used_(signals) {
    const size_t slices = (shape.dims + cuda::kLevelChannels - 1) / cuda::kLevelChannels;
    std::vector<int8_t> host(slices * shape.atoms * cuda::kLevelChannels);
    for (size_t i = 0; i < shape.atoms; ++i)
      for (size_t c = 0; c < shape.dims; ++c)
        host[(c / cuda::kLevelChannels * shape.atoms + i) * cuda::kLevelChannels + c % cuda::kLevelChannels] =
            atoms.levels(i, c);
    slices_ = cuda::DeviceBuffer<int8_t>(host, stream);
    const size_t quads = (shape.each + 3) / 4;
    pairs_.resize((signals + 31) / 32 * 32 * quads * 4);
    levels_ = {slices_.data(), scales_.data(), static_cast<uint32_t>(shape.atoms),
               static_cast<uint32_t>(shape.dims)};
    prepared_.pairs = pairs_.data(), prepared_.units = units_.data(), prepared_.used = used_.data();
    prepared_.quads = static_cast<uint32_t>(quads);
    stream.synchronize();
  }

  void run(const cuda::DeviceCodes& codes, const cuda::DeviceSignals& signals, const cuda::Limits& limits,
           unsigned long long* bad, const cuda::Stream& stream) {
    cuda::check(cuda::run_prepare_levels(levels_, codes, signals.count, prepared_, bad, stream.handle()),
                "weights");
    cuda::check(cuda::run_combine_levels(levels_, prepared_, {}, signals,
                                         static_cast<unsigned>(limits.multiprocessors), limits.shared_bytes,
                                         stream.handle()),
                "sums of levels");
  }

 private:
  cuda::DeviceBuffer<int8_t> slices_;
  cuda::DeviceBuffer<float> scales_, units_;
  cuda::DeviceBuffer<uint32_t> used_, pairs_;
  cuda::DeviceLevels levels_;
  cuda::LevelCodes prepared_;
};

void verify_halves(const Matrix<float>& expected, const std::vector<uint16_t>& found,
                   const std::string& what) {
  std::vector<uint16_t> wanted(expected.size());
  narrow(DType::bf16, {expected.data(), expected.size()}, wanted);
  verify(std::equal(wanted.begin(), wanted.end(), found.begin()), what);
}

void level_case(DeviceBench& bench, const std::string& name, unsigned bits) {
  if (!bench.wanted(name)) return;
  const Shape shape = level_shape(bench);
  const Codes codes(shape, bits);
  const ByteAtoms atoms = random_levels(shape);
  const auto& stream = bench.stream();
  Levels levels(atoms, shape, shape.signals, stream);
  const OnDevice on_device(codes, shape.each, stream);
  const size_t values = shape.signals * shape.dims;
  cuda::DeviceBuffer<uint16_t> out(values);
  cuda::DeviceBuffer<unsigned long long> bad(1);
  bad.fill(0xff, stream);
  const cuda::DeviceSignals signals{out.data(), cuda::SignalType::bf16, shape.signals, shape.dims};
  const auto launch = [&](size_t) {
    levels.run(on_device.codes, signals, bench.limits(), bad.data(), stream);
  };
  launch(0);
  std::vector<uint16_t> found(values);
  out.download(found, stream);
  stream.synchronize();
  verify_halves(expected_signals(atoms, codes, shape), found, name);
  const double made = 2 * static_cast<double>(values);
  bench.measure(name, shape.text(), {.bytes = made + codes.bytes(), .reported = made}, 1, launch);
}

// The load ----------------------------------------------------------------------------------------------

/// A file without a name, of parts of one length, in the page cache.
class Parts {
 public:
  explicit Parts(size_t bytes) : bytes_(bytes) {
    std::string path = (std::filesystem::temp_directory_path() / "kvcodec-bench-XXXXXX").string();
    file_ = mkstemp(path.data());
    verify(file_ >= 0, "a temporary file");
    unlink(path.c_str());
  }
  ~Parts() { close(file_); }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  void append(const uint8_t* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t done = write(file_, data, bytes);
      verify(done > 0, "writing a temporary file");
      data += done, bytes -= static_cast<size_t>(done);
    }
  }
  /// By all threads: one copies 6 GB/s from the page cache, a tenth of what goes on to the device.
  void read(size_t part, uint8_t* to) const {
    parallel_for(bytes_, size_t{1} << 20, [&](size_t begin, size_t end, int) {
      for (size_t done = begin; done < end;) {
        const ssize_t some = pread(file_, to + done, end - done, static_cast<off_t>(part * bytes_ + done));
        verify(some > 0, "reading a temporary file");
        done += static_cast<size_t>(some);
      }
    });
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  int file_ = -1;
};

/// Reads parts into two buffers in turn and hands each to `work`, which starts copying on that buffer's
/// stream while the next part is read. Returns when all is done.
template <class Work>
void load(const Parts& file, size_t parts, cuda::PinnedBuffer<uint8_t> (&buffers)[2],
          const cuda::Stream (&streams)[2], const Work& work) {
  for (size_t part = 0; part < parts; ++part) {
    const size_t own = part % 2;
    streams[own].synchronize();  // what was in the buffer is on the device
    file.read(part, buffers[own].data());
    work(part, own);
  }
  for (const cuda::Stream& stream : streams) stream.synchronize();
}

/// 512 documents of 512 tokens, keys and values, each token one signal: 4 layers of 128 channels.
struct LoadShape {
  Shape part;  ///< read and copied at a time
  size_t parts;
};
LoadShape load_shape(const DeviceBench& bench) {
  if (bench.small()) return {{70, 100, 40, 5}, 3};
  return {{.signals = 1 << 16, .atoms = 8192, .dims = 512, .each = 64}, 2 * 512 * 512 / (1 << 16)};
}

void plain_load_case(DeviceBench& bench) {
  const std::string name = "reconstruct/load uncompressed";
  if (!bench.wanted(name)) return;
  const auto [shape, parts] = load_shape(bench);
  const size_t bytes = 2 * shape.signals * shape.dims;
  Parts file(bytes);
  std::vector<uint8_t> content(bytes);
  for (size_t part = 0; part < parts; ++part) {
    for (size_t i = 0; i < bytes; ++i) content[i] = static_cast<uint8_t>(i * 7 + part);
    file.append(content.data(), bytes);
  }
  cuda::PinnedBuffer<uint8_t> buffers[2]{cuda::PinnedBuffer<uint8_t>(bytes),
                                         cuda::PinnedBuffer<uint8_t>(bytes)};
  const cuda::Stream streams[2];
  cuda::DeviceBuffer<uint8_t> out(bytes * parts);
  const auto launch = [&](size_t) {
    load(file, parts, buffers, streams,
         [&](size_t part, size_t own) { out.upload(buffers[own].span(), streams[own], part * bytes); });
  };
  launch(0);
  std::vector<uint8_t> found(bytes);
  out.download(found, bench.stream(), (parts - 1) * bytes);
  bench.stream().synchronize();
  verify(found == content, name);
  bench.measure(name, fmt::format("{} x {} x {}", parts, shape.signals, shape.dims),
                {.bytes = static_cast<double>(bytes * parts)}, 1, launch);
}

void coded_load_case(DeviceBench& bench, const std::string& name, unsigned bits) {
  if (!bench.wanted(name)) return;
  const auto [shape, parts] = load_shape(bench);
  const Codes codes(shape, bits);
  const ByteAtoms atoms = random_levels(shape);
  // A part: packed ids, coefficients, scales, each from a multiple of 16 bytes on, one more word behind.
  const auto padded = [](size_t bytes) { return (bytes + 4 + 15) / 16 * 16; };
  const uint8_t* coefficients =
      bits == 16 ? reinterpret_cast<const uint8_t*>(codes.halves.data()) : codes.words.data();
  const size_t coefficient_bytes = bits == 16 ? 2 * codes.halves.size() : codes.words.size();
  const size_t at_coefficients = padded(codes.packed.size());
  const size_t at_scales = at_coefficients + padded(coefficient_bytes);
  const size_t bytes = at_scales + padded(codes.scales.size());
  std::vector<uint8_t> content(bytes);
  std::ranges::copy(codes.packed, content.begin());
  std::copy_n(coefficients, coefficient_bytes, content.begin() + static_cast<ptrdiff_t>(at_coefficients));
  std::ranges::copy(codes.scales, content.begin() + static_cast<ptrdiff_t>(at_scales));
  Parts file(bytes);
  for (size_t part = 0; part < parts; ++part) file.append(content.data(), bytes);

  cuda::PinnedBuffer<uint8_t> buffers[2]{cuda::PinnedBuffer<uint8_t>(bytes),
                                         cuda::PinnedBuffer<uint8_t>(bytes)};
  const cuda::Stream streams[2];
  cuda::DeviceBuffer<uint8_t> device[2];
  std::unique_ptr<Levels> levels[2];
  for (size_t own = 0; own < 2; ++own) {
    device[own].resize(bytes);
    levels[own] = std::make_unique<Levels>(atoms, shape, shape.signals, streams[own]);
  }
  const cuda::DeviceBuffer<float> numbers(codes.numbers, bench.stream());
  const size_t values = shape.signals * shape.dims;
  cuda::DeviceBuffer<uint16_t> out(values * parts);
  cuda::DeviceBuffer<unsigned long long> bad(1);
  bad.fill(0xff, bench.stream());
  bench.stream().synchronize();
  const auto launch = [&](size_t) {
    load(file, parts, buffers, streams, [&](size_t part, size_t own) {
      device[own].upload(buffers[own].span(), streams[own]);
      cuda::DeviceCodes of_part;
      of_part.packed = reinterpret_cast<const uint32_t*>(device[own].data());
      of_part.bits = codes.width, of_part.each = static_cast<uint32_t>(shape.each);
      if (bits == 16) {
        of_part.half_coefficients = reinterpret_cast<const uint16_t*>(device[own].data() + at_coefficients);
      } else {
        of_part.words = reinterpret_cast<const uint32_t*>(device[own].data() + at_coefficients);
        of_part.word_bits = bits;
        of_part.numbers = numbers.data(), of_part.signal_scales = device[own].data() + at_scales;
      }
      levels[own]->run(of_part,
                       {out.data() + part * values, cuda::SignalType::bf16, shape.signals, shape.dims},
                       bench.limits(), bad.data(), streams[own]);
    });
  };
  launch(0);
  std::vector<uint16_t> found(values);
  out.download(found, bench.stream(), (parts - 1) * values);
  bench.stream().synchronize();
  verify_halves(expected_signals(atoms, codes, shape), found, name);
  const double made = 2 * static_cast<double>(values * parts);
  bench.measure(name, fmt::format("{} x {}", parts, shape.text()),
                {.bytes = made + static_cast<double>(bytes * parts), .reported = made}, 1, launch);
}

}  // namespace

void reconstruct_cases(DeviceBench& bench) {
  const Shape shape{.signals = 1 << 18, .atoms = 8192, .dims = 128, .each = 16};
  const std::string floats = "reconstruct/packed f32", halves = "reconstruct/packed bf16";
  bench.attempt(floats, [&] { float_case<float>(bench, floats, shape); });
  bench.attempt(halves, [&] { float_case<uint16_t>(bench, halves, shape); });
  // Tokens multiplied with vectors without decoding: for atoms stand their products with 32 vectors.
  const std::string products = "reconstruct/products of codes";
  const Shape vectors{.signals = 1 << 17, .atoms = 8192, .dims = 32, .each = 64};
  bench.attempt(products, [&] { float_case<float>(bench, products, vectors); });
  for (const auto& [stored, bits] : kStored) {
    const std::string name = fmt::format("reconstruct/i8 atoms, {}", stored);
    bench.attempt(name, [&] { level_case(bench, name, bits); });
  }
  bench.attempt("reconstruct/load uncompressed", [&] { plain_load_case(bench); });
  for (const auto& [stored, bits] : kStored) {
    const std::string name = fmt::format("reconstruct/load coded, {}", stored);
    bench.attempt(name, [&] { coded_load_case(bench, name, bits); });
  }
}

}  // namespace kvcodec::bench
