#include "lib/model/linear.hpp"

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

// Products are cut in tiles of kRows tokens x kOutputs outputs. Measured on two Zen 4 cores (1,024 tokens,
// 2,048 inputs): 512 x 256 reaches 91% of one large sgemm, 256 x 256 86%, 1024 x 512 94%; larger tiles leave
// machines with many cores idle. Widening bf16 weights inside the tile costs nothing measurable.
constexpr size_t kRows = 512;
constexpr size_t kOutputs = 256;
// Inputs are taken so many at a time, to keep a widened weight block within the cache (2 MiB); far above
// OpenBLAS's own depth.
constexpr size_t kInputs = 2048;

/// Size of the tiles that a product is cut into.
struct TileSize {
  size_t rows, outputs;
};
constexpr TileSize kTile{kRows, kOutputs};
// By packed weights oneDNN cuts by itself, and does best where tiles are rows without gaps. 64 rows or 128 make no difference to two
// Zen 4 cores (dump-kv, 4,096 tokens of SmolLM2-135M: 10.3 s of processor time both in f32, 5.8 s both in bf16); 16 threads with AMX
// reach 2,237 GFLOP/s in bf16 with 64 rows and 985 with 128, which leave them 8 tiles of 1,024 tokens.
constexpr TileSize kPackedTile{64, 2048};
static_assert(kPackedTile.rows * kPackedTile.outputs <= kRows * kOutputs);

TileSize tile_of(const Linear& layer) { return layer.packed.empty() ? kTile : kPackedTile; }

/// A product of a group, to be cut.
struct Whole {
  size_t outputs;
  TileSize tile;
};

struct Tile {
  size_t item;  // which product of the group
  size_t row, rows;
  size_t output, outputs;
};

/// Calls body(tile, its scratch memory) for all tiles, on all threads. Tiles of the same weights follow each other, so
/// that threads share them in the cache.
template <class Body>
void for_each_tile(size_t rows, std::span<const Whole> products, WorkerScratch& scratch, const Body& body) {
  std::vector<Tile> tiles;
  for (size_t item = 0; item < products.size(); ++item) {
    const auto& [outputs, tile] = products[item];
    for (size_t output = 0; output < outputs; output += tile.outputs)
      for (size_t row = 0; row < rows; row += tile.rows)
        tiles.push_back(
            {item, row, std::min(tile.rows, rows - row), output, std::min(tile.outputs, outputs - output)});
  }
  parallel_for(tiles.size(), 1, [&](size_t begin, size_t, int worker) {
    body(tiles[begin], scratch.get(worker, linear_scratch_floats()));
  });
}

/// Outputs [output, output + count), inputs [input, input + width) of the weight matrix; in place if it can
/// be used as it is.
MatrixView<const float> weight_block(const Linear& layer, size_t output, size_t count, size_t input,
                                     size_t width, float* scratch) {
  const size_t inputs = layer.inputs();
  if (const float* weight = floats_in_place(layer.weight))
    return {weight + output * inputs + input, count, width, inputs};
  for (size_t i = 0; i < count; ++i)
    read_floats(layer.weight, (output + i) * inputs + input, {scratch + i * width, width});
  return {scratch, count, width};
}

/// The same in bf16. A block takes half of the scratch; a row that is not stored so becomes floats in the other half.
MatrixView<const uint16_t> bf16_block(const Linear& layer, size_t output, size_t count, size_t input,
                                      size_t width, float* scratch) {
  const size_t inputs = layer.inputs();
  if (const uint16_t* weight = bf16_in_place(layer.weight))
    return {weight + output * inputs + input, count, width, inputs};
  auto* const block = reinterpret_cast<uint16_t*>(scratch);
  const std::span<float> row(scratch + kOutputs * kInputs / 2, width);
  for (size_t i = 0; i < count; ++i) {
    read_floats(layer.weight, (output + i) * inputs + input, row);
    narrow(DType::bf16, row, {block + i * width, width});
  }
  return {block, count, width};
}

/// The input of layers in the form that each of them takes: rounded where it multiplies in bf16, and without gaps between
/// rows where its weights are packed.
class Input {
 public:
  Input(const LayerInput& x, std::span<const LinearOutput> outputs) : floats_(x.floats), rounded_(x.bf16) {
    const auto any = [&](const auto& is) {
      return std::ranges::any_of(outputs, [&](const LinearOutput& output) { return is(*output.layer); });
    };
    const bool is_rounded = x.rows() == x.bf16.rows(), in_floats = x.rows() == x.floats.rows();
    if (!in_floats && any([](const Linear& layer) { return layer.compute == Compute::f32; }))
      throw failed("what a layer reads is there in bf16 alone, but it computes in f32");
    if (!is_rounded && any([](const Linear& layer) { return layer.compute == Compute::bf16; })) round();
    if (!floats_.contiguous() && any([](const Linear& layer) { return !layer.packed.empty(); })) close_gaps();
  }

  MatrixView<const float> floats(const Tile& tile) const { return floats_.rows(tile.row, tile.rows); }
  MatrixView<const uint16_t> bf16(const Tile& tile) const { return rounded_.rows(tile.row, tile.rows); }

 private:
  template <class T>
  MatrixView<T> like_floats(UnsetVector<T>& values) const {
    values.resize(floats_.rows() * floats_.cols());
    return {values.data(), floats_.rows(), floats_.cols()};
  }
  void round() {
    const MatrixView<uint16_t> rounded = like_floats(rounded_values_);
    each_row(floats_.rows(), [&](size_t i) { narrow(DType::bf16, floats_.row(i), rounded.row(i)); });
    rounded_ = rounded;
  }
  void close_gaps() {
    const MatrixView<float> closed = like_floats(values_);
    each_row(floats_.rows(), [&](size_t i) { std::ranges::copy(floats_.row(i), closed.row(i).begin()); });
    floats_ = closed;
  }

  MatrixView<const float> floats_;
  UnsetVector<float> values_;
  UnsetVector<uint16_t> rounded_values_;
  MatrixView<const uint16_t> rounded_;
};

/// Writes the bias of outputs [output, output + out.cols()), or adds it; returns whether what comes next replaces what
/// is there.
bool write_bias(const Linear& layer, size_t output, Write write, MatrixView<float> out) {
  const bool replace = write == Write::replace;
  if (layer.bias.empty()) return replace;
  const auto bias = std::span(layer.bias).subspan(output, out.cols());
  for (size_t i = 0; i < out.rows(); ++i)
    if (replace)
      std::copy(bias.begin(), bias.end(), out.row(i).begin());
    else
      add_to(out.row(i), bias);
  return false;
}

/// Adds a tile's product by packed weights to out, or writes it there; where out has gaps between its rows, by way of the scratch.
void multiply_packed(const Input& x, const Tile& tile, const Linear& layer, bool replace,
                     MatrixView<float> out, float* scratch) {
  const PackedMatrix& weights = layer.packed[tile.output / kPackedTile.outputs];
  const auto multiply = [&](bool add, MatrixView<float> to) {
    if (weights.elements() == DType::bf16)
      gemm_packed(x.bf16(tile), weights, add, to);
    else
      gemm_packed(x.floats(tile), weights, add, to);
  };
  // One row has no gap anywhere, but shall be what it is among others: oneDNN adds to what is there in an order of its own.
  if (out.stride() == out.cols()) return multiply(!replace, out);
  const MatrixView<float> product(scratch, tile.rows, tile.outputs);
  multiply(false, product);
  for (size_t i = 0; i < tile.rows; ++i)
    if (replace)
      std::ranges::copy(product.row(i), out.row(i).begin());
    else
      add_to(out.row(i), product.row(i));
}

/// Computes a tile of layer(x) into out, of the tile's shape. scratch: kOutputs * kInputs floats.
void multiply_tile(const Input& x, const Tile& tile, const Linear& layer, Write write, MatrixView<float> out,
                   float* scratch) {
  bool replace = write_bias(layer, tile.output, write, out);
  if (!layer.packed.empty()) return multiply_packed(x, tile, layer, replace, out, scratch);
  const size_t inputs = layer.inputs();
  for (size_t input = 0; input < inputs; input += kInputs) {
    const size_t width = std::min(kInputs, inputs - input);
    if (layer.compute == Compute::bf16)
      gemm_bf16(x.bf16(tile).columns(input, width),
                bf16_block(layer, tile.output, tile.outputs, input, width, scratch), Transpose::yes, !replace,
                out);
    else
      gemm(1, x.floats(tile).columns(input, width),
           transposed(weight_block(layer, tile.output, tile.outputs, input, width, scratch)),
           replace ? 0.0f : 1.0f, out);
    replace = false;
  }
}

/// Computes derivatives by inputs [input, input + out.cols()) of a layer from those by its outputs, x. scratch: kOutputs
/// * kInputs floats; out has at most kOutputs columns.
void multiply_tile_back(MatrixView<const float> x, const Linear& layer, size_t input, Write write,
                        MatrixView<float> out, float* scratch) {
  bool overwrite = write == Write::replace;
  for (size_t output = 0; output < x.cols(); output += kInputs) {
    const size_t count = std::min(kInputs, x.cols() - output);
    gemm(1, x.columns(output, count), weight_block(layer, output, count, input, out.cols(), scratch),
         overwrite ? 0.0f : 1.0f, out);
    overwrite = false;
  }
}

template <class T>
MatrixView<T> part(MatrixView<T> matrix, const Tile& tile) {
  return matrix.rows(tile.row, tile.rows).columns(tile.output, tile.outputs);
}

/// Rows of a layer that are packed together.
struct PackedRows {
  const Linear* layer;
  PackedMatrix* matrix;
  size_t first_output;  // of the matrix
  size_t first, count;  // in the matrix
};

void pack(const PackedRows& piece) {
  const Linear& layer = *piece.layer;
  const size_t inputs = layer.inputs();
  // Memory of each thread, so that it is not asked for anew for each piece.
  thread_local UnsetVector<float> floats;
  thread_local UnsetVector<uint16_t> rounded;
  floats.resize(piece.count * inputs);
  const MatrixView<float> rows(floats.data(), piece.count, inputs);
  for (size_t i = 0; i < piece.count; ++i)
    read_floats(layer.weight, (piece.first_output + piece.first + i) * inputs, rows.row(i));
  if (piece.matrix->elements() == DType::f32) return piece.matrix->set(piece.first, rows);
  rounded.resize(floats.size());
  narrow(DType::bf16, floats, rounded);
  piece.matrix->set(piece.first, MatrixView<const uint16_t>(rounded.data(), piece.count, inputs));
}

}  // namespace

void pack(std::span<Linear* const> layers, DType elements) {
  std::vector<PackedMatrix::Shape> shapes;
  for (const Linear* const layer : layers)
    for (size_t first = 0; first < layer->outputs(); first += kPackedTile.outputs)
      shapes.push_back({std::min(kPackedTile.outputs, layer->outputs() - first), layer->inputs()});
  const std::vector<PackedMatrix> matrices = PackedMatrix::of(elements, shapes);
  auto next = matrices.begin();
  // Few enough rows a piece to stay in the cache as floats, as oneDNN then reads them column by column.
  std::vector<PackedRows> pieces;
  for (Linear* const layer : layers) {
    const size_t blocks = (layer->outputs() + kPackedTile.outputs - 1) / kPackedTile.outputs;
    layer->packed.assign(next, next + static_cast<std::ptrdiff_t>(blocks));
    next += static_cast<std::ptrdiff_t>(blocks);
    for (size_t block = 0; block < blocks; ++block) {
      PackedMatrix& matrix = layer->packed[block];
      for (size_t first = 0; first < matrix.rows(); first += matrix.row_step())
        pieces.push_back({layer, &matrix, block * kPackedTile.outputs, first,
                          std::min(matrix.row_step(), matrix.rows() - first)});
    }
  }
  constexpr size_t kGrain = 4;
  parallel_each(pieces.size(), kGrain, [&](size_t i) { pack(pieces[i]); });
}

// Behind what multiply_tile() takes, two tiles of an MLP's first half.
size_t linear_scratch_floats() { return kOutputs * kInputs + 2 * kRows * kOutputs; }

void apply(const LayerInput& x, std::span<const LinearOutput> outputs, Write write, WorkerScratch& scratch) {
  std::vector<Whole> products;
  for (const auto& [layer, out] : outputs) products.push_back({layer->outputs(), tile_of(*layer)});
  const Input input(x, outputs);
  for_each_tile(x.rows(), products, scratch, [&](const Tile& tile, float* block) {
    const auto& [layer, out] = outputs[tile.item];
    multiply_tile(input, tile, *layer, write, part(out, tile), block);
  });
}

void apply_back(MatrixView<const float> x, const Linear& layer, Write write, MatrixView<float> out,
                WorkerScratch& scratch) {
  const Whole product{layer.inputs(), kTile};
  for_each_tile(x.rows(), {&product, 1}, scratch, [&](const Tile& tile, float* block) {
    multiply_tile_back(x.rows(tile.row, tile.rows), layer, tile.output, write, part(out, tile), block);
  });
}

template <class T>
void apply_activated(const LayerInput& x, const Mlp& mlp, Activation activation, MatrixView<T> out,
                     WorkerScratch& scratch) {
  const bool gated = !mlp.gate.empty();
  const Whole product{mlp.up.outputs(), tile_of(mlp.up)};
  const LinearOutput of_up{&mlp.up, {}};
  const Input input(x, {&of_up, 1});
  for_each_tile(x.rows(), {&product, 1}, scratch, [&](const Tile& tile, float* block) {
    const MatrixView<float> activated(block + kOutputs * kInputs, tile.rows, tile.outputs),
        raised(activated.data() + tile.rows * tile.outputs, tile.rows, tile.outputs);
    const MatrixView<T> to = part(out, tile);
    multiply_tile(input, tile, gated ? mlp.gate : mlp.up, Write::replace, activated, block);
    if (gated) multiply_tile(input, tile, mlp.up, Write::replace, raised, block);
    for (size_t i = 0; i < tile.rows; ++i) {
      activate(activation, activated.row(i), gated ? raised.row(i) : std::span<float>());
      if constexpr (std::is_same_v<T, float>)
        std::ranges::copy(activated.row(i), to.row(i).begin());
      else
        narrow(DType::bf16, activated.row(i), to.row(i));
    }
  });
}
template void apply_activated(const LayerInput&, const Mlp&, Activation, MatrixView<float>, WorkerScratch&);
template void apply_activated(const LayerInput&, const Mlp&, Activation, MatrixView<uint16_t>,
                              WorkerScratch&);

}  // namespace kvcodec
