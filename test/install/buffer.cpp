// Encodes a buffer of keys and decodes it again, using only what find_package(kvcodec) provides.
#include <cmath>
#include <cstdio>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"

int main() {
  using namespace kvcodec;
  const CodecEntry& entry = find_codec("kvcomp");
  const auto codec = entry.make(*entry.make_options(), {.num_layers = 1, .heads = 2, .head_dim = 64});
  const GroupShape shape = usual_group(0, 1, 2, 64, Side::key);
  Matrix<float> keys(256, shape.width()), decoded(256, shape.width());
  for (size_t i = 0; i < keys.size(); ++i) keys.data()[i] = std::sin(static_cast<float>(i * i % 1009));
  const DocumentRows documents[] = {DocumentRows(keys)};
  const Encoded encoded = encode_in_memory(*codec, shape, documents);
  codec->open(shape, encoded.document(0))->decode(0, decoded);
  double error = 0, energy = 0, bytes = 0;
  for (const StreamSpec& spec : encoded.specs())
    bytes += static_cast<double>(encoded.bytes(spec.name).size());
  for (size_t i = 0; i < keys.size(); ++i)
    energy += keys.data()[i] * keys.data()[i], error += std::pow(keys.data()[i] - decoded.data()[i], 2);
  std::printf("%.2f bits per value, %.1f dB\n", 8 * bytes / static_cast<double>(keys.size()),
              10 * std::log10(energy / error));
}
